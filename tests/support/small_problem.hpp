// SPDX-License-Identifier: Apache-2.0
// tests: a description with nothing but its shape.
#pragma once
#include "src/problem/problem.hpp"

namespace froghopper::test {

inline fh_problem small_problem() {
  fh_problem p = fh_problem_init();
  p.batch = 2, p.heads_q = 8, p.heads_kv = 2, p.seq_q = 100, p.seq_kv = 200, p.dim_qk = 128, p.dim_v = 128;
  return p;
}

}  // namespace froghopper::test
