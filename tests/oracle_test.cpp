// SPDX-License-Identifier: Apache-2.0
// tests: the oracle against what it is defined by: masks spelled out key by key, a naive log of a sum of
// exponentials, gradients by central differences, and the numbers that tensors store against their bit patterns.
#include "src/oracle/oracle.hpp"
#include "src/problem/mask.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "tests/support/hand_made.hpp"

namespace froghopper {
namespace {

using test::HandMade;
using test::Lengths;

constexpr double infinity = std::numeric_limits<double>::infinity();

Problem small_problem() {
  Problem p;
  p.dtype = p.dtype_kv = p.dtype_o = Dtype::f32;
  p.batch = 1;
  p.heads_q = 4;
  p.heads_kv = 2;
  p.seq_q = 5;
  p.seq_kv = 7;
  p.dim_qk = 16;
  p.dim_v = 8;
  return p;
}

Problem with_mask(Problem p, int64_t left, int64_t right, fh_align align) {
  p.window_left = left;
  p.window_right = right;
  p.align = align;
  return p;
}

std::vector<Problem> small_problems() {
  const Problem plain = small_problem();
  std::vector<Problem> all = {plain, with_mask(plain, all_keys, 0, FH_BOTTOM_RIGHT),
                              with_mask(plain, all_keys, 0, FH_TOP_LEFT), with_mask(plain, 2, 1, FH_BOTTOM_RIGHT),
                              with_mask(plain, 1, all_keys, FH_TOP_LEFT)};
  Problem softcap = plain;
  softcap.softcap = 1.5f;
  all.push_back(softcap);
  Problem sink = with_mask(plain, all_keys, 0, FH_BOTTOM_RIGHT);
  sink.sink = true;
  all.push_back(sink);
  Problem everything = with_mask(plain, 3, 0, FH_BOTTOM_RIGHT);
  everything.sink = true;
  everything.softcap = 2;
  everything.scale = 0.7f;
  all.push_back(everything);
  return all;
}

// Five packed sequences: no query, no key, neither, more queries than keys, fewer, some rows unused.
Problem packed_problem() {
  Problem p = with_mask(small_problem(), all_keys, 0, FH_BOTTOM_RIGHT);
  p.batch = 5;
  p.varlen = true;
  p.seqused = true;
  p.seq_q = 6;
  p.seq_kv = 6;
  p.total_q = 16;
  p.total_kv = 18;
  return p;
}
Lengths packed_lengths() { return {{0, 0, 5, 5, 9, 14}, {0, 3, 3, 3, 6, 12}, {0, 5, 0, 4, 3}, {3, 0, 0, 2, 6}}; }

// With q = 0 every visible key has the same weight, and with v the identity, o says which keys those are.
void expect_visible(const Problem& p, const std::function<bool(int64_t, int64_t)>& attends) {
  HandMade t(p);
  t.fill_q([](int64_t, int64_t, int64_t) { return 0.0f; });
  t.fill_v([](int64_t row, int64_t, int64_t column) { return row == column ? 1.0f : 0.0f; });
  const test::Forward f = test::exact(t);
  for (int64_t i = 0; i < p.seq_q; ++i) {
    int64_t count = 0;
    for (int64_t j = 0; j < p.seq_kv; ++j) count += attends(i, j);
    EXPECT_DOUBLE_EQ(f.lse[i], count == 0 ? -infinity : std::log(double(count))) << p.line() << " row " << i;
    for (int64_t j = 0; j < p.seq_kv; ++j) {
      const double weight = attends(i, j) ? 1.0 / count : 0.0;
      EXPECT_DOUBLE_EQ(f.o[(i * p.heads_q) * p.dim_v + j], weight) << p.line() << " row " << i << " key " << j;
    }
  }
}

TEST(Oracle, MasksAreWhatTheirDefinitionSays) {
  const int64_t lengths[] = {1, 4, 7};
  for (int64_t seq_q : lengths) {
    for (int64_t seq_kv : lengths) {
      for (int64_t left : {-1, 0, 2, 9}) {
        for (int64_t right : {-1, 0, 1, 9}) {
          for (fh_align align : {FH_BOTTOM_RIGHT, FH_TOP_LEFT}) {
            Problem p = with_mask(small_problem(), left, right, align);
            p.heads_q = p.heads_kv = 1;
            p.seq_q = seq_q;
            p.seq_kv = seq_kv;
            expect_visible(p, [&](int64_t i, int64_t j) {
              const int64_t level = i + (align == FH_BOTTOM_RIGHT ? seq_kv - seq_q : 0);
              return (left < 0 || j >= level - left) && (right < 0 || j <= level + right);
            });
          }
        }
      }
    }
  }
}

TEST(Oracle, LseIsTheLogOfTheSumOfExponentials) {
  for (const Problem& p : small_problems()) {
    HandMade t(p);
    const test::Forward f = test::exact(t);
    const test::Forward rough = test::same_precision(t);
    for (int64_t head = 0; head < p.heads_q; ++head) {
      for (int64_t i = 0; i < p.seq_q; ++i) {
        const Visible visible = visible_keys(p, p.seq_q, p.seq_kv, i);
        double sum = 0;
        for (int64_t j = visible.begin; j < visible.end; ++j) {
          double s = 0;
          for (int64_t c = 0; c < p.dim_qk; ++c) {
            s += double{load(t.views.q.data, t.views.q.at(0, i, head) + c, t.views.q.element)} *
                 load(t.views.k.data, t.views.k.at(0, j, head / 2) + c, t.views.k.element);
          }
          s *= t.problem.scale;
          sum += std::exp(p.softcap == 0 ? s : p.softcap * std::tanh(s / p.softcap));
        }
        if (p.sink) sum += std::exp(double{t.sink[head]});
        EXPECT_DOUBLE_EQ(f.lse[head * p.seq_q + i], std::log(sum)) << p.line();
        EXPECT_NEAR(rough.lse[head * p.seq_q + i], std::log(sum), 2e-6) << p.line();
      }
    }
  }
}

// A row of a sequence that sees no key: o is 0, and its denominator is the sink alone. A row of no sequence, or one
// that does not count, has no denominator.
TEST(Oracle, RowsThatSeeNothingAreZeroAndHaveTheSinkAsLse) {
  Problem p = packed_problem();
  for (const bool sink : {false, true}) {
    p.sink = sink;
    HandMade t(p, packed_lengths());
    const test::Forward f = test::exact(t);
    // Sequence 1 (rows 0-4) has no keys; of sequence 3 (rows 5-8) rows 0 and 1 lie before the first of its 2 keys;
    // of sequence 4 (rows 9-13) 3 rows count; rows 14 and 15 belong to no sequence.
    const bool attends[16] = {0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0};
    const bool counts[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0};
    for (int64_t row = 0; row < p.total_q; ++row) {
      for (int64_t head = 0; head < p.heads_q; ++head) {
        const double lse = f.lse[head * p.total_q + row];
        if (attends[row]) {
          EXPECT_TRUE(std::isfinite(lse)) << row;
        } else {
          EXPECT_EQ(lse, sink && counts[row] ? t.sink[head] : -infinity) << row;
        }
        EXPECT_EQ(f.o[(row * p.heads_q + head) * p.dim_v] != 0, attends[row]) << row;
      }
    }
  }
}

// One list a row of the table: what the problem writes, in the shape of the tensor.
TEST(Oracle, AnswersAreByTensor) {
  for (const fh_op op : {FH_FORWARD, FH_BACKWARD}) {
    Problem p = packed_problem();
    p.op = op;
    const HandMade t(p, packed_lengths());
    for (const oracle::Answers& answers :
         {oracle::compute(t.problem, t.views), oracle::compute_same_precision(t.problem, t.views)}) {
      ASSERT_EQ(answers.size(), tensors().size());
      for (size_t i = 0; i < answers.size(); ++i) {
        const Shape s = tensors()[i].shape(p);
        const int64_t numbers = is_written(tensors()[i].use(p)) ? s.batch * s.seq * s.heads * s.dim : 0;
        EXPECT_EQ(answers[i].size(), static_cast<size_t>(numbers)) << tensors()[i].name;
      }
    }
  }
}

// What the gradients are of: sum(o grad_o) + sum(lse grad_lse). A row that sees no key has no lse that could change,
// or its sink.
double loss(const HandMade& t) {
  const test::Forward f = test::exact(t);
  double sum = 0;
  for (size_t i = 0; i < f.o.size(); ++i) {
    const float grad_o = load(t.views.grad_o.data, HandMade::element(t.views.grad_o, i), Element::f32);
    if (!std::isnan(grad_o)) sum += f.o[i] * grad_o;
  }
  for (size_t i = 0; i < f.lse.size(); ++i)
    if (std::isfinite(f.lse[i])) sum += f.lse[i] * t.grad_lse[i];
  return sum;
}

// The loss's slope in one stored number. The step is what the two stored numbers really differ by.
double slope(const HandMade& t, float& x) {
  const float old = x;
  x = old + 0x1p-9f;
  const double up = loss(t), right = x;
  x = old - 0x1p-9f;
  const double down = loss(t), left = x;
  x = old;
  return (up - down) / (right - left);
}

void expect_gradients(const HandMade& t) {
  const Problem& p = t.problem;
  const oracle::Answers gradients = oracle::compute(p, t.views);
  const std::pair<View Views::*, View Views::*> pairs[] = {{&Views::q, &Views::grad_q},
                                                           {&Views::k, &Views::grad_k},
                                                           {&Views::v, &Views::grad_v},
                                                           {&Views::sink, &Views::grad_sink},
                                                           {&Views::gate, &Views::grad_gate}};
  for (const auto& [input, gradient] : pairs) {
    const View& view = t.views.*input;
    const std::vector<double>& found = gradients[index_of(gradient)];
    const char* const name = tensors()[index_of(gradient)].name;
    ASSERT_EQ(found.size(), size_t(view.batch * view.seq * view.heads * view.dim)) << name;
    for (size_t i = 0; i < found.size(); ++i) {
      float& x = static_cast<float*>(view.data)[HandMade::element(view, i)];
      EXPECT_NEAR(found[i], std::isnan(x) ? 0.0 : slope(t, x), 1e-4) << p.line() << ' ' << name << ' ' << i;
    }
  }
}

Problem backward(Problem p) {
  p.op = FH_BACKWARD;
  return p;
}

TEST(Oracle, GradientsAreCentralDifferences) {
  for (const Problem& p : small_problems()) expect_gradients(HandMade(backward(p)));
  Problem p = backward(packed_problem());
  p.sink = true;
  expect_gradients(HandMade(p, packed_lengths()));
  p.softcap = 1.5f;
  expect_gradients(HandMade(p, packed_lengths()));
  p.alibi = true;
  expect_gradients(HandMade(p, packed_lengths()));
  p.gate = true;
  expect_gradients(HandMade(p, packed_lengths()));
}

// Without grad_lse the gradient is that of sum(o grad_o) alone.
TEST(Oracle, GradLseMayBeLeftOut) {
  HandMade zeros(backward(small_problems().back()));
  for (float& x : zeros.grad_lse) x = 0;
  Views without = zeros.views;
  without.grad_lse = {};
  EXPECT_EQ(oracle::compute(zeros.problem, without), oracle::compute(zeros.problem, zeros.views));
}

// What is added to is part of the answer, also in rows of no sequence.
TEST(Oracle, GradientsAreAddedToWhatIsThere) {
  Problem p = backward(packed_problem());
  p.sink = true;
  const HandMade written(p, packed_lengths());
  p.accumulate = true;
  const HandMade added(p, packed_lengths());
  const oracle::Answers gradients = oracle::compute(written.problem, written.views);
  for (View Views::*const tensor : {&Views::grad_q, &Views::grad_k, &Views::grad_v, &Views::grad_sink}) {
    const View& view = added.views.*tensor;
    const std::vector<double>& alone = gradients[index_of(tensor)];
    for (size_t i = 0; i < alone.size(); ++i)
      view.as<float>()[HandMade::element(view, static_cast<int64_t>(i))] = static_cast<float>(i % 7);
    const std::vector<double> sums = oracle::compute(added.problem, added.views)[index_of(tensor)];
    ASSERT_EQ(sums.size(), alone.size());
    for (size_t i = 0; i < alone.size(); ++i) ASSERT_DOUBLE_EQ(sums[i], alone[i] + static_cast<float>(i % 7)) << i;
  }
}

TEST(Oracle, SamePrecisionIsAsFarAsItsStorageAllows) {
  Problem p = small_problem();
  p.seq_q = 33;
  p.seq_kv = 65;
  for (Dtype dtype : {Dtype::f16, Dtype::bf16, Dtype::f32}) {
    p.dtype = p.dtype_kv = p.dtype_o = dtype;
    HandMade t(p);
    const test::Forward exact = test::exact(t);
    const test::Forward rough = test::same_precision(t);
    double error = 0;
    for (size_t i = 0; i < exact.o.size(); ++i) {
      error = std::max(error, std::abs(exact.o[i] - rough.o[i]));
      EXPECT_EQ(rough.o[i], rounded(float(rough.o[i]), dtype));
    }
    EXPECT_LT(error, 4 * unit_roundoff(element_of(dtype)) + 1e-6);
    EXPECT_GT(error, unit_roundoff(element_of(dtype)) / 4);
  }
}

// Halfway between two neighbours the one with an even last bit is right, a little to either side the nearer one.
void expect_rounds_to_nearest_even(float (*read)(uint16_t), uint16_t (*write)(float), uint16_t largest) {
  for (int sign : {0, 0x8000}) {
    for (int i = 0; i < largest; ++i) {
      const uint16_t low = sign | i, high = sign | (i + 1);
      ASSERT_EQ(write(read(low)), low);
      const float middle = float((double{read(low)} + read(high)) / 2);
      ASSERT_EQ(write(middle), i % 2 == 0 ? low : high) << middle;
      ASSERT_EQ(write(std::nextafter(middle, read(low))), low) << middle;
      ASSERT_EQ(write(std::nextafter(middle, read(high))), high) << middle;
    }
    ASSERT_EQ(write(read(sign | largest)), sign | largest);
    const uint16_t beyond = sign | (largest + 1);
    ASSERT_TRUE(std::isinf(read(beyond)));
    ASSERT_EQ(write(read(beyond)), beyond);
    for (int i = largest + 2; i < 0x8000; ++i) {
      ASSERT_TRUE(std::isnan(read(sign | i)));
      ASSERT_TRUE(std::isnan(read(write(read(sign | i)))));
    }
  }
}

TEST(Storage, EveryF16PatternAndItsRounding) {
  expect_rounds_to_nearest_even(f16_to_float, float_to_f16, 0x7bff);
  EXPECT_EQ(f16_to_float(0x0001), 0x1p-24f);
  EXPECT_EQ(f16_to_float(0x3c00), 1.0f);
  EXPECT_EQ(f16_to_float(0x7bff), 65504.0f);
  EXPECT_EQ(float_to_f16(65519.996f), 0x7bff);
  EXPECT_EQ(float_to_f16(65520.0f), 0x7c00);
}

// Of all numbers between two neighbours, those up to the middle become the one, and from there on the other.
void expect_8_bits_round_to_nearest_even(float (*read)(uint8_t), uint8_t (*write)(float), uint8_t largest) {
  for (const int sign : {0, 0x80}) {
    for (int i = 0; i < largest; ++i) {
      const uint8_t low = sign | i, high = sign | (i + 1);
      ASSERT_EQ(write(read(low)), low);
      const float middle = (read(low) + read(high)) / 2;  // exact in fp32
      ASSERT_EQ(write(middle), i % 2 == 0 ? low : high) << middle;
      ASSERT_EQ(write(std::nextafter(middle, read(low))), low) << middle;
      ASSERT_EQ(write(std::nextafter(middle, read(high))), high) << middle;
    }
    for (const float beyond : {1.5f * read(largest), std::numeric_limits<float>::infinity()})
      EXPECT_EQ(write(sign ? -beyond : beyond), sign | largest) << "saturates";
    EXPECT_TRUE(std::isnan(read(write(std::copysign(std::numeric_limits<float>::quiet_NaN(), sign ? -1.0f : 1.0f)))));
  }
}

TEST(Storage, EveryE4m3PatternAndItsRounding) {
  expect_8_bits_round_to_nearest_even(e4m3_to_float, float_to_e4m3, 0x7e);
  EXPECT_EQ(e4m3_to_float(0x01), 0x1p-9f);
  EXPECT_EQ(e4m3_to_float(0x38), 1.0f);
  EXPECT_EQ(e4m3_to_float(0x7e), 448.0f);
  EXPECT_TRUE(std::isnan(e4m3_to_float(0x7f)) && std::isnan(e4m3_to_float(0xff)));
}

TEST(Storage, EveryE5m2PatternAndItsRounding) {
  expect_8_bits_round_to_nearest_even(e5m2_to_float, float_to_e5m2, 0x7b);
  EXPECT_EQ(e5m2_to_float(0x01), 0x1p-16f);
  EXPECT_EQ(e5m2_to_float(0x3c), 1.0f);
  EXPECT_EQ(e5m2_to_float(0x7b), 57344.0f);
  EXPECT_TRUE(std::isinf(e5m2_to_float(0xfc)) && std::isnan(e5m2_to_float(0x7d)));
}

TEST(Storage, EveryBf16PatternAndItsRounding) {
  expect_rounds_to_nearest_even(bf16_to_float, float_to_bf16, 0x7f7f);
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const uint16_t bits = i;
    if (!std::isnan(bf16_to_float(bits))) { ASSERT_EQ(std::bit_cast<uint32_t>(bf16_to_float(bits)), i << 16); }
  }
}

}  // namespace
}  // namespace froghopper
