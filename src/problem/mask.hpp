// SPDX-License-Identifier: Apache-2.0
// problem: which keys a query row sees.
#pragma once
#include "src/problem/problem.hpp"

namespace froghopper {

// Mask rule of one sequence with rows_q queries and rows_kv keys: query row i sees the keys of [begin, end). The rule
// itself is contract/mask.h, which the kernels use in 32 bits.
struct Visible {
  int64_t begin, end;  // begin >= end: none
};
Visible visible_keys(const Problem&, int64_t rows_q, int64_t rows_kv, int64_t row);

}  // namespace froghopper
