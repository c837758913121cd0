// SPDX-License-Identifier: Apache-2.0
// device/fwd: which query rows of which heads a tile and a Consumer's M tile of it have, and what they attend to.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "contract/split.h"
#include "contract/tile_sequence.h"
#include "contract/types.h"
#include "device/attn/mask.cuh"
#include "device/attn/softmax.cuh"
#include "device/fwd/work_item.cuh"
#include "device/tile/accum.cuh"

namespace froghopper::fwd {

// An M tile of an item. Rows are those of a sequence.
template <FwdVariant V>
struct MTile {
  const FwdParams& params;
  const WorkItem& item;
  int m_tile_index;  // its index among the M tiles of the q tile

  __device__ int seq_q() const { return V.ragged ? item.lengths.seq_q : params.seq_q; }
  __device__ int seq_kv() const { return V.ragged ? item.lengths.seq_kv : params.seq_kv; }
  __device__ MaskRange<V> mask_range() const { return MaskRange<V>(params.mask, seq_q(), seq_kv(), params.chunk); }

  __device__ int first_row() const { return item.q_tile * rows_of_tile<V>(params) + m_tile_index * m_tile_rows; }
  // It may lie beyond the sequence's end.
  __device__ int last_row() const { return first_row() + (V.pack_gqa ? params.pack_gqa.rows : m_tile_rows) - 1; }
  // This thread's two rows, in the sequence. In a PackGQA tile they may be of two heads: at() tells of which.
  __device__ attn::Rows rows() const {
    const int row = tile::thread_row();
    if constexpr (V.pack_gqa)
      return {first_row() + row % params.pack_gqa.rows, first_row() + (row + 8) % params.pack_gqa.rows};
    else
      return {first_row() + row, first_row() + row + 8};
  }

  __device__ __forceinline__ void mask_out(tile::Accum<V.tiles.kv>& s, int kv_tile) const {
    mask_range().mask_out(s, rows(), kv_tile);
  }

  // By how much exact_step() shall put the row max above the maximum so far: after this tile, rows under a mask may
  // have attended to few keys, whose scores later ones are likely to exceed (OnlineSoftmax::headroom).
  template <class Softmax>
  __device__ __forceinline__ attn::RowPair headroom(int kv_tile) const {
    if constexpr (V.mask == Mask::none || V.batch_invariant) return {0.f, 0.f};
    const int begin = kv_tile * V.tiles.kv;
    const auto of = [&](int row) {
      return mask_range().end(row) - begin < Softmax::few_keys ? Softmax::headroom : 0.f;
    };
    return {of(rows().top), of(rows().bottom)};
  }

  // The row of a head that lies in row `row_in_m_tile` of the M tile.
  struct Row {
    int head, row;
    bool exists;
  };
  __device__ Row at(int row_in_m_tile) const {
    if constexpr (V.pack_gqa) {
      const PackGqaParams& pack = params.pack_gqa;
      const int head_in_tile = row_in_m_tile / pack.rows, row = first_row() + row_in_m_tile % pack.rows;
      return {item.head * pack.heads + head_in_tile, row, head_in_tile < pack.heads && row < seq_q()};
    }
    return {item.head, first_row() + row_in_m_tile, first_row() + row_in_m_tile < seq_q()};
  }

  // The first of the item's kv tiles that this M tile visits, in descending key order: the one with the highest keys
  // that it attends to; one without rows would need none but the last tile. But an M tile skips at most stages - 1
  // tiles, so it may also visit tiles of which it attends to no key, and one without rows visits all but stages - 1.
  // If it skipped more there could be a deadlock. While its Consumer waits for K of its first tile, it may still hold V
  // of the last tile of the item before, so only stages - 1 stages of v_ring are free for V of the tiles that it skips.
  // Where one role fills both rings, in the order K0 V0 K1 V1 ..., that K comes only after V of all of these. With two
  // stages:
  //   it skips K0         V0 takes the free stage, and K1 comes
  //   it skips K0 and K1  V0 takes the free stage, V1 has none until the held V is released, and K2 comes after V1
  // Where K and V have Loaders of their own, that K takes the stage of a K of an earlier item, and no M tile needs a V
  // of this item to release it. With FP8 MMAs one role loads both in that order, but V of as many more tiles as
  // stored_ring has stages can wait there.
  __device__ int first_tile() const {
    if constexpr (V.pack_gqa) return item.kv.first();  // there is no other M tile
    int first = item.kv.first();
    if constexpr (V.mask != Mask::none) first = min(first, max(0, mask_range().end(last_row()) - 1) / V.tiles.kv);
    if (first_row() >= seq_q()) first = 0;
    return max(max(first, item.kv.last()), item.kv.end - V.tiles.stages);
  }
  __device__ TileSequence<int> tiles() const { return item.kv.visited_from(first_tile()); }
  __device__ TileSequence<int> skipped() const { return item.kv.visited_before(first_tile()); }

  // Which of these tiles need a mask: those from lowest_upper_boundary_tile() on up, for the mask's upper bound, and
  // those below lowest_interior_tile(), for its lower bound. The others are interior tiles.
  __device__ __forceinline__ int lowest_upper_boundary_tile(TileSequence<int> of) const {
    return max(of.last(), mask_range().lowest_upper_boundary_tile(first_row(), V.tiles.kv));
  }
  __device__ __forceinline__ int lowest_interior_tile(TileSequence<int> of) const {
    return max(of.last(), mask_range().lowest_interior_tile(last_row(), V.tiles.kv));
  }
};

}  // namespace froghopper::fwd
