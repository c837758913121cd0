// SPDX-License-Identifier: Apache-2.0
// problem: the mask rule, by index. A window may be as wide as 64 bits allow, so no sum is formed before it is known
// to stay inside the sequence.
#include <algorithm>

#include "src/problem/problem.hpp"

namespace froghopper {

Visible visible_keys(const Problem& problem, int64_t rows_q, int64_t rows_kv, int64_t row) {
  const int64_t level = row + (problem.align == FH_BOTTOM_RIGHT ? rows_kv - rows_q : 0);  // the key beside this row
  const int64_t left = problem.window_left, right = problem.window_right;
  const int64_t begin = left == all_keys || left >= level ? 0 : level - left;
  const int64_t end = right == all_keys || right >= rows_kv - 1 - level ? rows_kv : level + right + 1;
  return {std::min(begin, rows_kv), std::max<int64_t>(end, 0)};
}

}  // namespace froghopper
