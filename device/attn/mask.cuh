// SPDX-License-Identifier: Apache-2.0
// device/attn: what kernels of every kind need of attention: masks, TMA coordinates of rows, lengths, tickets, softmax.
// Knows the structs that the parameters of several kernels share (contract/shared_params.h), never all parameters of
// one kernel. This file: the mask rule of contract/mask.h, applied to a tile of scores.
#pragma once
#include "contract/mask.h"
#include "contract/shared_params.h"
#include "contract/types.h"
#include "device/tile/accum.cuh"
#include "device/tile/constants.cuh"

namespace froghopper::attn {

// The two rows of an M tile that a thread has.
struct Rows {
  int top, bottom;
};

template <Mask Kind, int TileKv>
struct MaskRange : MaskRule<Kind> {
  // Of one sequence; chunk: of that kind of mask.
  __device__ MaskRange(const MaskParams& mask, int rows, int keys, int chunk)
      : MaskRule<Kind>{keys, mask.top_left ? 0 : keys - rows, mask.left, mask.right, chunk} {}

  // -inf for every column that a row does not attend to; by index, whatever the score is.
  __device__ __forceinline__ void mask_out(tile::Accum<TileKv>& s, Rows rows, int kv_tile) const {
    const int col = kv_tile * TileKv + tile::thread_col();
    const int end_top = this->end(rows.top), end_bottom = this->end(rows.bottom);
    const int begin_top = this->begin(rows.top), begin_bottom = this->begin(rows.bottom);
#pragma unroll
    for (int i = 0; i < TileKv / 2; ++i) {
      const int at = col + tile::col_of(i);
      const bool masked_above = at >= ((i & 2) ? end_bottom : end_top);
      const bool masked_below = bounded_below(Kind) && at < ((i & 2) ? begin_bottom : begin_top);
      if (masked_above || masked_below) s.x[i] = -tile::inf;
    }
  }
};

}  // namespace froghopper::attn
