// SPDX-License-Identifier: Apache-2.0
// tests: what the lists of tests/cases promise. The cases themselves: forward_test.cpp, backward_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/case_lines.hpp"

namespace froghopper::check {
namespace {

TEST(Cases, say_why_they_are_there) {
  for (const bool backward : {false, true}) {
    for (const test::Line& line : test::case_lines(backward)) {
      const auto parsed = parse_case(line.text);
      ASSERT_TRUE(parsed) << line.name << ": " << line.text << "\n" << parsed.failure().text;
      EXPECT_FALSE(parsed->reason.empty()) << line.name << ": " << line.text << "\nends with \"# why this case\"";
    }
  }
}

// The lists cover what they promise; a line that is deleted by accident is missed here.
TEST(Cases, have_every_head_dim_in_both_16_bit_types) {
  const auto cases = read_cases(FROGHOPPER_SOURCE_DIR "/tests/cases/head_dims.txt");
  ASSERT_TRUE(cases) << cases.failure().text;
  for (const Dtype dtype : {Dtype::f16, Dtype::bf16}) {
    for (int64_t dim = 8; dim <= 256; dim += 8) {
      EXPECT_TRUE(std::ranges::any_of(*cases, [&](const Case& c) {
        return c.problem.dtype == dtype && c.problem.dim_qk == dim && c.problem.dim_v == dim;
      })) << dim;
    }
  }
}

}  // namespace
}  // namespace froghopper::check
