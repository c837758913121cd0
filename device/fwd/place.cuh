// SPDX-License-Identifier: Apache-2.0
// device/fwd: where the rows of one work lie, for the copy engine. The maps are made in src/runtime/tensor_map.cpp.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "device/ptx/tma.cuh"

namespace froghopper::fwd {

// Ragged maps have no end of their own: the coordinate below the end, 2^30 - length + row, runs out of bounds exactly
// where the sequence does, and the last two coordinates put the sequence's first row where it is.
template <FwdVariant V>
struct Place {
  int head, batch;                // fixed lengths
  int first_units, unit, length;  // ragged: first row and the step of a row in units of the map, rows that count

  template <class Tile>
  __device__ void load(Tile& tile, const TmaMap& map, ptx::u64* full, int row) const {
    constexpr int end = 1 << 30;
    for (int i = 0; i < Tile::panels; ++i) {
      const int col = i * Tile::panel_cols;
      if constexpr (V.ragged)
        ptx::tma_load_5d(tile.panel(i), &map, full, col, end - length + row, head, first_units + length * unit, end);
      else
        ptx::tma_load_4d(tile.panel(i), &map, full, col, row, head, batch);
    }
  }
};

}  // namespace froghopper::fwd
