// SPDX-License-Identifier: Apache-2.0
// Claims: the public headers are C++20 without a warning under the strictest flags, before any other header; the skin
// carries every field of a problem.
#pragma GCC diagnostic error "-Wall"
#pragma GCC diagnostic error "-Wextra"
#pragma GCC diagnostic error "-Wpedantic"
#pragma GCC diagnostic error "-Wconversion"
#pragma GCC diagnostic error "-Wsign-conversion"
#pragma GCC diagnostic error "-Wold-style-cast"
#pragma GCC diagnostic error "-Wshadow"
#include <froghopper/cp.h>
#include <froghopper/froghopper.hpp>
// Twice is once.
#include <froghopper/cp.h>
#include <froghopper/froghopper.h>
#include <froghopper/froghopper.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
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

// Each word of fh_problem behind its size belongs to a field: one is changed, and comes back from C++ as it was.
TEST(abi_cpp, the_skin_carries_every_field) {
  std::array<int32_t, sizeof(fh_problem) / sizeof(int32_t)> words{};
  const fh_problem plain = fh_problem_init();
  for (size_t i = sizeof plain.size / sizeof words[0]; i < words.size(); ++i) {
    std::memcpy(words.data(), &plain, sizeof plain);
    words[i] = words[i] == 1 ? 2 : 1;  // of an enum or a flag, too, that is a value
    fh_problem changed;
    std::memcpy(&changed, words.data(), sizeof changed);
    const fh_problem back = froghopper::to_c(froghopper::to_cpp(changed));
    EXPECT_EQ(std::memcmp(&back, &changed, sizeof back), 0) << "the field at byte " << i * sizeof words[0];
  }
}

TEST(abi_cpp, heads_may_lie_before_rows) {
  const float x = 0;
  const froghopper::Tensor tensor = froghopper::dense_by_head(&x, 300, 4, 64);
  EXPECT_EQ(tensor.data, &x);
  EXPECT_EQ(tensor.stride_batch, 4 * 300 * 64);
  EXPECT_EQ(tensor.stride_seq, 64);
  EXPECT_EQ(tensor.stride_head, 300 * 64);
}

}  // namespace
