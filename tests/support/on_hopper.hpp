// SPDX-License-Identifier: Apache-2.0
// tests: a case on a Hopper GPU, where one is.
#pragma once
#include <gtest/gtest.h>

#include "src/plan/plan.hpp"
#include "tests/support/case_lines.hpp"

namespace froghopper::test {

// For the end of a test's body: what it skips ends here.
inline void expect_right_on_hopper(const check::Case& c) {
  if (const auto here = check::hopper_is_here(); !here) GTEST_SKIP() << here.failure().text;
  const auto out = check::check_case(c, check::Backend::hopper);
  // Refused, and nothing was written, which check_case has looked at.
  if (c.problem.dtype == Dtype::f32) {
    ASSERT_FALSE(out) << "fp32 is refused";
    EXPECT_EQ(out.failure().status, FH_UNSUPPORTED) << out.failure().text;
    return;
  }
  // The same problems are planned on every Hopper GPU; what else is not supported is what the judge says of gradients.
  const auto plan = make_gpu_plan(c.problem, known_device("h200"));
  // Of 8-bit types the kernels compute a part, and of gradients nothing with more than 256 columns.
  const bool too_wide = c.problem.backward() && (c.problem.dim_qk > 256 || c.problem.dim_v > 256);
  // So is what a case keeps for the CPU.
  if (!plan && (is_8_bit(c.problem.dtype_kv) || too_wide || c.only == "cpu")) {
    ASSERT_FALSE(out) << "it is refused for an h200";
    EXPECT_EQ(out.failure().status, FH_UNSUPPORTED) << out.failure().text;
    return;
  }
  ASSERT_TRUE(plan) << c.line() << "\n" << plan.failure().text;
  const bool no_judge = c.problem.backward() && !out && out.failure().status == FH_UNSUPPORTED;
  if (no_judge) GTEST_SKIP() << out.failure().text;
  // What is no preset is compiled at run time, by a compiler that not every machine has.
  const bool no_compiler = !out && out.failure().text.find("no usable libnvrtc") != std::string::npos;
  if (no_compiler) GTEST_SKIP() << out.failure().text;
  if (c.only == "cpu") {
    ASSERT_FALSE(out) << "strides that are no multiples of 16 bytes are refused";
    EXPECT_EQ(out.failure().status, FH_INVALID_TENSOR) << out.failure().text;
    return;
  }
  ASSERT_TRUE(out) << c.line() << "\n" << out.failure().text;
  EXPECT_TRUE(out->passed) << describe(c, *out);
}

}  // namespace froghopper::test
