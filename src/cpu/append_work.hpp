// SPDX-License-Identifier: Apache-2.0
// cpu: a piece of an append problem for one thread: the heads of one new row of q, k or v. Known to the side of the
// threads (append.cpp) and to the vector side (append_rows.cpp).
#pragma once
#include <cstddef>
#include <cstdint>

#include "contract/types.h"

namespace froghopper::cpu {

struct HeadsToAppend {
  Dtype from, to;
  int heads, dim;
  const void* source;
  void* destination;
  int64_t stride_from, stride_to;  // elements from head to head
  bool norm;
  float epsilon;
  const float* weights;  // of the norm; null: all 1
  int rotary_dim;        // 0: not rotated
  bool interleaved;
  const float *cos, *sin;  // of its position
  float* scales;           // 8-bit `to`: what rows are divided by
  int64_t stride_scales;   // from head to head
  bool own_scales;         // they are made of each row's largest value, and written
  float* scratch;          // dim floats, 64-byte aligned
};

// Of a thread: a row, and cos and sin of its position.
constexpr size_t append_floats(int dim) { return 2 * static_cast<size_t>(dim); }

}  // namespace froghopper::cpu
