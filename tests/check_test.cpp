// SPDX-License-Identifier: Apache-2.0
// tests: the checker is checked. Case lines are read and refused as promised, and inputs leave NaN wherever nothing
// counts. That wrong results are found: judge_test.cpp.
#include "check/check.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <set>

#include "check/data.hpp"
#include "check/layout.hpp"
#include "src/base/storage.hpp"
#include "tests/support/case_of.hpp"

namespace froghopper::check {
namespace {

using test::case_of;

TEST(CaseLine, says_everything_a_case_holds) {
  const Case c = case_of(
      "fwd bf16 b3 hq2  hkv2 sq200 skv300 d64   varlen tq400 tkv700 seqused : lens_q=200,0,90 used_kv=1,2,3   "
      "data=times4 layout=padded rows=sample only=gpu   # the reason, as it stands");
  EXPECT_EQ(c.problem.line(), "fwd bf16 b3 hq2 hkv2 sq200 skv300 d64 varlen tq400 tkv700 seqused");
  EXPECT_EQ(c.lens_q, (std::vector<int64_t>{200, 0, 90}));
  EXPECT_TRUE(c.lens_kv.empty());
  EXPECT_EQ(c.used_kv, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(c.data, "times4");
  EXPECT_EQ(c.layout, "padded");
  EXPECT_EQ(c.only, "gpu");
  EXPECT_TRUE(c.sample_rows);
  EXPECT_EQ(c.reason, "the reason, as it stands");

  Case again = case_of(c.line());
  EXPECT_EQ(again.line(), c.line());
  EXPECT_TRUE(again.reason.empty());
}

struct Refused {
  const char* line;
  size_t byte;
  const char* says;
};

class CaseLineRefusal : public testing::TestWithParam<Refused> {};

TEST_P(CaseLineRefusal, names_the_byte_and_the_cause) {
  const auto c = parse_case(GetParam().line);
  ASSERT_FALSE(c) << GetParam().line;
  EXPECT_EQ(c.failure().status, FH_INVALID_PROBLEM);
  EXPECT_EQ(c.failure().text.find("byte " + std::to_string(GetParam().byte) + ": "), 0u) << c.failure().text;
  EXPECT_NE(c.failure().text.find(GetParam().says), std::string::npos) << c.failure().text;
}

constexpr Refused refused[] = {
    {"  fwd bf17 b1 hq1 hkv1 sq1 skv1 d64", 2, "bf17"},
    {"", 0, ""},
    {"fwd bf16 b1 hq1 hkv1 sq1 skv1 d64 : date=normal", 36, "\"date=normal\" is unknown"},
    {"fwd bf16 b1 hq1 hkv1 sq1 skv1 d64 : data=normale", 41, "data=normale is unknown"},
    {"fwd bf16 b1 hq1 hkv1 sq1 skv1 d64 : data=", 41, "data= is unknown"},
    {"fwd bf16 b1 hq1 hkv1 sq1 skv1 d64 : layout=x", 43, "layout=x is unknown"},
    {"fwd bf16 b1 hq1 hkv1 sq1 skv1 d64 : rows=all", 41, "rows=all is unknown"},
    {"fwd bf16 b1 hq1 hkv1 sq1 skv1 d64 : only=tpu", 41, "only=tpu is unknown"},
    {"bwd bf16 b1 hq1 hkv1 sq1 skv1 d64 : grad_lse=no", 45, "grad_lse=no is unknown"},
    {"fwd bf16 b1 hq1 hkv1 sq1 skv1 d64 : grad_lse=yes", 36, "the problem is not backward"},
    {"fwd bf16 b2 hq1 hkv1 sq9 skv9 d64 varlen tq9 tkv9 : lens_q=1,x", 61, "is not a list of lengths"},
    {"fwd bf16 b2 hq1 hkv1 sq9 skv9 d64 varlen tq9 tkv9 : lens_q=1,", 61, "is not a list of lengths"},
    {"fwd bf16 b2 hq1 hkv1 sq9 skv9 d64 varlen tq9 tkv9 : lens_q=-1,2", 59, "is not a list of lengths"},
    {"fwd bf16 b2 hq1 hkv1 sq9 skv9 d64 varlen tq9 tkv9 : lens_q=99999999999999999999,2", 59, "not a list"},
    {"fwd bf16 b2 hq1 hkv1 sq9 skv9 d64 : lens_q=1,2", 34, "has no varlen"},
    {"fwd bf16 b2 hq1 hkv1 sq9 skv9 d64 : used_kv=1,2", 34, "has no seqused"},
    {"fwd bf16 b2 hq1 hkv1 sq9 skv9 d64 varlen tq9 tkv9 : lens_kv=1", 50,
     "has 1 length and the problem has b2; there must be one for every sequence"},
    {"fwd bf16 b2 hq1 hkv1 sq9 skv9 d64 varlen tq9 tkv9 : lens_kv=1,10", 50, "at most 9 rows"},
    {"fwd bf16 b2 hq1 hkv1 sq9 skv9 d64 varlen tq9 tkv9 : lens_kv=5,5", 50,
     "more than the packed tensor has, 9 rows"},
    {"fwd bf16 b2 hq1 hkv1 sq9 skv9 d64 seqused : used_q=5,10", 42, "at most 9 rows"},
};
INSTANTIATE_TEST_SUITE_P(Each, CaseLineRefusal, testing::ValuesIn(refused));

TEST(CaseFile, is_refused_with_line_and_byte) {
  const std::string path = testing::TempDir() + "froghopper_cases.txt";
  const std::string first = "# a comment\n\nfwd bf16 b1 hq1 hkv1 sq1 skv1 d64 # fine\n";
  std::ofstream(path) << first << "fwd bf16 b1 hq1 hkv1 sq1 skv1 d64 : data=nope\n";
  const auto cases = read_cases(path);
  ASSERT_FALSE(cases);
  const std::string wanted = path + ", line 4, byte " + std::to_string(first.size() + 41) + " of the file: data=nope";
  EXPECT_EQ(cases.failure().text.find(wanted), 0u) << cases.failure().text;
  EXPECT_FALSE(read_cases(path + ".missing"));
  EXPECT_FALSE(read_cases(testing::TempDir()));

  std::ofstream(path) << first;
  const auto fine = read_cases(path);
  ASSERT_TRUE(fine);
  ASSERT_EQ(fine->size(), 1u);
  EXPECT_EQ(fine->front().reason, "fine");
}

bool is_untouched(const Inputs::Block& block) {
  return std::ranges::all_of(block, [](unsigned char byte) { return byte == 0xff; });
}

// How many elements of a block are numbers.
int64_t numbers_in(const Inputs::Block& block, Element element) {
  int64_t count = 0;
  const auto elements = static_cast<int64_t>(block.size()) / size_of(element);
  for (int64_t i = 0; i < elements; ++i) count += !std::isnan(load(block.data(), i, element));
  return count;
}

TEST(Inputs, hold_numbers_only_where_rows_count) {
  for (const char* const layout : {"bshd", "bhsd", "padded", "odd", "unlike_v"}) {
    for (const char* const type : {"f16", "bf16", "f32"}) {
      const Case c = case_of(std::string("fwd ") + type +
                             " b3 hq4 hkv2 sq20 skv30 d16 dv24 varlen tq40 tkv70 seqused sink : lens_q=20,0,10 "
                             "lens_kv=30,20,5 used_q=7,0,10 used_kv=30,3,0 layout=" +
                             layout);
      const auto in = make_inputs(c, 1);
      EXPECT_TRUE(bind(c.problem, in->tensors)) << layout;
      const Element element = element_of(c.problem.dtype);
      EXPECT_EQ(numbers_in(in->block(&Views::q), element), (7 + 10) * 4 * 16) << layout << " " << type;
      EXPECT_EQ(numbers_in(in->block(&Views::k), element), (30 + 3) * 2 * 16) << layout << " " << type;
      EXPECT_EQ(numbers_in(in->block(&Views::v), element), (30 + 3) * 2 * 24) << layout << " " << type;
      for (size_t i = 0; i < tensors().size(); ++i)
        EXPECT_TRUE(!is_written(tensors()[i].use(c.problem)) || is_untouched(in->blocks[i])) << tensors()[i].name;
      EXPECT_EQ(in->tensors.cu_seqlens_q[3], 30);
      EXPECT_EQ(in->tensors.seqused_kv[1], 3);
    }
  }
}

// 8-bit numbers times their scales are the usual ones within their rounding; blocks that nobody reads have no scale.
TEST(Inputs, of_8_bits_are_the_usual_ones_with_scales) {
  const std::string rest = " b2 hq2 hkv1 sq200 skv300 d64 seqused";
  const std::string lengths = " : used_q=200,128 used_kv=300,100 layout=padded";
  const Case plain = case_of("fwd f32" + rest + lengths);
  const auto wide = make_inputs(plain, 1);
  const auto exact = bind(plain.problem, wide->tensors);
  for (const char* const scaled : {"", " scales128", " vcolumns"}) {
    for (const char* const type : {"e4m3", "e5m2"}) {
      const Case c = case_of(std::string("fwd ") + type + rest + scaled + lengths);
      const auto in = make_inputs(c, 1);
      const auto views = bind(c.problem, in->tensors);
      ASSERT_TRUE(views);
      EXPECT_TRUE(check_scales(c.problem, *views));
      const double u = unit_roundoff(element_of(c.problem.dtype));
      for (int64_t row = 0; row < 300; ++row) {
        const Scales scales(c.problem, views->scale_v, 0, 0);
        for (int64_t column = 0; column < 64; ++column) {
          const double x = exact->v.as<float>()[exact->v.at(0, row, 0) + column];
          const double found =
              double{load(views->v.data, views->v.at(0, row, 0) + column, views->v.element)} * scales.at(row, column);
          ASSERT_LE(std::fabs(found - x), u * std::fabs(x) + 1e-3) << c.line() << " row " << row;
        }
      }
      if (c.problem.scale_rows == 0) continue;
      EXPECT_TRUE(std::isnan(views->scale_q.as<float>()[views->scale_q.at(1, 1, 0)]));
      EXPECT_TRUE(std::isnan(views->scale_k.as<float>()[views->scale_k.at(1, 2, 0)]));
    }
  }
}

TEST(Inputs, that_nobody_chose_are_legal_and_differ_by_seed) {
  for (const char* const line :
       {"fwd f32 b9 hq2 hkv1 sq20 skv30 d16 varlen tq100 tkv150 seqused sink",
        "bwd f32 b9 hq2 hkv1 sq20 skv30 d16 varlen tq100 tkv150 seqused sink",
        "bwd f16 b9 hq2 hkv1 sq20 skv30 d16 varlen tq100 tkv150 seqused sink acc : grad_lse=yes",
        "fwd e4m3 b9 hq2 hkv1 sq200 skv300 d16 varlen tq1000 tkv1500 seqused sink scales128",
        // Enough for all cores, which share heads, except for those that lie at one place.
        "fwd e4m3 b2 hq8 hkv8 sq300 skv300 d64 scales128", "fwd bf16 b2 hq8 hkv8 sq300 skv300 d64 : layout=bhsd",
        "fwd bf16 b2 hq8 hkv8 sq300 skv300 d64 : layout=broadcast_heads",
        "fwd e4m3 b2 hq8 hkv8 sq300 skv300 d64 scales128 : layout=broadcast_batch"}) {
    const Case c = case_of(line);
    const auto one = make_inputs(c, 1), same = make_inputs(c, 1), other = make_inputs(c, 2);
    for (const auto* in : {one.get(), other.get()}) {
      const auto views = bind(c.problem, in->tensors);
      ASSERT_TRUE(views);
      const auto legal = check_lengths(c.problem, *views);
      EXPECT_TRUE(legal) << legal.failure().text;
    }
    EXPECT_EQ(one->blocks, same->blocks);
    for (size_t i = 0; i < tensors().size(); ++i) {
      const Use use = tensors()[i].use(c.problem);
      const bool read = !one->blocks[i].empty() && (!is_written(use) || use == Use::added_to);
      EXPECT_EQ(one->blocks[i] != other->blocks[i], read) << tensors()[i].name;
    }
  }
}

// o and lse are those of the forward problem; where nothing counts they hold NaN, and so does grad_o.
TEST(Inputs, of_a_backward_problem_hold_the_first_pass) {
  const std::string rest = " f16 b3 hq4 hkv2 sq20 skv30 d16 dv24 varlen tq40 tkv70 seqused sink causal";
  const std::string lengths = " : lens_q=20,0,10 lens_kv=30,20,5 used_q=7,0,10 used_kv=30,3,0";
  const Case c = case_of("bwd" + rest + lengths + " grad_lse=yes"), forward = case_of("fwd" + rest + lengths);
  const auto in = make_inputs(c, 1), plain = make_inputs(forward, 1);
  EXPECT_EQ(in->block(&Views::q), plain->block(&Views::q));
  for (View Views::*const x : {&Views::o, &Views::grad_o})
    EXPECT_EQ(numbers_in(in->block(x), Element::f16), (7 + 10) * 4 * 24);
  for (View Views::*const x : {&Views::lse, &Views::grad_lse})
    EXPECT_EQ(numbers_in(in->block(x), Element::f32), (7 + 10) * 4);

  Case sampled = c;
  sampled.sample_rows = true;  // the library's own
  const auto library = make_inputs(sampled, 1);
  EXPECT_EQ(numbers_in(library->block(&Views::o), Element::f16), (7 + 10) * 4 * 24);
  EXPECT_EQ(numbers_in(library->block(&Views::lse), Element::f32), (7 + 10) * 4);
  double off = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(in->block(&Views::lse).size() / 4); ++i) {
    const float one = load(in->block(&Views::lse).data(), i, Element::f32);
    const float other = load(library->block(&Views::lse).data(), i, Element::f32);
    if (!std::isnan(one)) off = std::max(off, std::fabs(double{one} - other));
  }
  EXPECT_LT(off, 1e-5);
  EXPECT_TRUE(is_untouched(make_inputs(c, 1, FirstPass::missing)->block(&Views::o)));
}

TEST(Inputs, that_are_added_to_are_numbers_in_every_row) {
  const Case c =
      case_of("bwd bf16 b2 hq2 hkv1 sq20 skv30 d16 seqused sink acc : used_q=7,0 used_kv=30,3 layout=padded");
  const auto in = make_inputs(c, 1);
  EXPECT_EQ(numbers_in(in->block(&Views::grad_q), Element::f32), 2 * 20 * 2 * 16);
  EXPECT_EQ(numbers_in(in->block(&Views::grad_k), Element::f32), 2 * 30 * 16);
  EXPECT_EQ(numbers_in(in->block(&Views::grad_sink), Element::f32), 2);
}

TEST(Inputs, of_every_kind_are_finite_and_give_the_scores_they_are_named_for) {
  for (const Data& data : all_data()) {
    for (const char* const type : {"f16", "bf16", "f32"}) {
      const Case c =
          case_of(std::string("fwd ") + type + " b1 hq1 hkv1 sq2 skv400 d64 : data=" + std::string(data.name));
      const auto in = make_inputs(c, 1);
      const auto views = bind(c.problem, in->tensors);
      ASSERT_TRUE(views);
      for (View Views::*const view : {&Views::q, &Views::k, &Views::v}) {
        const auto& block = in->block(view);
        const Element element = element_of(c.problem.dtype);
        for (size_t i = 0; i < block.size() / size_of(element); ++i) {
          ASSERT_FALSE(std::isinf(load(block.data(), static_cast<int64_t>(i), element))) << data.name << type;
        }
      }
    }
  }
  const Data& rising = *find_data("rising_20_a_key");
  const Case c = case_of("fwd f32 b1 hq1 hkv1 sq1 skv100 d64");
  const float score = key_column_0(rising, c.problem, 10, 100) * query_column_0 * c.problem.scale;
  EXPECT_NEAR(score, 90 * 20, 0.01);
}

// The table of the FlashAttention-3 paper: N(0,1), and N(0,100) on top in one entry of 1000.
struct Spread {
  double mean = 0, deviation = 0;
};
// Of all entries of a block times their scale; NaN where one of them is.
Spread spread_of(const Inputs::Block& block, Element element, float scale) {
  const auto elements = static_cast<int64_t>(block.size()) / size_of(element);
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < elements; ++i) {
    const double x = double{load(block.data(), i, element)} * scale;
    sum += x, squares += x * x;
  }
  const auto count = static_cast<double>(elements);
  return {sum / count, std::sqrt(squares / count - sum / count * (sum / count))};
}

// Large tensors have as many numbers of the same kind; lengths, tables and small tensors are those that are checked.
TEST(InputsToMeasure, are_as_the_others_but_large_tensors_repeat_a_piece) {
  for (const char* const line :
       {"fwd bf16 b2 hq4 hkv2 sq1 skv9000 d128 seqused page16 pages1200 : data=times4",
        "fwd e4m3 b2 hq4 hkv2 sq5 skv9000 d128 scales128", "fwd e5m2 b1 hq4 hkv2 sq5 skv9000 d128 vcolumns",
        "bwd f16 b2 hq4 hkv2 sq3000 skv3000 d128 varlen tq5000 tkv5000 : layout=padded",
        "append bf16 kv=e4m3 b2 hq4 hkv2 sq3 skv9000 d128 seqused page16 pages1200"}) {
    const Case c = case_of(line);
    const auto in = make_inputs_to_measure(c, 1), drawn = make_inputs(c, 1, FirstPass::missing);
    const auto views = bind(c.problem, in->tensors);
    ASSERT_TRUE(views) << views.failure().text;
    const auto legal = check_lengths(c.problem, *views);
    EXPECT_TRUE(legal) << legal.failure().text;
    EXPECT_TRUE(c.problem.quantises() || check_scales(c.problem, *views)) << line;
    const auto pieces = in->pieces;
    int repeated = 0;
    repeat_pieces(*in);
    for (size_t i = 0; i < in->blocks.size(); ++i) {
      const Tensor& tensor = tensors()[i];
      const bool is_scale = tensor.name == std::string("scale_k") || tensor.name == std::string("scale_v");
      ASSERT_EQ(in->blocks[i].size(), drawn->blocks[i].size()) << tensor.name;
      EXPECT_TRUE(in->pieces[i].empty());
      if (pieces[i].empty()) {
        EXPECT_TRUE(is_scale || in->blocks[i] == drawn->blocks[i]) << line << ": " << tensor.name;
        continue;
      }
      ++repeated;
      for (size_t at = 0; at < in->blocks[i].size(); at += 4096 + 1)
        ASSERT_EQ(in->blocks[i][at], pieces[i][at % pieces[i].size()]) << tensor.name << " " << at;
      if (is_untouched(drawn->blocks[i])) {
        EXPECT_TRUE(is_untouched(in->blocks[i])) << tensor.name;
        continue;
      }
      const View& view = (*views).*tensor.view;
      const bool is_k = tensor.view == &Views::k;
      const float scale = size_of(view.element) > 1 ? 1 : *(is_k ? views->scale_k : views->scale_v).as<float>();
      const Spread spread = spread_of(in->blocks[i], view.element, scale);
      EXPECT_NEAR(spread.mean, 0, 0.01) << line << ": " << tensor.name;
      EXPECT_NEAR(spread.deviation, 1, 0.01) << line << ": " << tensor.name;
    }
    EXPECT_GE(repeated, 2) << line;
  }
}

// Where entries depend on their rows, and where lse belongs to o, every number is drawn.
TEST(InputsToMeasure, of_special_kinds_are_drawn) {
  for (const char* const line : {"fwd bf16 b1 hq2 hkv2 sq9 skv9000 d128 : data=rising_100_a_tile",
                                 "fwd bf16 b1 hq2 hkv2 sq5000 skv9 d128 acc o=f32"}) {
    const Case c = case_of(line);
    EXPECT_EQ(make_inputs_to_measure(c, 1)->blocks, make_inputs(c, 1, FirstPass::missing)->blocks) << line;
  }
}

TEST(Data, outliers_are_as_rare_and_as_large_as_they_should_be) {
  const int64_t entries = 1'000'000;
  int64_t large = 0;
  double square = 0;
  for (int64_t i = 0; i < entries; ++i) {
    const float x = random_with_outliers(12, static_cast<uint64_t>(i));
    square += double{x} * x;
    large += std::fabs(x) > 6;  // of N(0,1) alone none in a million; of N(0,101) 55 %
  }
  EXPECT_NEAR(square / entries, 1 + 100 * 0.001, 0.02);
  EXPECT_NEAR(static_cast<double>(large) / entries, 0.55e-3, 0.1e-3);
}

// Sequences with used lengths on a GPU read k and v through maps of their own, so unlike strides must be possible.
TEST(Layouts, unlike_v_gives_k_strides_that_v_has_not) {
  const Case c = case_of("fwd bf16 b3 hq2 hkv2 sq20 skv30 d64 seqused : layout=unlike_v");
  const auto in = make_inputs(c, 1);
  const fh_tensor &k = in->tensors.k, &v = in->tensors.v;
  EXPECT_EQ(v.stride_batch, 30 * v.stride_seq);
  EXPECT_NE(k.stride_batch, 30 * k.stride_seq);
  EXPECT_NE(k.stride_seq, v.stride_seq);
  EXPECT_EQ(k.stride_seq % 8, 0);
  EXPECT_EQ(k.stride_batch % 8, 0);
}

TEST(Layouts, keep_elements_apart_and_reach_what_they_say) {
  for (const char* const name : all_layouts())
    for (View Views::*const tensor : {&Views::k, &Views::o}) {
      View x;
      x.batch = 2, x.seq = 3, x.heads = 4, x.dim = 8;
      const Layout l = lay_out(name, tensor, x, false, true);
      std::set<int64_t> places;
      int64_t last = 0;
      for (int64_t b = 0; b < x.batch; ++b) {
        for (int64_t row = 0; row < x.seq; ++row) {
          for (int64_t head = 0; head < x.heads; ++head) {
            const int64_t at = b * l.stride_batch + row * l.stride_seq + head * l.stride_head;
            for (int64_t column = 0; column < x.dim; ++column) places.insert(at + column);
            last = std::max(last, at + x.dim);
          }
        }
      }
      EXPECT_EQ(places.size(), static_cast<size_t>(x.batch * x.seq * x.heads * x.dim)) << name;
      EXPECT_EQ(span_of(x, l), last) << name;
    }
}

// Rows that come have numbers, those before them in the cache do not, and where they go there is room.
TEST(Inputs, of_a_cache_leave_room_for_what_comes) {
  const Case c = case_of(
      "append bf16 kv=e4m3 b4 hq4 hkv2 sq20 skv30 d16 dv32 varlen tq60 seqused page8 pages16 rotary16 rows30 norm : "
      "lens_q=20,0,10,15 used_q=7,0,10,15");
  const auto in = make_inputs(c, 1);
  const auto views = bind(c.problem, in->tensors);
  ASSERT_TRUE(views) << views.failure().text;
  EXPECT_TRUE(check_lengths(c.problem, *views)) << check_lengths(c.problem, *views).failure().text;
  EXPECT_EQ(numbers_in(in->block(&Views::q), Element::bf16), (7 + 10 + 15) * 4 * 16);
  EXPECT_EQ(numbers_in(in->block(&Views::k), Element::bf16), (7 + 10 + 15) * 2 * 16);
  EXPECT_EQ(numbers_in(in->block(&Views::v), Element::bf16), (7 + 10 + 15) * 2 * 32);
  EXPECT_EQ(numbers_in(in->block(&Views::norm_k), Element::bf16), 16);
  EXPECT_EQ(numbers_in(in->block(&Views::rotary_sin), Element::bf16), 30 * 8);
  EXPECT_EQ(numbers_in(in->block(&Views::scale_v), Element::f32), 2);
  for (View Views::*const written : {&Views::cache_k, &Views::cache_v, &Views::q_out})
    EXPECT_TRUE(is_untouched(in->block(written)));

  const Case slots = case_of("append bf16 b1 hq1 hkv1 sq16 skv0 d16 page4 pages2 slots rotary16 rows9 positions");
  const auto to_slots = make_inputs(slots, 1);
  const auto bound = bind(slots.problem, to_slots->tensors);
  ASSERT_TRUE(bound);
  EXPECT_TRUE(check_lengths(slots.problem, *bound));
  std::set<int64_t> places;
  for (int64_t row = 0; row < 16; ++row) places.insert(to_slots->tensors.slot_mapping[row]);
  EXPECT_EQ(places.size(), 16u);  // 8 slots, and padding
  EXPECT_EQ(*places.rbegin(), 7);
}

}  // namespace
}  // namespace froghopper::check
