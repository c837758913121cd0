// SPDX-License-Identifier: Apache-2.0
// Claims: a struct from an older or a newer header is read the right way; a scale of minus zero in it is zero.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <string>

#include "tests/support/small_problem.hpp"

namespace froghopper {
namespace {

using test::small_problem;

// Zero has two spellings in the struct, and the one without a sign was the default before.
TEST(problem, a_scale_of_minus_zero_is_zero) {
  fh_problem user = small_problem();
  user.scale = -0.0f;
  const auto p = Problem::from(user);
  ASSERT_TRUE(p) << p.failure().text;
  EXPECT_EQ(p->scale, 0);
  EXPECT_FALSE(std::signbit(p->scale));
  EXPECT_EQ(p->line(), "fwd bf16 b2 hq8 hkv2 sq100 skv200 d128 scale0");
  EXPECT_TRUE(std::signbit(p->user_struct().scale));
  for (const char* const word : {" scale0", " scale-0"})
    EXPECT_EQ(*Problem::parse("fwd bf16 b2 hq8 hkv2 sq100 skv200 d128" + std::string(word)), *p) << word;
  for (const float tiny : {1e-45f, 1e-40f}) {
    user.scale = user.softcap = tiny;
    const auto tiny_problem = Problem::from(user);
    ASSERT_TRUE(tiny_problem);
    EXPECT_EQ(tiny_problem->scale, tiny);
    EXPECT_EQ(tiny_problem->softcap, tiny);
    EXPECT_EQ(*Problem::parse(tiny_problem->line()), *tiny_problem) << tiny_problem->line();
  }
}

TEST(problem, a_struct_from_an_older_header_is_short) {
  fh_problem user = small_problem();
  user.size = offsetof(fh_problem, window_left);
  user.causal = 1;
  user.window_left = 3;  // beyond its size: not a field, whatever lies there
  user.max_sms = -1;
  const auto p = Problem::from(user);
  ASSERT_TRUE(p) << p.failure().text;
  EXPECT_EQ(p->line(), "fwd bf16 b2 hq8 hkv2 sq100 skv200 d128 causal");
}

TEST(problem, a_struct_that_ends_before_its_shape_is_refused) {
  fh_problem user = small_problem();
  for (const size_t size : {sizeof(size_t), offsetof(fh_problem, dim_v), sizeof user + 4, size_t{1} << 40}) {
    user.size = size;
    EXPECT_FALSE(Problem::from(user)) << size;
  }
}

struct NewerProblem {
  fh_problem known;
  int64_t later[2];
};

TEST(problem, a_struct_from_a_newer_header_may_not_ask_for_more) {
  NewerProblem user{small_problem(), {0, 0}};
  user.known.size = sizeof user;
  const auto p = Problem::from(user.known);
  ASSERT_TRUE(p) << p.failure().text;
  user.later[1] = 1;
  const auto refused = Problem::from(user.known);
  ASSERT_FALSE(refused);
  EXPECT_EQ(
      refused.failure().text,
      "fh_problem has a field at byte " + std::to_string(offsetof(NewerProblem, later) + sizeof user.later[0]) +
          " that this version of froghopper does not know; it must be zero. Leave it zero or use the library of your "
          "header.");
}

}  // namespace
}  // namespace froghopper
