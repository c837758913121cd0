// SPDX-License-Identifier: Apache-2.0
// Claims about o and lse merged with what they hold: a ring of four pieces gives what the whole gives, a row that sees
// nothing keeps every bit, what lse calls nothing is not read, sums beyond the largest float pass as without merging,
// and what nobody computes is said in a sentence.
#include <gtest/gtest.h>
#include <froghopper/froghopper.hpp>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace {

namespace fh = froghopper;

constexpr float infinity = std::numeric_limits<float>::infinity();

// q, k and v of one sequence in fp32, and the output of a call on some of their rows.
struct Sequence {
  int64_t rows, heads, dim;
  std::vector<float> q, k, v;

  Sequence(int64_t rows, int64_t heads, int64_t dim) : rows(rows), heads(heads), dim(dim) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (std::vector<float>* const x : {&q, &k, &v}) {
      x->resize(static_cast<size_t>(rows * heads * dim));
      for (float& number : *x) number = normal(random);
    }
  }

  float* at(std::vector<float>& x, int64_t row) const { return x.data() + row * heads * dim; }
  fh::Problem problem(int64_t rows_q, int64_t rows_kv) const {
    return {.dtype = fh::Dtype::f32,
            .heads_q = heads,
            .heads_kv = heads,
            .seq_q = rows_q,
            .seq_kv = rows_kv,
            .dim_qk = dim};
  }
  fh::Tensors tensors(int64_t first_q, int64_t first_kv, float* o, float* lse) {
    return {.q = fh::dense(at(q, first_q), rows, heads, dim),
            .k = fh::dense(at(k, first_kv), rows, heads, dim),
            .v = fh::dense(at(v, first_kv), rows, heads, dim),
            .o = fh::dense(o, rows, heads, dim),
            .lse = lse};
  }
};

// What one device of a ring has: rows of o, and lse [heads, rows]. Nothing yet.
struct Pair {
  std::vector<float> o, lse;
  explicit Pair(const Sequence& s, int64_t rows)
      : o(static_cast<size_t>(rows * s.heads * s.dim), NAN), lse(static_cast<size_t>(rows * s.heads), -infinity) {}
};

void expect_near(const std::vector<float>& found, const std::vector<float>& wanted, double most) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], wanted[i], most) << i;
}

TEST(merge, a_ring_of_four_pieces_equals_the_whole) {
  constexpr int64_t pieces = 4, each = 37;
  Sequence s(pieces * each, 2, 40);
  for (const bool causal : {false, true}) {
    fh::Problem whole = s.problem(s.rows, s.rows);
    whole.causal = causal;
    Pair wanted(s, s.rows);
    fh::attention(whole, s.tensors(0, 0, wanted.o.data(), wanted.lse.data()), "cpu");
    for (int64_t device = 0; device < pieces; ++device) {
      Pair mine(s, each);
      for (int64_t step = 0; step < pieces; ++step) {
        const int64_t piece =
            (device + pieces - step) % pieces;  // of the keys: one's own first, then its neighbour's
        if (causal && piece > device) continue;
        fh::Problem part = s.problem(each, each);
        part.causal = causal && piece == device;
        part.accumulate = true;
        fh::attention(part, s.tensors(device * each, piece * each, mine.o.data(), mine.lse.data()), "cpu");
      }
      const int64_t row = s.heads * s.dim;
      expect_near(mine.o, {wanted.o.begin() + device * each * row, wanted.o.begin() + (device + 1) * each * row},
                  1e-6);
      for (int64_t head = 0; head < s.heads; ++head)
        for (int64_t i = 0; i < each; ++i)
          EXPECT_NEAR(mine.lse[head * each + i], wanted.lse[head * s.rows + device * each + i], 1e-6);
    }
  }
}

TEST(merge, a_row_that_sees_nothing_keeps_every_bit) {
  Sequence s(60, 2, 16);
  fh::Problem p = s.problem(60, 20);  // the first 40 rows see no key
  p.causal = p.accumulate = true;
  Pair held(s, 60);
  for (size_t i = 0; i < held.o.size(); ++i) held.o[i] = 0.1f * static_cast<float>(i % 97);
  for (size_t i = 0; i < held.lse.size(); ++i) held.lse[i] = 0.3f * static_cast<float>(i % 7);
  Pair found = held;
  fh::attention(p, s.tensors(0, 0, found.o.data(), found.lse.data()), "cpu");
  for (int64_t i = 0; i < 60; ++i) {
    const bool stays = i < 40;
    const size_t at = static_cast<size_t>(i * s.heads * s.dim);
    EXPECT_EQ(found.o[at] == held.o[at] && found.o[at + 1] == held.o[at + 1], stays) << i;
    EXPECT_EQ(found.lse[static_cast<size_t>(i)] == held.lse[static_cast<size_t>(i)], stays) << i;
  }
}

TEST(merge, lse_may_begin_with_the_sinks) {
  Sequence s(50, 3, 24);
  const std::vector<float> sinks = {-1.0f, 2.0f, 9.0f};
  fh::Problem whole = s.problem(50, 50);
  whole.sink = true;
  Pair wanted(s, 50), mine(s, 50);
  fh::Tensors t = s.tensors(0, 0, wanted.o.data(), wanted.lse.data());
  t.sink = sinks.data();
  fh::attention(whole, t, "cpu");

  mine.o.assign(mine.o.size(), 0.0f);
  for (size_t i = 0; i < mine.lse.size(); ++i) mine.lse[i] = sinks[i / 50];
  for (const int64_t first : {0, 25}) {
    fh::Problem part = s.problem(50, 25);
    part.accumulate = true;
    fh::attention(part, s.tensors(0, first, mine.o.data(), mine.lse.data()), "cpu");
  }
  expect_near(mine.o, wanted.o, 1e-6);
  expect_near(mine.lse, wanted.lse, 2e-6);
}

// 40 equal keys: their sum passes the largest float before it is divided, and the old o is still needed then.
TEST(merge, sums_beyond_the_largest_float) {
  Sequence s(40, 1, 16);
  s.q.assign(s.q.size(), 0.0f);
  s.v.assign(s.v.size(), 2e37f);
  for (const int64_t rows_q : {40, 1}) {
    Pair mine(s, rows_q);
    for (int i = 0; i < 3; ++i) {
      fh::Problem part = s.problem(rows_q, 40);
      part.accumulate = true;
      fh::attention(part, s.tensors(0, 0, mine.o.data(), mine.lse.data()), "cpu");
      for (const float x : mine.o) EXPECT_NEAR(x / 2e37f, 1, 1e-6);
      for (const float x : mine.lse) EXPECT_NEAR(x, std::log(40.0 * (i + 1)), 1e-6);
    }
  }
}

std::string refusal(const fh::Problem& p, const char* target) {
  try {
    return fh::Plan(p, target).line();
  } catch (const fh::Error& error) { return error.what(); }
}

TEST(merge, what_is_not_computed_is_said) {
  Sequence s(40, 1, 16);
  fh::Problem p = s.problem(40, 40);
  p.accumulate = true;
  EXPECT_EQ(fh::print(p), "fwd f32 b1 hq1 hkv1 sq40 skv40 d16 acc");
  p.dtype = fh::Dtype::bf16;
  EXPECT_EQ(fh::print(p), "fwd bf16 b1 hq1 hkv1 sq40 skv40 d16 acc");
  EXPECT_EQ(fh::parse(fh::print(p)).accumulate, true);
  EXPECT_NE(fh::explain(p, "auto").find("on the CPU   cpu"), std::string::npos) << fh::explain(p, "auto");
  p.sink = true;
  EXPECT_EQ(refusal(p, "cpu"),
            "fh_plan_create: accumulate is 1 and sink is set; each call would put it into the denominator again. Set "
            "sink to 0, and begin with lse = the sinks and o = 0.");
  p.sink = false, p.dtype_o = fh::Dtype::bf16;
  EXPECT_EQ(refusal(p, "cpu"),
            "fh_plan_create: dtype_o is bf16 and accumulate is 1; o is merged with what it holds in f32. Set dtype_o "
            "to FH_USUAL.");
  p.dtype_o = fh::Dtype::usual;
  Pair held(s, 40);
  fh::Tensors t = s.tensors(0, 0, held.o.data(), nullptr);
  try {
    fh::attention(s.problem(40, 40), t, "cpu");
    p.dtype = fh::Dtype::f32;
    fh::attention(p, t, "cpu");
    FAIL() << "lse is missing";
  } catch (const fh::Error& error) {
    EXPECT_STREQ(
        error.what(),
        "fh_attention: lse is NULL; a problem with accumulate needs one value for each row and head. Set it.");
  }
}

}  // namespace
