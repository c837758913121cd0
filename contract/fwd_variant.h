// SPDX-License-Identifier: Apache-2.0
// contract: the compile-time half of the agreement between planner (host) and forward kernel (device).
// Two variants are equal if and only if they compile to the same machine code.
#pragma once
#include "contract/dtype.h"

namespace froghopper {

struct FwdVariant {
  Dtype dtype;   // of Q, K, V and O; picks the wgmma type
  int dim_qk;    // columns of the Q and K tiles; fewer columns in memory are filled up with zeros by TMA
  int dim_v;     // columns of the V and O tiles
  int tile_q;    // query rows per CTA, 64 per consumer warpgroup: they size the register tiles
  int tile_kv;   // key/value rows per ring stage: they size S
  int stages;    // depth of the K ring and of the V ring
  Mask mask;     // picks the loops: a loop without a mask has no compare
  bool ragged;   // sequences have lengths of their own (varlen, seqused), read on the device
  bool softcap;  // scores pass through tanh

  bool operator==(const FwdVariant&) const = default;
};

constexpr int fwd_consumers(FwdVariant v) { return v.tile_q / 64; }

constexpr int smem_bytes_per_cta = 232448;  // 227 KiB, what sm_90 gives one CTA

// Shared memory in bytes: tiles are made of 64-column panels (128 bytes, one swizzle row), so 96 columns take two.
constexpr int panels(int dim) { return (dim + 63) / 64; }
constexpr int fwd_q_bytes(FwdVariant v) { return v.tile_q * panels(v.dim_qk) * 128; }
constexpr int fwd_ring_bytes(FwdVariant v) {
  return v.stages * v.tile_kv * (panels(v.dim_qk) + panels(v.dim_v)) * 128;
}
constexpr int fwd_barrier_bytes = 1024;  // works and barriers behind the tiles, rounded up to the tiles' alignment
// Q is double-buffered where that fits.
constexpr int fwd_q_stages(FwdVariant v) {
  return 2 * fwd_q_bytes(v) + fwd_ring_bytes(v) + fwd_barrier_bytes <= smem_bytes_per_cta ? 2 : 1;
}
constexpr int fwd_smem_bytes(FwdVariant v) {
  return fwd_q_stages(v) * fwd_q_bytes(v) + fwd_ring_bytes(v) + fwd_barrier_bytes;
}

// One truth, two judges: the planner turns the text into an error, the kernel static_asserts that there is none.
constexpr const char* why_invalid(FwdVariant v) {
  if (v.dtype != Dtype::f16 && v.dtype != Dtype::bf16) return "wgmma takes f16 and bf16 here, not f32";
  if (v.dim_qk % 32 != 0 || v.dim_qk < 64 || v.dim_qk > 256) return "dim_qk of the tile must be 64, 96, ... 256";
  if (v.dim_v % 32 != 0 || v.dim_v < 64 || v.dim_v > 256) return "dim_v of the tile must be 64, 96, ... 256";
  if (v.tile_q % 64 != 0 || v.tile_q < 64 || v.tile_q > 256) return "tile_q must be 64 x (1 to 4 consumers)";
  if (v.tile_kv % 16 != 0 || v.tile_kv < 32 || v.tile_kv > 256) return "tile_kv must be a multiple of 16, 32 to 256";
  if (v.stages < 2) return "the K and V rings need at least 2 stages";
  if (fwd_smem_bytes(v) > smem_bytes_per_cta) return "the tiles do not fit the shared memory of one CTA";
  return nullptr;
}

}  // namespace froghopper
