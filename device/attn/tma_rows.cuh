// SPDX-License-Identifier: Apache-2.0
// device/attn: where the rows of one sequence and head lie, for TMA. The maps are made in
// src/runtime/tensor_map.cpp.
#pragma once
#include "contract/shared_params.h"
#include "contract/types.h"
#include "device/ptx/tma.cuh"
#include "device/ptx/types.cuh"

namespace froghopper::attn {

// Maps of tensors of fixed lengths have the dimensions [batch, head, row, column], and end where the tensor does.
// Of ragged tensors, loads and stores must end at the end of the sequence, though the rows of the next one may follow
// in memory. TMA compares only coordinates with extents, so the end of every sequence is moved to the end of a
// dimension, and other dimensions bring the address back to the sequence. These maps have the dimensions
// [wrap, granule, head, row below the end, column], and the coordinates of a row are
//   column, map_rows - length + row, head, first + length row_granules, map_rows
// With s the bytes from one row to the next, g those of a granule (MapGranules, contract/shared_params.h; s =
// row_granules g) and w = 2^34 - s those of the wrap, the address is
//   base + column + (map_rows - length + row) s + head x head's stride + (first + length row_granules) g + map_rows w
// length row_granules g = length s and, as map_rows = 2^30, map_rows w = -map_rows s modulo 2^64, hence it is
//   base + column + head x head's stride + first g + row s
// where first g is the distance of the sequence's first row. Apart from the column, only the second coordinate can be
// out of bounds: exactly where row >= length, that is, beyond the end of the sequence.
template <bool Ragged>
struct TmaRows {
  int head, batch;
  int first, row_granules;  // ragged: of the first row, and from one row to the next, in granules
  int length;               // valid rows

  // cu: where sequences begin in the packed tensor, this one at row `first_row`; null: not packed.
  __device__ TmaRows(int head, int sequence, const int* cu, int first_row, int length, const MapGranules& granules)
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

  // As many rows as a box of the map has, from a shared address to a row and a column on; what is beyond the
  // sequence's end is not written.
  __device__ void store(ptx::u32 from, const TmaMap& map, int row, int col) const {
    if constexpr (Ragged)
      ptx::tma_store_5d(from, &map, col, map_rows - length + row, head, first + length * row_granules, map_rows);
    else
      ptx::tma_store_4d(from, &map, col, row, head, batch);
  }

  // Only panel i of it.
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
