// SPDX-License-Identifier: Apache-2.0
// Claim: both public headers are C++20 without a warning under the strictest flags, before any other header.
#pragma GCC diagnostic error "-Wall"
#pragma GCC diagnostic error "-Wextra"
#pragma GCC diagnostic error "-Wpedantic"
#pragma GCC diagnostic error "-Wconversion"
#pragma GCC diagnostic error "-Wsign-conversion"
#pragma GCC diagnostic error "-Wold-style-cast"
#pragma GCC diagnostic error "-Wshadow"
#include <froghopper/froghopper.hpp>
// Twice is once.
#include <froghopper/froghopper.h>
#include <froghopper/froghopper.hpp>

#include <gtest/gtest.h>

#include <type_traits>

namespace {

static_assert(std::is_standard_layout_v<fh_problem> && std::is_trivially_copyable_v<fh_problem>);
static_assert(std::is_standard_layout_v<fh_tensors> && std::is_trivially_copyable_v<fh_tensors>);
static_assert(std::is_aggregate_v<froghopper::Problem> && std::is_aggregate_v<froghopper::Tensors>);
static_assert(!std::is_copy_constructible_v<froghopper::Plan> &&
              std::is_nothrow_move_constructible_v<froghopper::Plan>);

TEST(abi_cpp, the_skin_has_the_defaults_of_the_c_interface) {
  fh_problem plain = fh_problem_init();
  plain.batch = 1;  // the one default of its own
  EXPECT_EQ(froghopper::to_cpp(plain), froghopper::Problem{});
  EXPECT_EQ(froghopper::to_cpp(froghopper::to_c(froghopper::Problem{})), froghopper::Problem{});
}

}  // namespace
