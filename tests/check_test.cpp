// SPDX-License-Identifier: Apache-2.0
// tests: the checker is checked. Case lines are read and refused as promised, inputs leave NaN wherever nothing counts,
// and results that are wrong in one place each are found.
#include "check/check.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <set>

#include "check/backends.hpp"
#include "check/compare.hpp"
#include "check/data.hpp"
#include "check/layout.hpp"
#include "src/base/storage.hpp"
#include "src/oracle/oracle.hpp"

namespace froghopper::check {
namespace {

Case case_of(const std::string& line) {
  const auto c = parse_case(line);
  EXPECT_TRUE(c) << line << "\n" << (c ? "" : c.failure().text);
  return c ? *c : Case{};
}

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
    {"fwd bf16 b2 hq1 hkv1 sq9 skv9 d64 varlen tq9 tkv9 : lens_q=1,x", 61, "is not a list of lengths"},
    {"fwd bf16 b2 hq1 hkv1 sq9 skv9 d64 varlen tq9 tkv9 : lens_q=1,", 61, "is not a list of lengths"},
    {"fwd bf16 b2 hq1 hkv1 sq9 skv9 d64 varlen tq9 tkv9 : lens_q=-1,2", 59, "is not a list of lengths"},
    {"fwd bf16 b2 hq1 hkv1 sq9 skv9 d64 varlen tq9 tkv9 : lens_q=99999999999999999999,2", 59, "not a list"},
    {"fwd bf16 b2 hq1 hkv1 sq9 skv9 d64 : lens_q=1,2", 34, "has no varlen"},
    {"fwd bf16 b2 hq1 hkv1 sq9 skv9 d64 : used_kv=1,2", 34, "has no seqused"},
    {"fwd bf16 b2 hq1 hkv1 sq9 skv9 d64 varlen tq9 tkv9 : lens_kv=1", 50, "there is one for every sequence"},
    {"fwd bf16 b2 hq1 hkv1 sq9 skv9 d64 varlen tq9 tkv9 : lens_kv=1,10", 50, "at most 9 rows"},
    {"fwd bf16 b2 hq1 hkv1 sq9 skv9 d64 varlen tq9 tkv9 : lens_kv=5,5", 50, "more than the 9 rows"},
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

bool is_untouched(const std::vector<unsigned char>& block) {
  return std::ranges::all_of(block, [](unsigned char byte) { return byte == 0xff; });
}

// How many elements of a block are numbers.
int64_t numbers_in(const std::vector<unsigned char>& block, Element element) {
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

TEST(Inputs, that_nobody_chose_are_legal_and_differ_by_seed) {
  const Case c = case_of("fwd f32 b9 hq2 hkv1 sq20 skv30 d16 varlen tq100 tkv150 seqused sink");
  const auto one = make_inputs(c, 1), same = make_inputs(c, 1), other = make_inputs(c, 2);
  for (const auto* in : {one.get(), other.get()}) {
    const auto views = bind(c.problem, in->tensors);
    ASSERT_TRUE(views);
    const auto legal = check_lengths(c.problem, *views);
    EXPECT_TRUE(legal) << legal.failure().text;
  }
  EXPECT_EQ(one->blocks, same->blocks);
  for (size_t i = 0; i < tensors().size(); ++i)
    EXPECT_EQ(one->blocks[i] == other->blocks[i], is_written(tensors()[i].use(c.problem))) << tensors()[i].name;
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

// A case with the oracle's plain loops as its result, to be spoilt.
class Judge : public testing::Test {
 protected:
  void SetUp() override { start("fwd bf16 b2 hq2 hkv1 sq40 skv30 d64 causal sink : layout=padded"); }

  void start(const std::string& line) {
    c_ = case_of(line);
    in_ = make_inputs(c_, 1);
    const auto views = bind(c_.problem, in_->tensors);
    ASSERT_TRUE(views);
    views_ = *views;
    before_ = hashes_of(c_.problem, *in_);
    const oracle::Answers answers = oracle::compute_same_precision(c_.problem, views_);
    for (size_t i = 0; i < answers.size(); ++i) {
      if (!is_written(tensors()[i].use(c_.problem))) continue;
      const View& view = views_.*tensors()[i].view;
      auto next = answers[i].begin();
      each_row(view, [&](int64_t at) {
        for (int64_t c = 0; c < view.dim; ++c) store(view.data, at + c, view.element, static_cast<float>(*next++));
      });
    }
  }

  // visit(where the row begins)
  static void each_row(const View& view, const std::function<void(int64_t)>& visit) {
    for (int64_t b = 0; b < view.batch; ++b)
      for (int64_t i = 0; i < view.seq; ++i)
        for (int64_t head = 0; head < view.heads; ++head) visit(view.at(b, i, head));
  }

  float* lse() const { return views_.lse.as<float>(); }
  int64_t place(int64_t b, int64_t row, int64_t head) const { return views_.o.at(b, row, head); }

  std::string verdict() {
    Outcome out;
    judge(c_, views_, *in_, before_, out);
    EXPECT_EQ(out.passed, out.why.empty());
    return out.why;
  }

  Case c_;
  std::unique_ptr<Inputs> in_;
  Views views_;
  Hashes before_;
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
  EXPECT_EQ(verdict(), "o: byte 128 from its begin was written, which belongs to no row");
}

TEST_F(Judge, finds_a_write_before_the_tensor) {
  lse()[-1] = 0;
  EXPECT_EQ(verdict(), "lse: byte -4 from its begin was written, which belongs to no row");
}

TEST_F(Judge, finds_a_written_input) {
  static_cast<uint16_t*>(views_.v.data)[-1] = 0;
  EXPECT_EQ(verdict(), "v or memory beside it was written; it is only read");
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
  EXPECT_EQ(verdict(), "batch 0 row 3 head 0 sees no key: lse must be -inf and is 0");
}

TEST_F(Judge, finds_a_row_that_sees_nothing_and_has_an_output) {
  static_cast<uint16_t*>(views_.o.data)[place(0, 3, 0) + 1] = 1;
  EXPECT_NE(verdict().find("batch 0 row 3 head 0: all of o must be 0 there"), std::string::npos);
}

TEST_F(Judge, finds_an_lse_in_base_2) {
  each_row(views_.lse, [&](int64_t at) { lse()[at] *= static_cast<float>(M_LOG2E); });
  EXPECT_NE(verdict().find("lse is "), std::string::npos);
}

TEST_F(Judge, finds_an_lse_off_by_one_part_in_a_hundred_thousand) {
  lse()[39] += 1e-5f * (1 + std::fabs(lse()[39]));
  EXPECT_NE(verdict().find("batch 0 row 39 head 0: lse is "), std::string::npos);
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
        "fwd f16 b3 hq2 hkv2 sq20 skv30 d8 seqused causal topleft : layout=bhsd"}) {
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
  judge(c_, views_, *in_, before_, out);
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
