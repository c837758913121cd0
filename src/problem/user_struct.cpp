// SPDX-License-Identifier: Apache-2.0
// problem: Problem -> the user's description, which Problem::from (validate.cpp) reads back as the same problem.
#include "src/problem/options.hpp"

namespace froghopper {

fh_problem Problem::user_struct() const {
  fh_problem p = fh_problem_init();
  copy_options(*this, p);
  p.causal = causal();
  if (p.scale == 0) p.scale = -0.0f;  // which is zero there; 0 is the default
  if (dtype_kv == dtype) p.dtype_kv = FH_USUAL;
  if (dtype_o == usual_output(dtype, op == FH_FORWARD && accumulate)) p.dtype_o = FH_USUAL;
  if (rotary_dim == 0 || dtype_rotary == dtype) p.dtype_rotary = FH_USUAL;
  if (!norm || dtype_norm == dtype) p.dtype_norm = FH_USUAL;
  return p;
}

}  // namespace froghopper
