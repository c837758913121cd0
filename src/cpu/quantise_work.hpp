// SPDX-License-Identifier: Apache-2.0
// cpu: a piece of work of the quantiser for one thread: a tile, up to 128 rows of one head of q, k or v. Known to the
// side of the threads (quantise.cpp) and to the vector side (narrow.cpp).
#pragma once
#include <cstddef>
#include <cstdint>

#include "contract/quantise.h"

namespace froghopper::cpu {

struct RowsToNarrow {
  Dtype from, to;
  int dim, rows;
  const void* source;
  void* destination;
  int64_t stride_from, stride_to;  // elements from row to row
  int block;                       // of the rotation, contract/quantise.h; 0: rows are not rotated
  const float* factors;            // of each column: its sign / sqrt(block)
  float* scratch;                  // narrow_floats of them, 64-byte aligned
  const float* mean;               // of each column, taken out before the rotation; null: none
};

// The rows as floats, rotated; one row on its way, twice.
constexpr size_t narrow_floats(int dim) { return static_cast<size_t>(quantise_rows + 2) * dim; }

}  // namespace froghopper::cpu
