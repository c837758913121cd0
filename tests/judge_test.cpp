// SPDX-License-Identifier: Apache-2.0
// tests: the judge is judged. Results that are wrong in one place each are found, and the reference of some rows is
// that of all. Gradients: judge_gradients_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "check/backends.hpp"
#include "check/data.hpp"
#include "tests/support/judged.hpp"

namespace froghopper::check {
namespace {

using test::case_of;
using test::Judged;

class Judge : public Judged {
 protected:
  void SetUp() override { start("fwd bf16 b2 hq2 hkv1 sq40 skv30 d64 causal sink : layout=padded"); }

  float* lse() const { return views_.lse.as<float>(); }
  int64_t place(int64_t b, int64_t row, int64_t head) const { return views_.o.at(b, row, head); }
};

TEST_F(Judge, accepts_what_plain_loops_compute) { EXPECT_EQ(verdict(), ""); }

TEST_F(Judge, finds_an_element_that_was_not_written) {
  std::memset(static_cast<uint16_t*>(views_.o.data) + place(1, 17, 1) + 63, 0xff, 2);
  EXPECT_EQ(verdict(), "batch 1 row 17 head 1 column 63: o is NaN, or was not written");
}

TEST_F(Judge, finds_an_lse_that_was_not_written) {
  std::memset(&lse()[(1 * 2 + 0) * 40 + 39], 0xff, 4);
  EXPECT_EQ(verdict(), "batch 1 row 39 head 0: lse is NaN, or was not written");
}

TEST_F(Judge, finds_a_write_into_a_gap) {
  static_cast<uint16_t*>(views_.o.data)[64] = 0;
  EXPECT_EQ(verdict(), "o: byte 128 from its start was written, which belongs to no row");
}

TEST_F(Judge, finds_a_write_before_the_tensor) {
  lse()[-1] = 0;
  EXPECT_EQ(verdict(), "lse: byte -4 from its start was written, which belongs to no row");
}

TEST_F(Judge, finds_a_written_input) {
  static_cast<uint16_t*>(views_.v.data)[-1] = 0;
  EXPECT_EQ(verdict(), "v or memory next to it was written; it is only read");
}

TEST_F(Judge, finds_a_wrong_element) {
  static_cast<uint16_t*>(views_.o.data)[place(0, 30, 1) + 5] ^= 0x40;
  EXPECT_NE(verdict().find("batch 0 row 30 head 1 column 5: o is "), std::string::npos);
}

// Where its sequence has a sink, that is its lse.
TEST_F(Judge, finds_a_row_that_sees_nothing_and_has_another_lse_than_its_sink) {
  lse()[3] = 0;
  EXPECT_NE(verdict().find("batch 0 row 3 head 0: lse is 0, exact "), std::string::npos);
}

TEST_F(Judge, finds_a_row_that_sees_nothing_and_has_a_finite_lse) {
  start("fwd bf16 b2 hq2 hkv1 sq40 skv30 d64 causal : layout=padded");
  lse()[3] = 0;
  EXPECT_EQ(verdict(), "batch 0 row 3 head 0 attends to no key: lse must be -inf and is 0");
}

TEST_F(Judge, finds_a_row_that_sees_nothing_and_has_an_output) {
  static_cast<uint16_t*>(views_.o.data)[place(0, 3, 0) + 1] = 1;
  EXPECT_NE(verdict().find("batch 0 row 3 head 0: o must be 0 in column 1, as in exact arithmetic, and is "),
            std::string::npos);
}

TEST_F(Judge, finds_an_lse_in_base_2) {
  each_row(views_.lse, [&](int64_t at) { lse()[at] *= static_cast<float>(M_LOG2E); });
  EXPECT_NE(verdict().find("lse is "), std::string::npos);
}

TEST_F(Judge, finds_an_lse_off_by_one_part_in_a_hundred_thousand) {
  lse()[39] += 1e-5f * (1 + std::fabs(lse()[39]));
  EXPECT_NE(verdict().find("batch 0 row 39 head 0: lse is "), std::string::npos);
}

class JudgeOfMaxLogit : public Judged {
 protected:
  static constexpr const char* merged = "fwd bf16 b3 hq2 hkv1 sq40 skv30 d64 causal acc maxlogit";
  void SetUp() override { start("fwd bf16 b3 hq2 hkv1 sq40 skv30 d64 seqused causal maxlogit : used_q=40,0,7"); }
  float& max_logit(int64_t sequence, int64_t head) const { return views_.max_logit.as<float>()[sequence * 2 + head]; }
};

TEST_F(JudgeOfMaxLogit, accepts_what_plain_loops_compute) {
  EXPECT_EQ(verdict(), "");
  start(merged);
  EXPECT_EQ(verdict(), "");
}

TEST_F(JudgeOfMaxLogit, finds_one_that_was_not_written) {
  std::memset(&max_logit(2, 1), 0xff, 4);
  EXPECT_EQ(verdict(), "batch 2 row 0 head 1: max_logit is NaN, or was not written");
}

TEST_F(JudgeOfMaxLogit, finds_a_write_behind_it) {
  (&max_logit(2, 1))[1] = 0;
  EXPECT_EQ(verdict(), "max_logit: byte 24 from its start was written, which belongs to no row");
}

TEST_F(JudgeOfMaxLogit, finds_one_off_by_one_part_in_a_hundred_thousand) {
  for (const float by : {1e-5f, -1e-5f}) {
    SetUp();
    max_logit(0, 1) += by * (1 + std::fabs(max_logit(0, 1)));
    EXPECT_NE(verdict().find("batch 0 row 0 head 1: max_logit is "), std::string::npos);
  }
}

TEST_F(JudgeOfMaxLogit, finds_base_2) {
  max_logit(2, 0) *= static_cast<float>(M_LOG2E);
  EXPECT_NE(verdict().find("max_logit is "), std::string::npos);
}

TEST_F(JudgeOfMaxLogit, finds_a_score_of_nobody) {
  max_logit(1, 0) = 0;  // of rows past the end, say, whose q is zeros
  EXPECT_EQ(verdict(), "batch 1 row 0 head 0 attends to no key: max_logit must be -inf and is 0");
}

TEST_F(JudgeOfMaxLogit, finds_one_that_was_never_raised) {
  max_logit(0, 0) = -INFINITY;
  EXPECT_NE(verdict().find("batch 0 row 0 head 0: max_logit is -inf, exact "), std::string::npos);
}

// As if all keys were seen, or one less.
TEST_F(JudgeOfMaxLogit, finds_another_mask) {
  for (const int64_t right : {all_keys, int64_t{1}}) {
    SetUp();
    Problem other = c_.problem;
    other.window_right = right, other.window_left = right == 1 ? 3 : all_keys;
    const std::vector<double> found = oracle::compute_same_precision(other, views_)[index_of(&Views::max_logit)];
    for (size_t i = 0; i < found.size(); ++i) views_.max_logit.as<float>()[i] = static_cast<float>(found[i]);
    EXPECT_NE(verdict().find("max_logit is "), std::string::npos) << right;
  }
}

// What was there before is forgotten, or kept where it is smaller.
TEST_F(JudgeOfMaxLogit, finds_one_that_is_not_merged) {
  start(merged);
  Problem alone = c_.problem;
  alone.accumulate = false;
  const std::vector<double> found = oracle::compute_same_precision(alone, views_)[index_of(&Views::max_logit)];
  for (size_t i = 0; i < found.size(); ++i) views_.max_logit.as<float>()[i] = static_cast<float>(found[i]);
  EXPECT_NE(verdict().find("max_logit is "), std::string::npos);
  start(merged);
  const Views before = before_->views(*in_, views_);
  std::memcpy(views_.max_logit.data, before.max_logit.data, 6 * sizeof(float));
  EXPECT_NE(verdict().find("max_logit is "), std::string::npos);
}

// Errors below every bound of a single element, but all to the same side: R46.
TEST_F(Judge, finds_errors_with_a_common_sign) {
  start("fwd f32 b1 hq8 hkv8 sq500 skv60 d16");
  EXPECT_EQ(verdict(), "");
  start("fwd bf16 b1 hq8 hkv8 sq500 skv60 d16");
  each_row(views_.o, [&](int64_t at) {
    for (int64_t c = 0; c < views_.o.dim; ++c) {
      uint16_t& bits = static_cast<uint16_t*>(views_.o.data)[at + c];
      bits += random_bits(5, static_cast<uint64_t>(at + c)) % 4 == 0;  // a quarter of them one step further from zero
    }
  });
  EXPECT_NE(verdict().find("mean gain of o is "), std::string::npos);
}

// Scales of neighbouring blocks differ by more than e4m3 rounds.
TEST_F(Judge, finds_the_scale_of_another_block) {
  for (const auto& [scales, lines] : {std::pair{&Views::scale_q, 2}, {&Views::scale_k, 4}, {&Views::scale_v, 4}}) {
    start("fwd e4m3 b1 hq2 hkv2 sq200 skv500 d64 scales128 : layout=padded");
    EXPECT_EQ(verdict(), "");
    Views shifted = views_;
    View& view = shifted.*scales;
    std::vector<float> numbers;
    for (int64_t block = 0; block < lines; ++block)
      for (int64_t head = 0; head < 2; ++head)
        numbers.push_back((views_.*scales).as<float>()[(views_.*scales).at(0, (block + 1) % lines, head)]);
    view.data = numbers.data();
    view.stride_seq = 2, view.stride_head = 1;
    write(c_.problem, shifted);
    EXPECT_NE(verdict(), "") << lines;
  }
}

// 8-bit weights of a row are each off by up to 1/16, but not all to the same side.
TEST_F(Judge, finds_a_gain_of_8_bit_weights) {
  start("fwd e4m3 o=f32 b1 hq8 hkv8 sq500 skv60 d16");
  EXPECT_EQ(verdict(), "");
  write(c_.problem, views_);
  each_row(views_.o, [&](int64_t at) {
    for (int64_t c = 0; c < views_.o.dim; ++c) views_.o.as<float>()[at + c] *= 1.01f;
  });
  EXPECT_NE(verdict().find("mean gain of o is "), std::string::npos);
}

void expect_rows_of(const Expected& whole, const Expected& sampled) {
  const size_t dim = whole.exact.size() / whole.rows.size();
  for (size_t i = 0; i < sampled.rows.size(); ++i) {
    const auto found = std::ranges::find(whole.rows, sampled.rows[i]);
    ASSERT_NE(found, whole.rows.end());
    const auto j = static_cast<size_t>(found - whole.rows.begin());
    for (size_t c = 0; c < dim; ++c) {
      ASSERT_EQ(sampled.exact[i * dim + c], whole.exact[j * dim + c]) << sampled.rows[i].row;
      ASSERT_EQ(sampled.same_precision[i * dim + c], whole.same_precision[j * dim + c]) << sampled.rows[i].row;
    }
  }
}

// Masks, packed sequences, sinks and the end of the tensor: a sampled row must be the same problem as the whole.
TEST(Reference, of_some_rows_agrees_with_that_of_all) {
  for (const std::string line :
       {"fwd f32 b2 hq4 hkv2 sq40 skv70 d16 window20,5 sink softcap3",
        "fwd bf16 b4 hq2 hkv1 sq20 skv30 d8 varlen tq60 tkv90 causal : lens_q=20,0,7,13 lens_kv=30,5,0,30",
        // Rows of a sequence that sees nothing have the sink as lse, those of no sequence do not.
        "fwd f32 b4 hq2 hkv1 sq20 skv30 d8 varlen tq60 tkv90 seqused causal sink : lens_q=20,9,7,13 lens_kv=9,5,0,30 "
        "used_q=20,9,7,4",
        "fwd f16 b3 hq2 hkv2 sq20 skv30 d8 seqused causal topleft : layout=bhsd",
        // What depends on where keys are: slopes, chunks, blocks of scales.
        "fwd f32 b2 hq4 hkv2 sq40 skv70 d16 causal alibi", "fwd f32 b2 hq2 hkv2 sq40 skv40 d16 chunk=16",
        "fwd e4m3 b2 hq2 hkv1 sq70 skv300 d16 causal scales128 smooth"}) {
    const Case all = case_of(line);
    const auto in = make_inputs(all, 1);
    const auto views = bind(all.problem, in->tensors);
    ASSERT_TRUE(views);
    Case some = all;
    some.sample_rows = true;
    const Reference whole = make_reference(all, *views), sampled = make_reference(some, *views);
    ASSERT_EQ(sampled.size(), whole.size());
    for (size_t t = 0; t < whole.size(); ++t) {
      SCOPED_TRACE(line + " " + whole[t].tensor->name);
      ASSERT_EQ(sampled[t].tensor, whole[t].tensor);
      ASSERT_GT(sampled[t].rows.size(), 50u);
      expect_rows_of(whole[t], sampled[t]);
    }
  }
}

// A measure of every tensor that is written; rmse is over all elements, rows that see nothing included.
TEST_F(Judge, measures_each_written_tensor) {
  start("fwd f32 b1 hq1 hkv1 sq3 skv2 d8 causal");  // row 0 sees nothing
  static_cast<float*>(views_.o.data)[place(0, 2, 0)] += 0.5f;
  Outcome out;
  judge(c_.problem, reference_, views_, *in_, *before_, out);
  EXPECT_FALSE(out.passed);
  ASSERT_EQ(out.measures.size(), 2u);
  EXPECT_NEAR(out.of("o").error, 0.5, 1e-6);
  EXPECT_NEAR(out.of("o").rmse, std::sqrt(0.25 / (3 * 8)), 1e-6);
  EXPECT_LT(out.of("lse").error, 1e-6);
  EXPECT_EQ(out.of("q").error, 0);
}

TEST(Workspace, guards_are_watched) {
  auto workspace = garbage_workspace(16);
  EXPECT_TRUE(guards_intact(workspace, 16));
  workspace[workspace_guard_bytes + 3] ^= 1;
  EXPECT_TRUE(guards_intact(workspace, 16));
  workspace[workspace_guard_bytes + 16] ^= 1;
  EXPECT_FALSE(guards_intact(workspace, 16));
}

}  // namespace
}  // namespace froghopper::check
