// SPDX-License-Identifier: Apache-2.0
// contract: the path of K and V from memory to the products of the forward kernel.
#pragma once
#include "contract/types.h"

namespace froghopper {

// K and V as the problem has them, and what is done to them before the forward kernel.
struct FwdKv {
  Dtype dtype;        // in memory: that of Q, or with a 16-bit one an 8-bit one
  bool dequantised;   // an earlier launch has made 8-bit values those of Q's type: device/fwd/dequantise.cuh
  bool blocks;        // then with scales of blocks of rows or of V's columns: device/attn/tile_softmax.cuh
  bool smooth;        // 8-bit K and V lack each column's mean over their sequence; the epilogue adds it: means.cuh
  KvLayout layout;    // device/fwd/kv_source.cuh
  bool token_scales;  // each row of K and of V has a scale: device/fwd/token_scales.cuh

  bool operator==(const FwdKv&) const = default;
};

// What the kernel does with K and V.
enum class KvPath : unsigned char {
  direct,   // multiplies 16-bit values as they are
  fp8_mma,  // multiplies 8-bit values as they are; each tile may have a scale: device/fwd/fp8_producers.cuh
  // Makes f16 of 8-bit values between memory and wgmma, and Q is f16 too; each tile may have a scale:
  // device/fwd/dequantising_producers.cuh.
  dequantises_on_load,
  dequantised_one_scale,  // multiplies what an earlier launch has dequantised; all tiles of an item have one scale
  dequantised_blocks      // likewise, but each tile has its own scale
};

// The only place where types and options become a path. With PackGQA the speed of memory counts and not that of
// products, so 8-bit Q is dequantised too.
constexpr KvPath kv_path(Dtype q, const FwdKv& kv, bool pack_gqa) {
  if (!is_8_bit(kv.dtype)) return KvPath::direct;
  if (kv.dequantised) return kv.blocks ? KvPath::dequantised_blocks : KvPath::dequantised_one_scale;
  return pack_gqa || !is_8_bit(q) ? KvPath::dequantises_on_load : KvPath::fp8_mma;
}

constexpr bool is_dequantised_by_earlier_launch(KvPath p) {
  return p == KvPath::dequantised_one_scale || p == KvPath::dequantised_blocks;
}
constexpr bool has_scales(KvPath p) { return p != KvPath::direct; }  // scores and values are multiplied by some
// Scores of a work item have one, in addition to that of a tile's keys.
constexpr bool has_item_scale(KvPath p) { return has_scales(p) && p != KvPath::dequantised_blocks; }
constexpr bool reads_8_bit(KvPath p) { return p == KvPath::fp8_mma || p == KvPath::dequantises_on_load; }
constexpr int element_bytes(KvPath p) { return p == KvPath::fp8_mma ? 1 : 2; }  // of what is multiplied

}  // namespace froghopper
