// SPDX-License-Identifier: Apache-2.0
// tests: the gradients of every line of tests/cases, on the CPU and, where one is, on a Hopper GPU. A gradient is right
// if it is at most twice as far from the exact one as plain loops in the same precision are, plus what its own sums
// cannot know better (check/compare.cpp); every row of it is written, and nothing else is. Tests are named by file and
// line.
#include <gtest/gtest.h>

#include <set>

#include "src/cpu/cpu.hpp"
#include "tests/support/case_lines.hpp"
#include "tests/support/on_hopper.hpp"

namespace froghopper::check {
namespace {

using test::Line;

class Backward : public testing::TestWithParam<Line> {
 protected:
  void SetUp() override {
    const auto parsed = parse_case(GetParam().text);
    ASSERT_TRUE(parsed) << GetParam().text << "\n" << parsed.failure().text;
    case_ = *parsed;
    if (case_.problem.backward()) return;
    case_.problem.op = FH_BACKWARD;
    // Five products instead of two, and what is added up besides: the oracle takes ten times as long.
    const Problem& p = case_.problem;
    const double of_a_head = double(p.seq_q) * double(p.seq_kv) * double(p.dim_qk + p.dim_v);
    case_.sample_rows |= of_a_head * double(p.batch) * double(p.heads_q) > 4e8;
    long_ = case_.sample_rows && of_a_head * double(p.heads_q / p.heads_kv) > 1.5e8;
  }
  Case case_;
  bool long_ = false;  // a key head takes the oracle more than half a second, and there are many such cases
};

TEST_P(Backward, on_cpu) {
  if (case_.only == "gpu" || long_) GTEST_SKIP() << "only for a GPU: it would take a CPU too long";
  const auto plan = cpu::plan(case_.problem);
  ASSERT_TRUE(plan) << plan.failure().text;
  const auto out = check_case(case_, Backend::cpu);
  if (!out && out.failure().status == FH_UNSUPPORTED) GTEST_SKIP() << out.failure().text;  // no judge
  ASSERT_TRUE(out) << case_.line() << "\n" << out.failure().text;
  EXPECT_TRUE(out->passed) << test::describe(case_, *out);
}

TEST_P(Backward, on_hopper) { test::expect_right_on_hopper(case_); }

INSTANTIATE_TEST_SUITE_P(Cases, Backward, testing::ValuesIn(test::case_lines(/*backward=*/true)),
                         [](const auto& info) { return info.param.name; });

// What a GPU refuses is refused for its type; it is not skipped unseen.
TEST(BackwardCases, are_planned_for_a_hopper_gpu_but_for_what_it_refuses) {
  for (const Line& line : test::case_lines(/*backward=*/true)) {
    const auto parsed = parse_case(line.text);
    ASSERT_TRUE(parsed) << line.text << "\n" << parsed.failure().text;
    Problem p = parsed->problem;
    p.op = FH_BACKWARD;
    const auto plan = make_gpu_plan(p, known_device("h200"));
    if (p.dtype == Dtype::f32) {
      ASSERT_FALSE(plan) << line.name;
      EXPECT_TRUE(plan.failure().text.starts_with("dtype is f32;")) << plan.failure().text;
    } else {
      EXPECT_TRUE(plan) << line.name << ": " << plan.failure().text;
    }
  }
}

// The list covers what it promises; a line that is deleted by accident is missed here.
TEST(BackwardCases, have_every_length_that_tiles_begin_or_end_at) {
  const auto cases = read_cases(FROGHOPPER_SOURCE_DIR "/tests/cases/backward.txt");
  ASSERT_TRUE(cases) << cases.failure().text;
  std::set<int64_t> rows, keys, dims, groups;
  bool accumulate = false, deterministic = false;
  for (const Case& c : *cases) {
    EXPECT_EQ(c.problem.op, FH_BACKWARD) << c.line();
    rows.insert(c.problem.seq_q), keys.insert(c.problem.seq_kv), dims.insert(c.problem.dim_qk);
    groups.insert(c.problem.heads_q / c.problem.heads_kv);
    accumulate |= c.problem.accumulate, deterministic |= c.problem.deterministic;
  }
  for (const int64_t length : {0, 1, 63, 64, 65, 127, 128, 129, 300, 1000}) {
    EXPECT_TRUE(rows.contains(length)) << length;
    EXPECT_TRUE(keys.contains(length)) << length;
  }
  for (const int64_t dim : {8, 16, 40, 48, 64, 72, 80, 96, 104, 112, 128, 192, 256, 264, 384, 512})
    EXPECT_TRUE(dims.contains(dim)) << "R39: " << dim;
  for (const int64_t group : {1, 2, 3, 4, 8}) EXPECT_TRUE(groups.contains(group)) << group;
  EXPECT_TRUE(accumulate && deterministic);
}

}  // namespace
}  // namespace froghopper::check
