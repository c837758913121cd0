// SPDX-License-Identifier: Apache-2.0
// tests: 8-bit q, k and v on the CPU. Each number is one of bf16 and of f32 too, so with scales of 1 the backend must
// give, bit for bit, what the same kernel gives for tensors of such a type that hold them. Scales are for the judge.
#include <bit>
#include <string>

#include "src/base/text.hpp"
#include "tests/support/cpu_problems.hpp"

namespace froghopper {
namespace {

using namespace test;

Problem parsed(const std::string& line) {
  const auto p = Problem::parse(line);
  EXPECT_TRUE(p) << p.failure().text;
  return *p;
}

// The problem whose tensors hold in `type` what those of p hold in 8 bits.
Problem in(Dtype type, Problem p) {
  p.dtype = p.dtype_kv = p.dtype_o = type;
  p.scale_rows = 0, p.scale_v_columns = p.scale_tokens = false;
  return p;
}

void copy_numbers(const HandMade& from, HandMade& to, View Views::*tensor) {
  const View& x = from.views.*tensor;
  View& y = to.views.*tensor;
  const auto rows_of = tensor == &Views::q ? rows_q : rows_kv;
  for (int64_t b = 0; b < to.problem.batch; ++b) {
    const Rows rows = rows_of(to.problem, to.views, b);
    for (int64_t i = 0; i < rows.used; ++i)
      for (int64_t head = 0; head < x.heads; ++head)
        for (int64_t c = 0; c < x.dim; ++c)
          store(y.data, y.at(rows.batch, rows.first + i, head) + c, y.element,
                load(x.data, x.at(rows.batch, rows.first + i, head) + c, x.element));
  }
}

void set_scales_to_1(HandMade& t) {
  for (View Views::*scale : {&Views::scale_q, &Views::scale_k, &Views::scale_v}) {
    View& view = t.views.*scale;
    for (int64_t sequence = 0; sequence < view.batch; ++sequence)
      for (int64_t block = 0; block < view.seq; ++block)
        for (int64_t head = 0; head < view.heads; ++head)
          std::fill_n(view.as<float>() + view.at(sequence, block, head), view.dim, 1.0f);
  }
}

void expect_as_in_wider(const Problem& p, const Lengths& lengths = {}) {
  Problem with_floats = p;  // so that o is as the kernel has it
  with_floats.dtype_o = Dtype::f32;
  const Dtype multiplied = cpu::multiplied_as(p);
  for (const cpu::Kernel* kernel : cpu::kernels(multiplied)) {
    HandMade t(p, lengths), unrounded(with_floats, lengths),
        wide(in(kernel->bf16_only ? Dtype::bf16 : Dtype::f32, p), lengths);
    wide.sink = t.sink;
    for (View Views::*tensor : {&Views::q, &Views::k, &Views::v}) copy_numbers(t, wide, tensor);
    for (HandMade* each : {&t, &unrounded, &wide}) {
      set_scales_to_1(*each);
      const Result<void> done = cpu::run(cpu::plan_with(*kernel, each->problem), each->views);
      ASSERT_TRUE(done) << done.failure().text;
    }
    for (size_t i = 0; i < wide.lse.size(); ++i)
      ASSERT_EQ(std::bit_cast<uint32_t>(t.lse[i]), std::bit_cast<uint32_t>(wide.lse[i])) << kernel->name << p.line();
    // In pairs, each block of v's rows is added up by itself, and with scales of rows each tile.
    const bool other_order = kernel->bf16_only && (p.scale_tokens || (p.scale_rows > 0 && !p.scale_v_columns));
    for (int64_t i = 0; i < p.rows_q() * p.heads_q * p.dim_v; ++i) {
      const auto o = static_cast<float>(unrounded.o(i));
      const double found = rounded(o, wide.problem.dtype_o), expected = wide.o(i);
      ASSERT_NEAR(found, expected, other_order ? std::abs(expected) * 0x1p-7 + 1e-6 : 0) << kernel->name << p.line();
      ASSERT_EQ(rounded(o, p.dtype_o), t.o(i)) << kernel->name << ' ' << p.line();
    }
  }
  expect_right(p, lengths);  // with scales
}

TEST(Cpu8Bit, EveryHeadDimAndType) {
  for (const char* types :
       {"e4m3", "e5m2", "bf16 kv=e4m3", "f16 kv=e5m2", "e4m3 o=f32", "e5m2 o=f16", "f16 kv=e4m3 o=f32"}) {
    for (const int dim : {16, 80, 128, 208, 256})
      expect_as_in_wider(parsed(std::string("fwd ") + types + " b2 hq2 hkv1 sq37 skv150 d" + std::to_string(dim)));
  }
}

TEST(Cpu8Bit, UpTo512ColumnsBeside16BitQ) {
  for (const char* types : {"bf16 kv=e4m3", "f16 kv=e5m2"})
    for (const char* dims : {"d272", "d512", "d64 dv400"})
      for (const char* rows : {"sq1 skv150", "sq37 skv150"})
        expect_as_in_wider(parsed(text("fwd {} b2 hq4 hkv1 {} {}", types, rows, dims)));
}

TEST(Cpu8Bit, ScalesOfBlocksColumnsAndRows) {
  for (const char* scales : {"", " scales128", " vcolumns", " scales128 vcolumns", " tokenscales"}) {
    for (const char* rows : {"sq1 skv129", "sq130 skv128", "sq257 skv400", "sq300 skv127"})
      for (const char* types : {"e4m3", "bf16 kv=e4m3"})
        expect_as_in_wider(parsed(text("fwd {} b2 hq6 hkv2 {} d32 dv48 causal{}", types, rows, scales)));
  }
}

TEST(Cpu8Bit, Options) {
  for (const char* options :
       {"window20,0", "window130,5 topleft", "causal softcap30", "softcap0.5 sink", "scale0.3 sink causal"})
    expect_as_in_wider(parsed(std::string("fwd e5m2 b1 hq4 hkv2 sq200 skv300 d64 scales128 ") + options));
}

TEST(Cpu8Bit, LengthsOfTheirOwn) {
  const Lengths packed{{0, 0, 50, 190, 190, 390, 391}, {0, 10, 10, 60, 60, 330, 331}, {}, {}};
  Lengths used = packed;
  used.used_q = {0, 49, 140, 0, 130, 0};
  used.used_kv = {9, 0, 1, 0, 129, 1};
  for (const char* scales : {"", " scales128", " vcolumns", " tokenscales"}) {
    const std::string line = "fwd e4m3 b6 hq4 hkv2 sq200 skv300 d48 varlen tq400 tkv500";
    expect_as_in_wider(parsed(line + " causal" + scales), packed);
    expect_as_in_wider(parsed(line + " seqused sink" + scales), used);
    expect_as_in_wider(parsed(std::string("fwd bf16 kv=e5m2 b4 hq2 hkv2 sq70 skv200 d64 seqused") + scales),
                       {{}, {}, {70, 0, 13, 65}, {200, 100, 0, 131}});
  }
}

TEST(Cpu8Bit, NothingToDo) {
  for (const char* sizes : {"b0 hq2 hkv2 sq5 skv5", "b2 hq2 hkv2 sq0 skv5", "b2 hq2 hkv2 sq5 skv0"})
    for (const char* scales : {"", " scales128", " vcolumns", " tokenscales"})
      expect_as_in_wider(parsed(std::string("fwd e4m3 ") + sizes + " d16 sink" + scales));
}

// Every number of both types, as v of a single key.
TEST(Cpu8Bit, EveryPatternIsReadExactly) {
  for (const Dtype type : {Dtype::e4m3, Dtype::e5m2}) {
    for (const cpu::Kernel* kernel : cpu::kernels(Dtype::bf16)) {
      HandMade t(parsed(std::string("fwd ") + name_of(type) + " o=f32 b1 hq1 hkv1 sq1 skv1 d16 dv256"));
      for (int i = 0; i < 256; ++i) t.views.v.as<uint8_t>()[i] = static_cast<uint8_t>(i);
      *t.views.scale_v.as<float>() = 0.5f;
      const Result<void> done = cpu::run(cpu::plan_with(*kernel, t.problem), t.views);
      ASSERT_TRUE(done) << done.failure().text;
      for (int i = 0; i < 256; ++i) {
        const float exact = 0.5f * load(t.views.v.data, i, element_of(type)), found = t.views.o.as<float>()[i];
        ASSERT_TRUE(found == exact || (std::isnan(found) && std::isnan(exact)))
            << kernel->name << ' ' << i << ' ' << found;
      }
    }
  }
}

void run_with(const cpu::Kernel& kernel, const HandMade& t) {
  const Result<void> done = cpu::run(cpu::plan_with(kernel, t.problem), t.views);
  ASSERT_TRUE(done) << done.failure().text;
}

// A number that is not finite, in keys that some rows of a tile attend to and others do not.
TEST(Cpu8Bit, UnseenKeysDoNotMatterWhateverTheyHold) {
  constexpr uint8_t nan_of_both = 0x7f, infinity_of_e5m2 = 0x7c;
  struct Bad {
    const char* type;
    uint8_t number;
  };
  for (const Bad bad : {Bad{"e4m3", nan_of_both}, Bad{"e5m2", nan_of_both}, Bad{"e5m2", infinity_of_e5m2}}) {
    for (const char* scales : {"", " scales128", " vcolumns"}) {
      const Problem p = parsed(std::string("fwd ") + bad.type + " b1 hq1 hkv1 sq200 skv200 d16 window30,0" + scales);
      for (const cpu::Kernel* kernel : cpu::kernels(Dtype::bf16)) {
        constexpr int64_t bad_key = 129;
        HandMade clean(p), t(p);
        for (View* const view : {&t.views.k, &t.views.v})
          std::fill_n(view->as<uint8_t>() + view->at(0, bad_key, 0), 16, bad.number);
        run_with(*kernel, clean);
        run_with(*kernel, t);
        for (int64_t i = 0; i < 200 * 16; ++i) {
          const int64_t row = i / 16;
          if (bad_key <= row && row <= bad_key + 30) {
            ASSERT_FALSE(std::isfinite(t.o(i))) << kernel->name << ' ' << p.line() << ' ' << row;
          } else {  // weights are not rounded beside such a number
            ASSERT_NEAR(t.o(i), clean.o(i), 0.05) << kernel->name << ' ' << p.line() << ' ' << row;
          }
        }
      }
    }
  }
}

void multiply_scales(View& scales, float factor) {
  for (int64_t block = 0; block < scales.seq; ++block)
    for (int64_t c = 0; c < scales.dim; ++c) scales.as<float>()[scales.at(0, block, 0) + c] *= factor;
}

// Scales whose products with each other or with sums of v pass the largest float, for scores and an o that do not.
TEST(Cpu8Bit, HugeScales) {
  for (const char* scales : {"", " scales128", " vcolumns", " scales128 vcolumns", " tokenscales"}) {
    for (const char* rows : {"sq1", "sq70"}) {
      const Problem p = parsed(std::string("fwd e4m3 o=f32 b1 hq1 hkv1 skv300 d16 ") + rows + scales);
      for (const cpu::Kernel* kernel : cpu::kernels(Dtype::bf16)) {
        HandMade usual(p), t(p);
        for (HandMade* each : {&usual, &t}) each->fill_v([](int64_t, int64_t, int64_t c) { return 3.0f + c; });
        multiply_scales(t.views.scale_q, 0x1p90f);
        multiply_scales(t.views.scale_k, 0x1p-90f);
        multiply_scales(t.views.scale_v, 0x1p122f);
        run_with(*kernel, usual);
        run_with(*kernel, t);
        for (int64_t i = 0; i < p.rows_q() * p.dim_v; ++i)
          ASSERT_NEAR(t.o(i) * 0x1p-122, usual.o(i), 1e-5 * usual.o(i))
              << kernel->name << ' ' << p.line() << ' ' << i;
        for (size_t i = 0; i < t.lse.size(); ++i) ASSERT_NEAR(t.lse[i], usual.lse[i], 1e-5) << kernel->name;
      }
    }
  }
}

struct BadScale {
  View Views::*tensor;
  int64_t at;  // element
  float scale;
  const char* message;
};

TEST(Cpu8Bit, BadScalesAreRefusedAndNothingIsWritten) {
  const BadScale all[] = {
      {&Views::scale_q, 0, 0,
       "scale_q of sequence 0, head 0 is 0; a scale is positive, from 1.2e-38 to 8.5e37 (2^-126 to 2^126). Use 1 for "
       "values that stand for themselves."},
      {&Views::scale_k, 0, -2,
       "scale_k of sequence 0, block 0, head 0 is -2; a scale is positive, from 1.2e-38 to 8.5e37 (2^-126 to 2^126). "
       "Use 1 for values that stand for themselves."},
      {&Views::scale_v, 7, nan,
       "scale_v of sequence 0, head 0, column 7 is nan; a scale is positive, from 1.2e-38 to 8.5e37 (2^-126 to "
       "2^126). Use 1 for values "
       "that stand for themselves."},
      {&Views::scale_v, 7, infinity,
       "scale_v of sequence 0, head 0, column 7 is inf; a scale is positive, from 1.2e-38 to 8.5e37 (2^-126 to "
       "2^126). Use 1 for values "
       "that stand for themselves."},
  };
  for (const BadScale& bad : all) {
    HandMade t(parsed("fwd e4m3 b2 hq2 hkv2 sq9 skv200 d16 scales128 vcolumns"));
    (t.views.*bad.tensor).as<float>()[bad.at] = bad.scale;
    const Result<void> done = run_here(t);
    ASSERT_FALSE(done) << bad.message;
    EXPECT_EQ(done.failure().status, FH_INVALID_TENSOR);
    EXPECT_EQ(done.failure().text, bad.message);
    EXPECT_TRUE(std::isnan(t.o(0)) && std::isnan(t.lse[0]));
  }
  HandMade second(parsed("fwd e4m3 b2 hq2 hkv2 sq9 skv200 d16 scales128"));
  second.views.scale_k.as<float>()[second.views.scale_k.at(1, 1, 1)] = 0;
  const Result<void> done = run_here(second);
  ASSERT_FALSE(done);
  EXPECT_TRUE(done.failure().text.starts_with("scale_k of sequence 1, block 1, head 1 is 0;"));

  const Lengths lengths{{}, {}, {9, 9}, {200, 70}};
  HandMade tokens(parsed("fwd e4m3 b2 hq2 hkv2 sq9 skv200 d16 seqused tokenscales"), lengths);
  float& used = tokens.views.scale_v.as<float>()[tokens.views.scale_v.at(1, 69, 1)];
  EXPECT_TRUE(run_here(tokens)) << "scales of rows that are not used may be anything";
  used = -1;
  const Result<void> of_token = run_here(tokens);
  ASSERT_FALSE(of_token);
  EXPECT_TRUE(of_token.failure().text.starts_with("scale_v of sequence 1, row 69, head 1 is -1;"));
  used = 1, tokens.views.scale_q.as<float>()[0] = 0;
  const Result<void> of_q = run_here(tokens);
  ASSERT_FALSE(of_q);
  EXPECT_TRUE(of_q.failure().text.starts_with("scale_q of sequence 0, head 0 is 0;"));
}

}  // namespace
}  // namespace froghopper
