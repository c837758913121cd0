// SPDX-License-Identifier: Apache-2.0
// device/fwd: which scales go with an item's queries and with the keys and values of its tiles.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "contract/shared_params.h"
#include "contract/types.h"
#include "device/attn/scaled_softmax.cuh"
#include "device/attn/tile_scales.cuh"
#include "device/fwd/rows.cuh"
#include "device/fwd/work_item.cuh"

namespace froghopper::fwd {

// The scale of the block that this row is in.
__device__ inline float scale_of_row(const ScaleValues& of, int sequence, int head, int row) {
  return __ldg(of.data + sequence * of.batch + head * of.head + row / scale_block * of.block);
}

// 1 where K and V are dequantised on load: 16-bit queries have no scale, and the scales of 8-bit ones, which become
// f16, are in Consumer::q_rows (queries_in_f16.cuh).
template <FwdVariant V>
__device__ float scale_of_queries(const FwdParams& params, const WorkItem& item, int row) {
  if constexpr (fwd_dequantises_on_load(V)) return 1.f;
  return scale_of_row(params.eight_bit.q, item.sequence, item.head, row);
}
// That of a kv tile's keys, or of its values. The tile of rows that attend to no key lies above all keys: the scale
// there is padding, so it takes that of the highest key. A sequence without keys has no scale that may be read. Scales
// of V's columns come to O at its end.
template <FwdVariant V>
__device__ float scale_of_tile(const FwdParams& params, const ScaleValues& of, const WorkItem& item, int kv_tile) {
  const int keys = V.ragged ? item.lengths.seq_kv : params.seq_kv;
  if (keys == 0) return 1.f;
  return scale_of_row(of, item.sequence, kv_head<V>(params, item), min(kv_tile * V.tiles.kv, keys - 1));
}
template <FwdVariant V>
__device__ float scale_of_keys(const FwdParams& params, const WorkItem& item, int kv_tile) {
  return scale_of_tile<V>(params, params.eight_bit.k, item, kv_tile);
}
// What the scores of an item's M tile are multiplied by, except for the scale of a tile's keys where each has its own.
template <FwdVariant V>
__device__ float scale_of_scores(const FwdParams& params, const WorkItem& item, const MTile<V>& m_tile) {
  if constexpr (fwd_dequantised_by_earlier_launch(V))
    return attn::positive_product(params.scale_log2, scale_of_keys<V>(params, item, item.kv.first()));
  const int row = min(m_tile.first_row(), m_tile.seq_q() - 1);  // an M tile may have no rows
  return (V.score_mods.softcap ? params.cap_scale : params.scale_log2) * scale_of_queries<V>(params, item, row);
}
template <FwdVariant V>
__device__ float scale_of_values(const FwdParams& params, const WorkItem& item, int kv_tile) {
  return params.eight_bit.v_columns ? 1.f : scale_of_tile<V>(params, params.eight_bit.v, item, kv_tile);
}
// Where an earlier launch has prepared the scales of blocks (BlockScales, fwd_block_scales). Each Consumer reads its
// own, a tile ahead: from shared memory they would wait behind what wgmma reads, and P V behind them.
template <FwdVariant V>
struct ScalesOfBlocks {
  int first_entry;  // of the sequence and head; it is of no block: for rows that attend to no key
  attn::TileScales next;

  // For the item's tile kv_tile, which lies above all keys where a row attends to none.
  __device__ void begin(const FwdParams& params, const WorkItem& item, int kv_tile) {
    if (item.is_end()) return;
    first_entry = first_entry_of(params, item);
    const int keys = V.ragged ? item.lengths.seq_kv : params.seq_kv;
    read(params, min(kv_tile, (keys + V.tiles.kv - 1) / V.tiles.kv - 1));
  }
  // The tile visited next may be -1, after the one with the lowest keys: that takes the first entry, which is of no
  // block. There are entries for params.seq_kv keys (dequantise.cuh). A ragged sequence, whose length is in the
  // device's memory, may be longer against the rules: its other keys take the last entry, for what follows is the next
  // head's.
  __device__ __forceinline__ void read(const FwdParams& params, int kv_tile) {
    constexpr int tiles_per_block = scale_block / V.tiles.kv;
    int number = (kv_tile + tiles_per_block) / tiles_per_block;
    if constexpr (V.ragged) number = min(number, params.block_scales.head - 1);
    next = entry(params, first_entry + number);
  }
  static __device__ float o_scale_of(const FwdParams& params, const WorkItem& item) {
    return entry(params, first_entry_of(params, item)).k;
  }

 private:
  static __device__ int first_entry_of(const FwdParams& params, const WorkItem& item) {
    return item.sequence * params.block_scales.batch + kv_head<V>(params, item) * params.block_scales.head;
  }
  static __device__ __forceinline__ attn::TileScales entry(const FwdParams& params, int number) {
    const float2 scales = __ldcg(reinterpret_cast<const float2*>(params.block_scales.data) + number);
    return {scales.x, scales.y};
  }
};

// In other variants.
struct NoScalesOfBlocks {
  __device__ void begin(const FwdParams&, const WorkItem&, int) {}
  __device__ void read(const FwdParams&, int) {}
};

// The scale of O: that of V of the item's first tile; where an earlier launch has prepared V's scales, the largest.
template <FwdVariant V>
__device__ float o_scale_of(const FwdParams& params, const WorkItem& item) {
  if constexpr (fwd_block_scales(V)) return ScalesOfBlocks<V>::o_scale_of(params, item);
  return scale_of_values<V>(params, item, item.kv.first());
}

// What a tile's values are multiplied by, read a tile ahead: the answer comes while there is no room.
template <FwdVariant V>
struct ScalesAhead {
  float o_scale, k, v;

  __device__ ScalesAhead(const FwdParams& params, const WorkItem& item, int first_tile)
      : o_scale(o_scale_of<V>(params, item)), k(scale_of_keys<V>(params, item, first_tile)), v(o_scale) {}
  __device__ attn::TileScales of_tile() const { return attn::TileScales::of(k, v, o_scale); }
  __device__ void read(const FwdParams& params, const WorkItem& item, int kv_tile) {
    k = scale_of_keys<V>(params, item, kv_tile);
    v = scale_of_values<V>(params, item, kv_tile);
  }
};

}  // namespace froghopper::fwd
