// SPDX-License-Identifier: Apache-2.0
// cpu: a work item of the quantiser: a tile, which is up to 128 rows of one head of q, k or v. quantise.cpp makes work
// items for threads, and quantise_rows.cpp computes them with vectors.
#pragma once
#include <cstddef>
#include <cstdint>

#include "contract/quantise.h"

namespace froghopper::cpu {

struct RowsToQuantise {
  Dtype from, to;
  int dim, rows;
  const void* source;
  void* destination;
  int64_t stride_from, stride_to;  // elements from row to row
  int block;                       // columns of a rotation, contract/quantise.h; 0: rows are not rotated
  const float* factors;            // by column: its sign / sqrt(block)
  float* scratch;                  // quantise_floats of them, 64-byte aligned
  const float* mean;               // by column, subtracted before the rotation; null: none
};

// The rotated rows as floats, and one row before and during its rotation.
constexpr size_t quantise_floats(int dim) { return static_cast<size_t>(quantise_rows + 2) * dim; }

}  // namespace froghopper::cpu
