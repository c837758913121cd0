// SPDX-License-Identifier: Apache-2.0
// Claims about plans on a GPU that write the largest score: it gets its first value before the forward kernel begins
// to raise it, also where there are no rows; what is merged keeps what it has; tiles and order are those without it, as
// far as registers go; and what no kernel computes is said in a sentence.
#include <gtest/gtest.h>

#include <string>

#include "src/plan/plan.hpp"
#include "tests/support/planned.hpp"

namespace froghopper {
namespace {

using test::planned;
bool fills(const Launch& launch) { return std::holds_alternative<FillStep>(launch.step); }

// What begins before a launch that it waits for has ended must be a launch of the plan, or wait itself.
TEST(max_logit, begins_with_a_launch_that_fills_it) {
  for (const std::string words : {"b2 hq16 hkv4 sq4096 skv4096 d128 causal", "b2 hq16 hkv4 sq1 skv4096 d128",
                                  "b3 hq8 hkv2 sq200 skv300 d64 varlen tq400 tkv500"}) {
    const auto plan = planned("fwd bf16 " + words + " maxlogit");
    ASSERT_GE(plan.launches.size(), 2u);
    EXPECT_TRUE(fills(plan.launches[0])) << plan.line();
    for (size_t i = 1; i < plan.launches.size(); ++i) {
      EXPECT_FALSE(fills(plan.launches[i])) << plan.line();
      EXPECT_TRUE(plan.launches[i].overlaps) << plan.line();
    }
    EXPECT_TRUE(std::get<ForwardStep>(plan.launches[1].step).variant.max_logit);
  }
}

TEST(max_logit, that_is_merged_begins_as_it_is) {
  const auto plan = planned("fwd bf16 b2 hq16 hkv4 sq4096 skv4096 d128 acc maxlogit");
  ASSERT_EQ(plan.launches.size(), 1u);
  EXPECT_FALSE(fills(plan.launches[0]));
}

TEST(max_logit, is_filled_where_there_are_no_rows) {
  EXPECT_EQ(planned("fwd bf16 b2 hq4 hkv4 sq0 skv100 d64 maxlogit").launches.size(), 1u);
  EXPECT_EQ(planned("fwd bf16 b3 hq4 hkv4 sq5 skv100 d64 varlen tq0 tkv100 maxlogit").launches.size(), 1u);
  EXPECT_TRUE(planned("fwd bf16 b0 hq4 hkv4 sq5 skv100 d64 maxlogit").launches.empty());
  EXPECT_TRUE(planned("fwd bf16 b2 hq4 hkv4 sq0 skv100 d64 acc maxlogit").launches.empty());
}

// The same kernels, tiles and order; there are no registers for it beside four M tiles.
TEST(max_logit, changes_no_choice_but_that_of_four_strips) {
  for (const std::string words : {"b2 hq16 hkv4 sq4096 skv4096 d128 causal", "b1 hq32 hkv8 sq1 skv8192 d128",
                                  "b2 hq16 hkv4 sq4096 skv4096 d256", "b8 hq16 hkv4 sq4096 skv4096 d96 seqused"}) {
    Plan with = planned("fwd bf16 " + words + " maxlogit");
    const Plan without = planned("fwd bf16 " + words);
    ASSERT_EQ(with.launches.size(), without.launches.size() + 1);
    auto& forward = std::get<ForwardStep>(with.launches[1].step);
    EXPECT_NE(forward.variant, std::get<ForwardStep>(without.launches[0].step).variant);
    forward.variant.max_logit = false;
    EXPECT_EQ(forward.variant, std::get<ForwardStep>(without.launches[0].step).variant) << words;
    EXPECT_EQ(with.workspace.bytes, without.workspace.bytes);
  }
  const Plan plan = planned("fwd bf16 b2 hq16 hkv4 sq4096 skv4096 d64 maxlogit");
  EXPECT_EQ(std::get<ForwardStep>(plan.launches[1].step).variant.tiles.q, 192);
}

}  // namespace
}  // namespace froghopper
