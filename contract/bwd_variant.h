// SPDX-License-Identifier: Apache-2.0
// contract: the compile-time half of the agreement between planner (host) and the kernels of the backward pass
// (device). Two variants are equal if and only if they compile to the same machine code.
#pragma once
#include "contract/fields.h"
#include "contract/types.h"

namespace froghopper {

// The kernel that computes grad_k, grad_v and pieces of grad_q.
struct BwdVariant {
  Dtype dtype;  // of Q, K, V and grad_o; picks the wgmma type
  Dims dims;    // head dims of the tiles: they size the register tiles and shared memory
  Tiles tiles;  // query rows of an iteration; key and value rows of a work item; stages of the Q and grad_o rings
  Mask mask;    // picks the iterations: one without a mask has no compare
  bool ragged;  // sequences have lengths of their own (varlen, seqused), read on the device
  ScoreMods score_mods;
  bool deterministic;  // CTAs add to a tile of grad_q in the order of their keys: bit-equal from run to run

  bool operator==(const BwdVariant&) const = default;
};

template <class Variant, class Visit>
constexpr void visit_fields(Variant& v, Visit&& visit) requires same<const Variant, const BwdVariant> {
  visit("", v.dtype);
  visit("d", v.dims.qk);
  visit("dv", v.dims.v, v.dims.qk);
  visit("q", v.tiles.q);
  visit("kv", v.tiles.kv);
  visit("s", v.tiles.stages);
  visit("", v.mask);
  visit("ragged", v.ragged);
  visit("softcap", v.score_mods.softcap);
  visit("det", v.deterministic);
  visit("alibi", v.score_mods.alibi);
}

// What comes before it: one value for every query row, and zeros to add to.
struct DeltaVariant {
  Dtype dtype;
  int dim_v;  // head dim, rounded up to 64, 128, 256 or 512: a lane takes 8 columns of a row, or twice 8
  bool ragged;
  bool gated;  // O is multiplied by the sigmoid of a tensor: grad_o is too, for the next kernel
  bool operator==(const DeltaVariant&) const = default;
};

template <class Variant, class Visit>
constexpr void visit_fields(Variant& v, Visit&& visit) requires same<const Variant, const DeltaVariant> {
  visit("", v.dtype);
  visit("dv", v.dim_v);
  visit("ragged", v.ragged);
  visit("gate", v.gated);
}

// What comes after it: pieces of grad_q -> rows of grad_q.
struct GradQVariant {
  Dtype dtype;
  int dim_qk;  // head dim of the tiles
  int tile_q;
  bool ragged;
  bool operator==(const GradQVariant&) const = default;
};

template <class Variant, class Visit>
constexpr void visit_fields(Variant& v, Visit&& visit) requires same<const Variant, const GradQVariant> {
  visit("", v.dtype);
  visit("d", v.dim_qk);
  visit("q", v.tile_q);
  visit("ragged", v.ragged);
}

// Up to head dim 128 a consumer holds grad_k and grad_v of its 64 keys (device/bwd/backward.cuh). Above that they do
// not fit its registers: a cluster of two CTAs shares an item, and in each CTA one consumer has grad_v and the other
// has grad_k of the same 64 keys (device/bwd/by_keys.cuh).
constexpr bool bwd_has_two_ctas(BwdVariant v) { return v.dims.qk > 128; }

// Up to head dim 256 the two CTAs divide a kv tile by keys, an M tile of 64 keys each: each adds half of the columns of
// grad_q, for the keys of both. Above head dim 256 not even one gradient of 64 keys fits a consumer, so the two CTAs
// divide the columns: they have the same 64 keys, and each has half of the columns of all tensors
// (device/bwd/by_columns.cuh).
constexpr bool bwd_by_columns(BwdVariant v) { return v.dims.qk > 256; }
constexpr int bwd_ctas(BwdVariant v) { return bwd_has_two_ctas(v) ? 2 : 1; }
constexpr int bwd_keys_of_cta(BwdVariant v) { return bwd_by_columns(v) ? v.tiles.kv : v.tiles.kv / bwd_ctas(v); }
constexpr Dims bwd_dims_of_cta(BwdVariant v) {
  return bwd_by_columns(v) ? Dims{v.dims.qk / 2, v.dims.v / 2} : v.dims;
}

// The order in which lse and delta of a tile's rows lie, index_of_row. Float4-interleaved they take half as many loads
// of shared memory, which wgmma reads at the same time. Tiles of 128 rows have no registers for it; kernels of two CTAs
// had 0.975 to 0.995 of their speed.
constexpr bool bwd_rows_float4_interleaved(BwdVariant v) {
  return v.tiles.q == m_tile_rows && !bwd_has_two_ctas(v) && !v.deterministic;
}

constexpr int bwd_consumers = 2;
constexpr int bwd_threads = warpgroup * (1 + bwd_consumers);  // one warpgroup of producers

// grad_q of a q tile is summed in fp32 in the workspace, by pieces of 64 rows and 64 columns.
constexpr int dq_piece = m_tile_rows * panel_columns;  // floats
constexpr int dq_pieces(int tile_q, int dim_qk) { return tile_q / m_tile_rows * panels(dim_qk); }
constexpr int dq_floats(int tile_q, int dim_qk) { return dq_pieces(tile_q, dim_qk) * dq_piece; }

// Shared memory in bytes.
constexpr int bwd_tile_bytes(int rows, int dim) { return rows * panels(dim) * panel_row_bytes; }
constexpr int bwd_ds_stages = 2;
constexpr int bwd_row_bytes(BwdVariant v) {  // lse and delta of an iteration's rows, aligned as a tile is
  const int bytes = 2 * v.tiles.q * static_cast<int>(sizeof(float));
  return v.tiles.stages * ((bytes + 127) / 128 * 128);
}
// K of the other CTA's keys, a panel for each consumer's columns of grad_q.
constexpr int bwd_peer_bytes(BwdVariant v) {
  const bool by_keys = bwd_has_two_ctas(v) && !bwd_by_columns(v);
  return by_keys ? bwd_tile_bytes(bwd_keys_of_cta(v), bwd_consumers * panel_columns) : 0;
}
// grad_o comes in slices of its columns: one, or above head dim 192 two. Two slices share three stages: the first slice
// of the next iteration is loaded ahead, and its second one when this iteration's first slice has been read, which is
// in the middle of the iteration.
constexpr int bwd_grad_o_slices(BwdVariant v) { return bwd_dims_of_cta(v).v > 192 ? 2 : 1; }
constexpr int bwd_grad_o_stages(BwdVariant v) { return bwd_grad_o_slices(v) == 2 ? 3 : v.tiles.stages; }
// A stage of dS. Where two CTAs have different keys it has dS of both, and before that it holds, in fp32, the weights
// that one consumer hands to the other. Where CTAs have the same keys there is one dS.
constexpr int bwd_ds_bytes(BwdVariant v) {
  return (bwd_by_columns(v) ? 1 : bwd_ctas(v)) * bwd_tile_bytes(v.tiles.q, bwd_keys_of_cta(v));
}
// What the other CTA's columns give of S and of dP, in fp32.
constexpr int bwd_exchange_bytes(BwdVariant v) {
  return bwd_by_columns(v) ? 2 * v.tiles.q * v.tiles.kv * static_cast<int>(sizeof(float)) : 0;
}
// Iterations, work items and barriers, rounded up. The kernels assert that sizeof(Smem) is bwd_smem_bytes().
constexpr int bwd_barrier_bytes = 640;
// With two stages, K and V of the next item are loaded while this one is computed; but the stage has to be chosen by
// uniform instructions before each product. Measured on an H200: that pays off at head dim 64 under a mask (1 to 3 %
// faster), not without a mask, at larger head dims or in deterministic variants (2 to 6 % slower).
constexpr int bwd_kv_stages(BwdVariant v) {
  return v.dims.qk <= 64 && v.mask != Mask::none && !v.deterministic ? 2 : 1;
}
constexpr int bwd_smem_bytes(BwdVariant v) {
  const int keys = bwd_keys_of_cta(v);
  const Dims dims = bwd_dims_of_cta(v);
  const int k_and_v = bwd_tile_bytes(keys, dims.qk) + bwd_peer_bytes(v) + bwd_tile_bytes(keys, dims.v);
  const int all = bwd_kv_stages(v) * k_and_v + v.tiles.stages * bwd_tile_bytes(v.tiles.q, dims.qk) +
                  bwd_grad_o_stages(v) * bwd_tile_bytes(v.tiles.q, dims.v / bwd_grad_o_slices(v)) +
                  bwd_ds_stages * bwd_ds_bytes(v) + bwd_exchange_bytes(v) + bwd_row_bytes(v) + bwd_barrier_bytes;
  return (all + 1023) / 1024 * 1024;  // tiles are aligned to it, and so is what holds them
}

constexpr const char* why_invalid(BwdVariant v) {
  if (v.dtype != Dtype::f16 && v.dtype != Dtype::bf16) return "wgmma takes f16 and bf16 here, not f32";
  if (v.dims.qk % 32 != 0 || v.dims.qk < 64 || v.dims.qk > 512) return "dim_qk of the tile must be 64, 96, ... 512";
  if (v.dims.v % 32 != 0 || v.dims.v < 64 || v.dims.v > v.dims.qk)
    return "dim_v of the tile must be 64, 96, ... up to its dim_qk";
  if (v.tiles.stages < 2 || v.tiles.stages > 4) return "the Q and grad_o rings have 2 to 4 stages";
  if (bwd_by_columns(v)) {
    if ((v.dims.qk != 384 && v.dims.qk != 512) || v.dims.v != v.dims.qk)
      return "tiles above head dim 256 have head dim 384 or 512, and v has the same";
    if (v.tiles.q != m_tile_rows || v.tiles.kv != m_tile_rows) return "tiles above head dim 256 have 64 rows";
  } else if (bwd_has_two_ctas(v)) {
    if (v.dims.qk != 192 && v.dims.qk != 256) return "tiles above head dim 128 have head dim 192 or 256";
    if (v.dims.v > 192 && v.dims.v != 256) return "tiles of v above head dim 192 have head dim 256";
    if (v.tiles.q != m_tile_rows) return "tiles of q have 64 rows above head dim 128";
    if (v.tiles.kv != 2 * m_tile_rows) return "tiles of k and v have 64 rows for each of two CTAs";
  } else {
    if (v.tiles.kv != bwd_consumers * m_tile_rows) return "tiles of k and v have 64 rows for each of two consumers";
    if (v.tiles.q != (v.dims.qk == 64 ? 128 : 64)) return "tiles of q have 128 rows at head dim 64, else 64 rows";
  }
  if (bwd_smem_bytes(v) > smem_bytes_per_cta) return "the tiles do not fit the shared memory of one CTA";
  return nullptr;
}

constexpr int delta_threads = 256, grad_q_threads = 256;
constexpr int delta_smem_bytes = delta_threads / 32 * static_cast<int>(sizeof(float));

constexpr const char* why_invalid(DeltaVariant v) {
  if (v.dtype != Dtype::f16 && v.dtype != Dtype::bf16) return "rows are f16 or bf16 here, not f32";
  if (v.dim_v != 64 && v.dim_v != 128 && v.dim_v != 256 && v.dim_v != 512)
    return "the head dim is 64, 128, 256 or 512";
  return nullptr;
}
// Pieces that are in shared memory at once: more than four would leave an SM few CTAs.
constexpr int grad_q_pieces(GradQVariant v) {
  const int pieces = dq_pieces(v.tile_q, v.dim_qk);
  return pieces > 4 ? pieces / 2 : pieces;
}
constexpr int grad_q_smem_bytes(GradQVariant v) {
  return grad_q_pieces(v) * dq_piece * static_cast<int>(sizeof(float));
}
constexpr const char* why_invalid(GradQVariant v) {
  if (v.dtype != Dtype::f16 && v.dtype != Dtype::bf16) return "rows are f16 or bf16 here, not f32";
  if (v.dim_qk % 32 != 0 || v.dim_qk < 64 || v.dim_qk > 512) return "dim_qk of the tile must be 64, 96, ... 512";
  if (v.tile_q != 64 && v.tile_q != 128) return "tiles of q have 64 or 128 rows";
  return nullptr;
}

}  // namespace froghopper
