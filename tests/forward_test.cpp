// SPDX-License-Identifier: Apache-2.0
// tests: every line of tests/cases, on the CPU and, where one is, on a Hopper GPU. A result is right if it is at most
// twice as far from the exact answer as plain loops in the same precision are, plus one rounding; every row of o and
// lse is written, and nothing else is. Tests are named by file and line.
#include <gtest/gtest.h>

#include "tests/support/case_lines.hpp"
#include "tests/support/on_hopper.hpp"

namespace froghopper::check {
namespace {

using test::Line;

class Forward : public testing::TestWithParam<Line> {
 protected:
  void SetUp() override {
    const auto parsed = parse_case(GetParam().text);
    ASSERT_TRUE(parsed) << GetParam().text << "\n" << parsed.failure().text;
    case_ = *parsed;
  }
  Case case_;
};

TEST_P(Forward, on_cpu) {
  if (case_.only == "gpu") GTEST_SKIP() << "only for a GPU: it would take a CPU too long";
  const auto out = check_case(case_, Backend::cpu);
  ASSERT_TRUE(out) << GetParam().text << "\n" << out.failure().text;
  EXPECT_TRUE(out->passed) << test::describe(case_, *out);
}

TEST_P(Forward, on_hopper) { test::expect_right_on_hopper(case_); }

INSTANTIATE_TEST_SUITE_P(Cases, Forward, testing::ValuesIn(test::case_lines(/*backward=*/false)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace froghopper::check
