// SPDX-License-Identifier: Apache-2.0
// Claims: a problem line is read back exactly; the mask rule is the one of the header. refusals_test.cpp has what is
// refused.
#include "src/problem/problem.hpp"
#include "src/problem/mask.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <random>

#include "tests/support/small_problem.hpp"

namespace froghopper {
namespace {

constexpr int64_t huge = std::numeric_limits<int64_t>::max();

using test::small_problem;

TEST(problem, defaults_are_filled_in) {
  fh_problem user = small_problem();
  user.dim_v = 0;
  user.softcap = -0.0f;
  user.align = FH_TOP_LEFT;  // of no mask
  const auto p = Problem::from(user);
  ASSERT_TRUE(p) << p.failure().text;
  EXPECT_EQ(p->dim_v, 128);
  EXPECT_EQ(p->scale, 0.08838834764831845f);
  EXPECT_EQ(p->align, FH_BOTTOM_RIGHT);
  EXPECT_FALSE(std::signbit(p->softcap));
  EXPECT_EQ(p->line(), "fwd bf16 b2 hq8 hkv2 sq100 skv200 d128");
}

TEST(problem, causal_is_a_window_that_ends_beside_the_query) {
  fh_problem user = small_problem();
  user.causal = 1;
  EXPECT_EQ(Problem::from(user)->line(), "fwd bf16 b2 hq8 hkv2 sq100 skv200 d128 causal");
  fh_problem window = small_problem();
  window.window_right = 0;
  EXPECT_EQ(*Problem::from(user), *Problem::from(window));
  user.window_left = 5;
  EXPECT_EQ(Problem::from(user)->line(), "fwd bf16 b2 hq8 hkv2 sq100 skv200 d128 window5,0");
}

TEST(problem, a_line_has_every_option_in_its_order) {
  const std::string all =
      "bwd f16 b3 hq8 hkv4 sq100 skv200 d128 dv64 varlen tq250 tkv500 seqused window64,-1 chunk=512 topleft "
      "scale0.25 softcap30 sink alibi det acc sms64";
  const auto p = Problem::parse(all);
  ASSERT_TRUE(p) << p.failure().text;
  EXPECT_EQ(p->line(), all);
  EXPECT_EQ(p->op, FH_BACKWARD);
  EXPECT_TRUE(p->accumulate);
  EXPECT_EQ(p->window_left, 64);
  EXPECT_EQ(p->window_right, all_keys);
  EXPECT_EQ(p->total_kv, 500);
  EXPECT_EQ(p->max_sms, 64);
}

TEST(problem, one_problem_has_one_spelling) {
  const std::string line = "fwd bf16 b1 hq1 hkv1 sq5 skv5 d64 causal";
  for (const char* other :
       {"fwd bf16 causal d64 skv5 sq5 hkv1 hq1 b1", "fwd bf16 b1 hq1 hkv1 sq5 skv5 d64 window-1,0",
        "fwd   bf16\tb1 hq1 hkv1   sq5  skv5  d64 causal ", "fwd bf16 b1 hq1 hkv1 sq5 skv5 d64 causal\r\n",
        "fwd bf16 b1 hq1 hkv1 sq5 skv5 d64 dv64 causal scale0.125",
        "fwd bf16 b01 hq1 hkv1 sq5 skv5 d64 causal softcap0 sms0"}) {
    const auto p = Problem::parse(other);
    ASSERT_TRUE(p) << other << "\n" << p.failure().text;
    EXPECT_EQ(p->line(), line) << other;
  }
  EXPECT_EQ(Problem::parse("fwd bf16 b1 hq1 hkv1 sq5 skv5 d64 window-1,-1 topleft")->line(),
            "fwd bf16 b1 hq1 hkv1 sq5 skv5 d64");
  const auto slots = Problem::parse("append bf16 b1 hq1 hkv1 sq5 d64 page16 pages4 slots");  // rows are of the pool
  ASSERT_TRUE(slots) << slots.failure().text;
  EXPECT_EQ(slots->line(), "append bf16 b1 hq1 hkv1 sq5 skv0 d64 page16 pages4 slots");
}

TEST(problem, types_of_8_bits_have_words_of_their_own) {
  for (const char* line :
       {"fwd e4m3 b2 hq8 hkv2 sq100 skv200 d128", "fwd e5m2 o=f16 b2 hq8 hkv2 sq100 skv200 d128 scales128",
        "fwd bf16 kv=e4m3 o=f32 b2 hq8 hkv2 sq100 skv200 d128 sink scales128 vcolumns det",
        "fwd f16 kv=e5m2 b2 hq8 hkv2 sq100 skv200 d80 dv16 causal vcolumns"}) {
    const auto p = Problem::parse(line);
    ASSERT_TRUE(p) << p.failure().text;
    EXPECT_EQ(p->line(), line);
  }
  for (const auto& [other, line] :
       {std::pair{"fwd e4m3 o=bf16 kv=e4m3 b1 hq1 hkv1 sq5 skv5 d64 scales0", "fwd e4m3 b1 hq1 hkv1 sq5 skv5 d64"},
        std::pair{"fwd f16 b1 hq1 hkv1 sq5 skv5 d64 o=f16 kv=f16", "fwd f16 b1 hq1 hkv1 sq5 skv5 d64"}})
    EXPECT_EQ(Problem::parse(other)->line(), line);
  const auto mixed = Problem::parse("fwd f16 kv=e5m2 b2 hq8 hkv2 sq100 skv257 d64 scales128");
  EXPECT_EQ(mixed->dtype_kv, Dtype::e5m2);
  EXPECT_EQ(mixed->dtype_o, Dtype::f16);
  EXPECT_EQ(mixed->scale_blocks(257), 3);
  EXPECT_EQ(mixed->scale_blocks(0), 0);
}

// Any float whose bits are drawn at random: tiny, huge and denormal ones too.
float random_positive_float(std::mt19937_64& random) {
  for (;;) {
    const auto bits = static_cast<uint32_t>(random() >> 33);
    float f;
    std::memcpy(&f, &bits, sizeof f);
    if (std::isfinite(f) && f > 0) return f;
  }
}

Problem random_problem(std::mt19937_64& random) {
  const auto up_to = [&](int64_t most) { return static_cast<int64_t>(random() % static_cast<uint64_t>(most + 1)); };
  const auto coin = [&] { return random() % 2 == 0; };
  const auto size = [&] { return up_to(int64_t{1} << up_to(16)); };
  fh_problem p = fh_problem_init();
  p.dtype = static_cast<fh_dtype>(1 + up_to(4));
  const bool of_8_bits = p.dtype >= FH_E4M3 || (p.dtype != FH_F32 && coin());
  if (of_8_bits && p.dtype < FH_E4M3) p.dtype_kv = coin() ? FH_E4M3 : FH_E5M2;
  if (of_8_bits)
    p.dtype_o = static_cast<fh_dtype>(up_to(3)), p.scale_rows = 128 * up_to(1), p.scale_v_columns = coin();
  if (of_8_bits && coin()) p.scale_tokens = 1, p.scale_rows = p.scale_v_columns = 0;
  p.heads_kv = 1 + up_to(15), p.heads_q = p.heads_kv * (1 + up_to(7));
  p.batch = size(), p.seq_q = size(), p.seq_kv = size();
  const int64_t step = of_8_bits ? 16 : 8, most = of_8_bits ? 256 : 512;
  p.dim_qk = step * (1 + up_to(most / step - 1)), p.dim_v = coin() ? 0 : step * (1 + up_to(most / step - 1));
  if (coin()) p.varlen = 1, p.total_q = up_to(int64_t{1} << 40), p.total_kv = size();
  if (coin() && !of_8_bits) p.op = FH_BACKWARD;
  p.seqused = coin(), p.causal = coin(), p.sink = coin(), p.deterministic = coin();
  p.alibi = coin(), p.attention_chunk = coin() ? 0 : size(), p.max_sms = coin() ? 0 : size();
  p.accumulate = coin() && (p.op == FH_BACKWARD || !p.sink), p.max_logit = p.op == FH_FORWARD && coin();
  if (p.op == FH_FORWARD)
    p.invariant = !p.scale_tokens && coin(), p.dtype_o = !p.accumulate ? p.dtype_o : coin() ? FH_F32 : FH_USUAL;
  if (coin()) p.align = FH_TOP_LEFT;
  if (coin()) p.window_left = coin() ? size() : huge;
  if (coin() && !p.causal) p.window_right = size();
  if (coin()) p.scale = coin() ? -0.0f : std::min(random_positive_float(random), 0x1p127f);
  if (coin()) p.softcap = random_positive_float(random);
  auto problem = Problem::from(p);
  EXPECT_TRUE(problem) << problem.failure().text;
  return *problem;
}

TEST(problem, line_and_struct_are_read_back_exactly) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    const Problem p = random_problem(random);
    const auto from_line = Problem::parse(p.line());
    ASSERT_TRUE(from_line) << p.line() << "\n" << from_line.failure().text;
    ASSERT_EQ(*from_line, p) << p.line();
    ASSERT_EQ(from_line->line(), p.line());
    const auto from_struct = Problem::from(p.user_struct());
    ASSERT_TRUE(from_struct) << p.line() << "\n" << from_struct.failure().text;
    ASSERT_EQ(*from_struct, p) << p.line();
  }
}

// The mask by its definition: a key is seen when its distance from the row's level is inside the window.
TEST(problem, visible_keys_are_those_inside_the_window) {
  for (const fh_align align : {FH_BOTTOM_RIGHT, FH_TOP_LEFT})
    for (const int64_t left : {all_keys, int64_t{0}, int64_t{2}, huge})
      for (const int64_t right : {all_keys, int64_t{0}, int64_t{1}, huge})
        for (int64_t rows_q = 0; rows_q < 6; ++rows_q)
          for (int64_t rows_kv = 0; rows_kv < 6; ++rows_kv)
            for (int64_t row = 0; row < rows_q; ++row) {
              Problem p;
              p.align = align, p.window_left = left, p.window_right = right;
              const int64_t level = align == FH_BOTTOM_RIGHT ? row + rows_kv - rows_q : row;
              const Visible seen = visible_keys(p, rows_q, rows_kv, row);
              for (int64_t key = -2; key < rows_kv + 2; ++key) {
                const bool expected = key >= 0 && key < rows_kv && (left == all_keys || level - key <= left) &&
                                      (right == all_keys || key - level <= right);
                ASSERT_EQ(key >= seen.begin && key < seen.end, expected)
                    << p.line() << " rows " << rows_q << " " << rows_kv << " row " << row << " key " << key;
              }
            }
}

}  // namespace
}  // namespace froghopper
