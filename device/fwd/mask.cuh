// SPDX-License-Identifier: Apache-2.0
// device/fwd: which keys a row sees, and which kv tiles that cuts. The host's twin is visible_keys
// (problem/problem.hpp).
//
// Query row r is level with key r + diagonal. It sees the keys of [begin(r), end(r)), both of which grow by one a
// row.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "device/tile/accum.cuh"
#include "device/tile/numbers.cuh"

namespace froghopper::fwd {

template <FwdVariant V>
struct Sight {
  int seq_kv;    // keys of the sequence
  int diagonal;  // 0, or seq_kv - seq_q for a mask aligned to the bottom-right corner
  int left, right;

  __device__ Sight(const FwdParams& params, int seq_q, int seq_kv)
      : seq_kv(seq_kv),
        diagonal(params.top_left ? 0 : seq_kv - seq_q),
        left(params.window_left),
        right(params.window_right) {}

  __device__ int begin(int row) const { return V.mask == Mask::window ? max(0, row + diagonal - left) : 0; }
  __device__ int end(int row) const {
    return V.mask == Mask::none ? seq_kv : min(seq_kv, row + diagonal + right + 1);
  }

  // The kv tiles [begin, end) that rows [first, last] see any of. If they see none: one tile behind the last key,
  // which TMA fills with zeros and the mask hides.
  struct Tiles {
    int begin, end;
  };
  __device__ Tiles tiles(int first, int last) const {
    const int from = begin(first) / V.tile_kv, to = (end(last) + V.tile_kv - 1) / V.tile_kv;
    const int behind = (max(1, seq_kv) + V.tile_kv - 1) / V.tile_kv;
    return end(last) > 0 && from < to ? Tiles{from, to} : Tiles{behind, behind + 1};
  }

  // Tiles at or above this one are cut by the upper bound for one of the rows from `first` on. It is the tile in
  // which row `first` ends, so every row has seen a key once it is done.
  __device__ int lowest_cut_above(int first) const { return max(0, end(first) - 1) / V.tile_kv; }
  // Tiles below this one are cut by the lower bound for one of the rows up to `last`.
  __device__ int lowest_uncut_below(int last) const { return (begin(last) + V.tile_kv - 1) / V.tile_kv; }

  // -inf for every column that a row does not see; by index, whatever the score is. row: this thread's top row.
  __device__ __forceinline__ void hide(tile::Accum<V.tile_kv>& s, int row, int kv_tile) const {
    const int col = kv_tile * V.tile_kv + tile::thread_col();
    const int end_top = end(row), end_bottom = end(row + 8);
    const int begin_top = begin(row), begin_bottom = begin(row + 8);
#pragma unroll
    for (int i = 0; i < V.tile_kv / 2; ++i) {
      const int at = col + tile::col_of(i);
      const bool hidden_above = at >= ((i & 2) ? end_bottom : end_top);
      const bool hidden_below = V.mask == Mask::window && at < ((i & 2) ? begin_bottom : begin_top);
      if (hidden_above || hidden_below) s.x[i] = -tile::inf;
    }
  }
};

}  // namespace froghopper::fwd
