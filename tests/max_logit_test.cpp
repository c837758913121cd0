// SPDX-License-Identifier: Apache-2.0
// Claims about the largest score of each sequence and head: it is that of the pairs which the mask shows, as the
// softmax has it; threads, a ring of pieces and other rows do not change a bit of it; what counts for nobody does not
// count; and what is not computed is said in a sentence. Plans on a GPU: max_logit_plan_test.cpp.
#include <gtest/gtest.h>
#include <froghopper/froghopper.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace {

namespace fh = froghopper;

constexpr float infinity = std::numeric_limits<float>::infinity();

// Sequences in fp32 with tensors of their own.
struct Call {
  fh::Problem problem;
  std::vector<float> q, k, v, o, max_logit;

  explicit Call(const std::string& line) : problem(fh::parse(line)) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    const auto draw = [&](std::vector<float>& x, int64_t numbers) {
      x.resize(static_cast<size_t>(numbers));
      for (float& number : x) number = normal(random);
    };
    draw(q, problem.batch * problem.seq_q * problem.heads_q * problem.dim_qk);
    draw(k, problem.batch * problem.seq_kv * problem.heads_kv * problem.dim_qk);
    draw(v, problem.batch * problem.seq_kv * problem.heads_kv * problem.dim_v);
    o.resize(static_cast<size_t>(problem.batch * problem.seq_q * problem.heads_q * problem.dim_v));
    max_logit.assign(static_cast<size_t>(problem.batch * problem.heads_q), NAN);
  }

  fh::Tensors tensors() {
    const fh::Problem& p = problem;
    return {.q = fh::dense(q.data(), p.seq_q, p.heads_q, p.dim_qk),
            .k = fh::dense(k.data(), p.seq_kv, p.heads_kv, p.dim_qk),
            .v = fh::dense(v.data(), p.seq_kv, p.heads_kv, p.dim_v),
            .o = fh::dense(o.data(), p.seq_q, p.heads_q, p.dim_v),
            .max_logit = max_logit.data()};
  }
  const std::vector<float>& run() {
    fh::attention(problem, tensors(), "cpu");
    return max_logit;
  }

  double score(int64_t b, int64_t i, int64_t head, int64_t j) const {
    const fh::Problem& p = problem;
    const int64_t head_kv = head / (p.heads_q / p.heads_kv);
    double sum = 0;
    for (int64_t c = 0; c < p.dim_qk; ++c)
      sum += double(q[((b * p.seq_q + i) * p.heads_q + head) * p.dim_qk + c]) *
             k[((b * p.seq_kv + j) * p.heads_kv + head_kv) * p.dim_qk + c];
    sum *= p.scale;
    return p.softcap > 0 ? p.softcap * std::tanh(sum / p.softcap) : sum;
  }
  // Of keys before and after the one that a row is level with, aligned bottom-right.
  double largest(int64_t b, int64_t head, int64_t left, int64_t right) const {
    double most = -infinity;
    for (int64_t i = 0; i < problem.seq_q; ++i)
      for (int64_t j = 0; j < problem.seq_kv; ++j) {
        const int64_t level = i + problem.seq_kv - problem.seq_q;
        if (j >= level - left && j <= level + right) most = std::max(most, score(b, i, head, j));
      }
    return most;
  }
};

TEST(max_logit, is_that_of_the_pairs_which_the_mask_shows) {
  const struct {
    const char* words;
    int64_t left, right;
  } all[] = {{"", 1000, 1000}, {"causal", 1000, 0}, {"window5,3 softcap2", 5, 3}, {"window0,0 scale3", 0, 0}};
  for (const auto& [words, left, right] : all) {
    Call call(std::string("fwd f32 b2 hq4 hkv2 sq70 skv150 d24 maxlogit ") + words);
    call.run();
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t head = 0; head < 4; ++head)
        EXPECT_NEAR(call.max_logit[b * 4 + head], call.largest(b, head, left, right), 1e-5) << words << head;
  }
}

TEST(max_logit, is_below_zero_where_all_scores_are) {
  Call call("fwd f32 b1 hq2 hkv2 sq30 skv50 d16 maxlogit");
  for (float& x : call.q) x = std::fabs(x) + 1;
  for (float& x : call.k) x = -std::fabs(x) - 1;
  for (const float found : call.run()) EXPECT_LT(found, -4);
  EXPECT_NEAR(call.max_logit[1], call.largest(0, 1, 1000, 1000), 1e-5);
}

TEST(max_logit, has_the_same_bits_with_any_threads) {
  Call call("fwd f32 b3 hq4 hkv2 sq500 skv300 d32 causal maxlogit sms1");
  const std::vector<float> one = call.run();
  for (const int64_t threads : {2, 3, 7}) {
    call.problem.max_sms = threads;
    call.max_logit.assign(call.max_logit.size(), NAN);
    EXPECT_EQ(call.run(), one) << threads;
  }
}

// A ring: each call has some of the keys.
TEST(max_logit, of_pieces_becomes_that_of_the_whole) {
  Call whole("fwd f32 b1 hq2 hkv2 sq100 skv400 d32 maxlogit"),
      piece("fwd f32 b1 hq2 hkv2 sq100 skv100 d32 acc maxlogit");
  whole.run();
  piece.q = whole.q;
  piece.max_logit.assign(2, -infinity);
  std::vector<float> lse(200, -infinity);
  for (const int64_t number : {2, 0, 3, 1}) {
    fh::Tensors t = piece.tensors();
    const int64_t first = number * 100 * 2 * 32;
    t.k = fh::dense(whole.k.data() + first, 100, 2, 32), t.v = fh::dense(whole.v.data() + first, 100, 2, 32);
    t.lse = lse.data();
    fh::attention(piece.problem, t, "cpu");
  }
  EXPECT_EQ(piece.max_logit, whole.max_logit);
  piece.max_logit = {1000, whole.max_logit[1]};
  fh::Tensors t = piece.tensors();
  t.lse = lse.data();
  fh::attention(piece.problem, t, "cpu");
  EXPECT_EQ(piece.max_logit[0], 1000);
  EXPECT_GE(piece.max_logit[1], whole.max_logit[1]);
}

TEST(max_logit, leaves_out_what_is_nan) {
  Call call("fwd f32 b1 hq1 hkv1 sq40 skv60 d16 maxlogit");
  const float before = call.run()[0];
  for (int64_t c = 0; c < 16; ++c) call.q[7 * 16 + c] = NAN, call.k[11 * 16 + c] = NAN;
  const float after = call.run()[0];
  EXPECT_TRUE(std::isfinite(after));
  EXPECT_LE(after, before);
  std::fill(call.q.begin(), call.q.end(), NAN);
  EXPECT_EQ(call.run()[0], -infinity);
}

TEST(max_logit, is_minus_infinity_where_nothing_is_seen) {
  for (const char* const line :
       {"fwd f32 b2 hq3 hkv3 sq0 skv50 d16 maxlogit", "fwd f32 b2 hq3 hkv3 sq40 skv0 d16 maxlogit",
        "fwd f32 b2 hq3 hkv3 sq50 skv20 d16 window-1,0 topleft chunk=8 scale1 maxlogit"}) {
    Call call(line);
    if (call.problem.attention_chunk > 0) call.problem.window_left = 0, call.problem.window_right = 0;
    for (const float found : call.run()) EXPECT_EQ(found == -infinity, call.problem.attention_chunk == 0) << line;
  }
  Call none("fwd f32 b0 hq3 hkv3 sq40 skv20 d16 maxlogit");
  none.max_logit.assign(1, 5);
  EXPECT_EQ(none.run()[0], 5);
}

TEST(max_logit, of_a_sequence_is_its_own) {
  Call call("fwd f32 b4 hq2 hkv1 sq20 skv30 d16 seqused maxlogit");
  const std::vector<int32_t> used_q = {20, 0, 9, 20}, used_kv = {30, 30, 11, 0};
  for (int64_t i = 9 * 2 * 16; i < 20 * 2 * 16; ++i) call.q[2 * 20 * 2 * 16 + i] = NAN;  // rows that do not count
  fh::Tensors t = call.tensors();
  t.seqused_q = used_q.data(), t.seqused_kv = used_kv.data();
  fh::attention(call.problem, t, "cpu");
  for (int64_t head = 0; head < 2; ++head) {
    EXPECT_NEAR(call.max_logit[head], call.largest(0, head, 1000, 1000), 1e-5);
    EXPECT_EQ(call.max_logit[2 + head], -infinity);
    double most = -infinity;
    for (int64_t i = 0; i < 9; ++i)
      for (int64_t j = 0; j < 11; ++j) most = std::max(most, call.score(2, i, head, j));
    EXPECT_NEAR(call.max_logit[4 + head], most, 1e-5);
    EXPECT_EQ(call.max_logit[6 + head], -infinity);
  }
}

std::string refusal(fh::Problem problem, fh::Tensors t) {
  try {
    fh::attention(problem, t, "cpu");
  } catch (const fh::Error& error) { return error.what(); }
  return "";
}

TEST(max_logit, what_is_not_computed_is_said) {
  Call call("fwd f32 b1 hq2 hkv2 sq10 skv10 d16 maxlogit");
  fh::Tensors t = call.tensors();
  t.max_logit = nullptr;
  EXPECT_NE(refusal(call.problem, t)
                .find("max_logit is NULL; a problem with max_logit needs one value for each "
                      "sequence and query head. Set it."),
            std::string::npos);
  fh::Problem without = call.problem;
  without.max_logit = false;
  EXPECT_NE(
      refusal(without, call.tensors())
          .find("max_logit is set, but the problem has no max_logit, so it would be ignored. Set max_logit in the "
                "problem, or leave max_logit NULL."),
      std::string::npos);
  t.max_logit = t.lse = call.max_logit.data();
  EXPECT_NE(refusal(call.problem, t).find("max_logit and lse are at the same address"), std::string::npos);
  fh::Problem backward = call.problem;
  backward.op = fh::Op::backward;
  EXPECT_NE(
      refusal(backward, call.tensors())
          .find("max_logit is 1 and op is FH_BACKWARD; only the forward pass computes it. Set op to FH_FORWARD, "
                "or max_logit to 0."),
      std::string::npos);
}

}  // namespace
