// SPDX-License-Identifier: Apache-2.0
// tests: 8-bit q, k and v on the CPU. What they stand for is exact in fp32 but for the product with the scale, so the
// backend must give, bit for bit, what the same kernel gives for f32 tensors that hold those products.
#include <bit>
#include <string>

#include "tests/support/cpu_problems.hpp"

namespace froghopper {
namespace {

using namespace test;

Problem parsed(const std::string& line) {
  const auto p = Problem::parse(line);
  EXPECT_TRUE(p) << p.failure().text;
  return *p;
}

// The problem whose tensors hold in f32 what those of t stand for.
Problem in_f32(Problem p) {
  p.dtype = p.dtype_kv = p.dtype_o = Dtype::f32;
  p.scale_rows = 0, p.scale_v_columns = false;
  return p;
}

float stands_for(const HandMade& t, View Views::*tensor, View Views::*scale, int64_t sequence, int64_t row,
                 int64_t head, int64_t column) {
  const View& x = t.views.*tensor;
  const Rows rows = (tensor == &Views::q ? rows_q : rows_kv)(t.problem, t.views, sequence);
  const float stored = load(x.data, x.at(rows.batch, rows.first + row, head) + column, x.element);
  const View& scales = t.views.*scale;
  if (!scales.data) return stored;
  const int64_t block = t.problem.scale_rows > 0 && scales.seq > 1 ? row / t.problem.scale_rows : 0;
  return stored * scales.as<float>()[scales.at(sequence, block, head) + (scales.dim > 1 ? column : 0)];
}

void copy_numbers(const HandMade& from, HandMade& to, View Views::*tensor, View Views::*scale) {
  View& x = to.views.*tensor;
  const auto rows_of = tensor == &Views::q ? rows_q : rows_kv;
  for (int64_t b = 0; b < to.problem.batch; ++b) {
    const Rows rows = rows_of(to.problem, to.views, b);
    for (int64_t i = 0; i < rows.used; ++i)
      for (int64_t head = 0; head < x.heads; ++head)
        for (int64_t c = 0; c < x.dim; ++c)
          x.as<float>()[x.at(rows.batch, rows.first + i, head) + c] = stands_for(from, tensor, scale, b, i, head, c);
  }
}

void expect_as_in_f32(const Problem& p, const Lengths& lengths = {}) {
  for (const cpu::Kernel* kernel : cpu::kernels(p.dtype_kv)) {
    HandMade t(p, lengths), wide(in_f32(p), lengths);
    wide.sink = t.sink;
    copy_numbers(t, wide, &Views::q, &Views::scale_q);
    copy_numbers(t, wide, &Views::k, &Views::scale_k);
    copy_numbers(t, wide, &Views::v, &Views::scale_v);
    for (HandMade* each : {&t, &wide}) {
      const Result<void> done = cpu::run(cpu::plan_with(*kernel, each->problem), each->views);
      ASSERT_TRUE(done) << done.failure().text;
    }
    for (size_t i = 0; i < wide.lse.size(); ++i)
      ASSERT_EQ(std::bit_cast<uint32_t>(t.lse[i]), std::bit_cast<uint32_t>(wide.lse[i])) << kernel->name << p.line();
    for (int64_t i = 0; i < p.rows_q() * p.heads_q * p.dim_v; ++i)
      ASSERT_EQ(t.o(i), rounded(static_cast<float>(wide.o(i)), p.dtype_o)) << kernel->name << ' ' << p.line();
  }
  expect_right(p, lengths);  // and the oracle reads the same numbers
}

TEST(Cpu8Bit, EveryHeadDimAndType) {
  for (const char* types :
       {"e4m3", "e5m2", "bf16 kv=e4m3", "f16 kv=e5m2", "e4m3 o=f32", "e5m2 o=f16", "f16 kv=e4m3 o=f32"}) {
    for (const int dim : {16, 80, 128, 208, 256})
      expect_as_in_f32(parsed(std::string("fwd ") + types + " b2 hq2 hkv1 sq37 skv150 d" + std::to_string(dim)));
  }
}

TEST(Cpu8Bit, ScalesOfBlocksAndOfColumns) {
  for (const char* scales : {"", " scales128", " vcolumns", " scales128 vcolumns"}) {
    for (const char* rows : {"sq1 skv129", "sq130 skv128", "sq257 skv400", "sq300 skv127"})
      expect_as_in_f32(parsed(std::string("fwd e4m3 b2 hq6 hkv2 ") + rows + " d32 dv48 causal" + scales));
  }
}

TEST(Cpu8Bit, Options) {
  for (const char* options :
       {"window20,0", "window130,5 topleft", "causal softcap30", "softcap0.5 sink", "scale0.3 sink causal"})
    expect_as_in_f32(parsed(std::string("fwd e5m2 b1 hq4 hkv2 sq200 skv300 d64 scales128 ") + options));
}

TEST(Cpu8Bit, LengthsOfTheirOwn) {
  const Lengths packed{{0, 0, 50, 190, 190, 390, 391}, {0, 10, 10, 60, 60, 330, 331}, {}, {}};
  Lengths used = packed;
  used.used_q = {0, 49, 140, 0, 130, 0};
  used.used_kv = {9, 0, 1, 0, 129, 1};
  for (const char* scales : {"", " scales128", " vcolumns"}) {
    const std::string line = "fwd e4m3 b6 hq4 hkv2 sq200 skv300 d48 varlen tq400 tkv500";
    expect_as_in_f32(parsed(line + " causal" + scales), packed);
    expect_as_in_f32(parsed(line + " seqused sink" + scales), used);
    expect_as_in_f32(parsed(std::string("fwd bf16 kv=e5m2 b4 hq2 hkv2 sq70 skv200 d64 seqused") + scales),
                     {{}, {}, {70, 0, 13, 65}, {200, 100, 0, 131}});
  }
}

TEST(Cpu8Bit, NothingToDo) {
  for (const char* sizes : {"b0 hq2 hkv2 sq5 skv5", "b2 hq2 hkv2 sq0 skv5", "b2 hq2 hkv2 sq5 skv0"})
    for (const char* scales : {"", " scales128", " vcolumns"})
      expect_as_in_f32(parsed(std::string("fwd e4m3 ") + sizes + " d16 sink" + scales));
}

// Every number of both types, as v of a single key.
TEST(Cpu8Bit, EveryPatternIsReadExactly) {
  for (const Dtype type : {Dtype::e4m3, Dtype::e5m2}) {
    for (const cpu::Kernel* kernel : cpu::kernels(type)) {
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

struct BadScale {
  View Views::*tensor;
  int64_t at;  // element
  float scale;
  const char* message;
};

TEST(Cpu8Bit, BadScalesAreRefusedAndNothingIsWritten) {
  const BadScale all[] = {
      {&Views::scale_q, 0, 0,
       "scale_q[0, 0, 0, 0] is 0; a scale is positive and finite. Use 1 for numbers that stand for themselves."},
      {&Views::scale_k, 0, -2,
       "scale_k[0, 0, 0, 0] is -2; a scale is positive and finite. Use 1 for numbers that stand for themselves."},
      {&Views::scale_v, 7, nan,
       "scale_v[0, 0, 0, 7] is nan; a scale is positive and finite. Use 1 for numbers that stand for themselves."},
      {&Views::scale_v, 7, infinity,
       "scale_v[0, 0, 0, 7] is inf; a scale is positive and finite. Use 1 for numbers that stand for themselves."},
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
  EXPECT_EQ(done.failure().text.substr(0, 24), "scale_k[1, 1, 1, 0] is 0");
}

}  // namespace
}  // namespace froghopper
