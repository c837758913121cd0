// SPDX-License-Identifier: Apache-2.0
// device/attn: where the rows of one sequence and head lie, for TMA. The maps are made in
// src/runtime/tensor_map.cpp.
#pragma once
#include "contract/parts.h"
#include "contract/types.h"
#include "device/ptx/tma.cuh"
#include "device/ptx/types.cuh"

namespace froghopper::attn {

// Ragged maps have no end of their own: the coordinate below the end, map_rows - length + row, runs out of bounds
// exactly where the sequence does, and the last two coordinates put the sequence's first row where it is.
template <bool Ragged>
struct Place {
  int head, batch;
  // Ragged, in granules of the map (MapGranules, contract/parts.h): where the first row lies, and how far the next one
  // is.
  int first, row_granules;
  int length;  // rows that count

  // cu: where sequences begin in the packed tensor, this one at row `first_row`; null: not packed.
  __device__ Place(int head, int sequence, const int* cu, int first_row, int length, const MapGranules& granules)
      : head(head),
        batch(sequence),
        first(cu ? first_row * granules.row : sequence * granules.batch),
        row_granules(granules.row),
        length(length) {}

  // The tile, from a row and a column of the sequence on.
  template <class Tile>
  __device__ void load(Tile& tile, const TmaMap& map, ptx::u64* full, int row, int col = 0) const {
    for (int i = 0; i < Tile::panels; ++i) load_panel(tile, i, map, full, row, col + i * Tile::panel_columns);
  }

  // As many rows as a box of the map has, from a shared address to a row and a column on; what is beyond the sequence's
  // end is not written.
  __device__ void store(ptx::u32 from, const TmaMap& map, int row, int col) const {
    if constexpr (Ragged)
      ptx::tma_store_5d(from, &map, col, map_rows - length + row, head, first + length * row_granules, map_rows);
    else
      ptx::tma_store_4d(from, &map, col, row, head, batch);
  }

  // Panel i of it alone.
  template <class Tile>
  __device__ void load_panel(Tile& tile, int i, const TmaMap& map, ptx::u64* full, int row, int col) const {
    // The host makes boxes of the contract's panels.
    static_assert(Tile::panel_row_bytes == panel_row_bytes);
    if constexpr (Ragged)
      ptx::tma_load_5d(tile.panel(i), &map, full, col, map_rows - length + row, head, first + length * row_granules,
                       map_rows);
    else
      ptx::tma_load_4d(tile.panel(i), &map, full, col, row, head, batch);
  }
};

}  // namespace froghopper::attn
