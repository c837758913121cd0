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
int64_t numbers_in(const std::vector<unsigned char>& block, Dtype dtype) {
  int64_t count = 0;
  const auto elements = static_cast<int64_t>(block.size()) / size_of(dtype);
  for (int64_t i = 0; i < elements; ++i) count += !std::isnan(load(block.data(), i, dtype));
  return count;
}

TEST(Inputs, hold_numbers_only_where_rows_count) {
  for (const char* const layout : {"bshd", "bhsd", "padded", "odd"}) {
    for (const char* const type : {"f16", "bf16", "f32"}) {
      const Case c = case_of(std::string("fwd ") + type +
                             " b3 hq4 hkv2 sq20 skv30 d16 dv24 varlen tq40 tkv70 seqused sink : lens_q=20,0,10 "
                             "lens_kv=30,20,5 used_q=7,0,10 used_kv=30,3,0 layout=" +
                             layout);
      const auto in = make_inputs(c, 1);
      EXPECT_TRUE(bind(c.problem, in->tensors)) << layout;
      EXPECT_EQ(numbers_in(in->blocks[part_q], c.problem.dtype), (7 + 10) * 4 * 16) << layout << " " << type;
      EXPECT_EQ(numbers_in(in->blocks[part_k], c.problem.dtype), (30 + 3) * 2 * 16) << layout << " " << type;
      EXPECT_EQ(numbers_in(in->blocks[part_v], c.problem.dtype), (30 + 3) * 2 * 24) << layout << " " << type;
      EXPECT_TRUE(is_untouched(in->blocks[part_o]));
      EXPECT_TRUE(is_untouched(in->blocks[part_lse]));
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
  EXPECT_NE(one->blocks[part_q], other->blocks[part_q]);
  EXPECT_NE(one->blocks[part_cu_q], other->blocks[part_cu_q]);
}

TEST(Inputs, of_every_kind_are_finite_and_give_the_scores_they_are_named_for) {
  for (const Data& data : all_data()) {
    for (const char* const type : {"f16", "bf16", "f32"}) {
      const Case c =
          case_of(std::string("fwd ") + type + " b1 hq1 hkv1 sq2 skv400 d64 : data=" + std::string(data.name));
      const auto in = make_inputs(c, 1);
      const auto views = bind(c.problem, in->tensors);
      ASSERT_TRUE(views);
      for (const Part part : {part_q, part_k, part_v}) {
        const auto& block = in->blocks[part];
        for (size_t i = 0; i < block.size() / size_of(c.problem.dtype); ++i) {
          ASSERT_FALSE(std::isinf(load(block.data(), static_cast<int64_t>(i), c.problem.dtype))) << data.name << type;
        }
      }
    }
  }
  const Data& rising = *find_data("rising_20_a_key");
  const Case c = case_of("fwd f32 b1 hq1 hkv1 sq1 skv100 d64");
  const float score = key_column_0(rising, c.problem, 10, 100) * query_column_0 * c.problem.scale;
  EXPECT_NEAR(score, 90 * 20, 0.01);
}

TEST(Layouts, keep_elements_apart_and_reach_what_they_say) {
  for (const char* const name : all_layouts()) {
    View x;
    x.batch = 2, x.seq = 3, x.heads = 4, x.dim = 8;
    const Layout l = lay_out(name, x, false, true);
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
    before_ = hashes_of(*in_);
    const oracle::Forward result = oracle::forward_same_precision(c_.problem, views_);
    each_row([&](int64_t at, int64_t row, float& lse, int64_t lse_row) {
      for (int64_t c = 0; c < views_.o.dim; ++c) {
        store(views_.o.data, at + c, c_.problem.dtype, static_cast<float>(result.o[row * views_.o.dim + c]));
      }
      lse = static_cast<float>(result.lse[lse_row]);
    });
  }

  void each_row(const std::function<void(int64_t, int64_t, float&, int64_t)>& visit) {
    const View& o = views_.o;
    for (int64_t b = 0; b < o.batch; ++b) {
      for (int64_t i = 0; i < o.seq; ++i) {
        for (int64_t head = 0; head < o.heads; ++head) {
          const int64_t lse_row = (b * o.heads + head) * o.seq + i;
          visit(b * o.stride_batch + i * o.stride_seq + head * o.stride_head, (b * o.seq + i) * o.heads + head,
                views_.lse[lse_row], lse_row);
        }
      }
    }
  }

  int64_t place(int64_t b, int64_t row, int64_t head) const {
    return b * views_.o.stride_batch + row * views_.o.stride_seq + head * views_.o.stride_head;
  }

  std::string verdict() {
    Outcome out;
    judge(c_, views_, *in_, before_, out);
    EXPECT_EQ(out.passed, out.why.empty());
    return out.why;
  }

  Case c_;
  std::unique_ptr<Inputs> in_;
  Views views_;
  Hashes before_{};
};

TEST_F(Judge, accepts_what_plain_loops_compute) { EXPECT_EQ(verdict(), ""); }

TEST_F(Judge, finds_an_element_that_was_not_written) {
  std::memset(static_cast<uint16_t*>(views_.o.data) + place(1, 17, 1) + 63, 0xff, 2);
  EXPECT_EQ(verdict(), "batch 1 row 17 head 1 column 63: o is NaN, or was not written");
}

TEST_F(Judge, finds_an_lse_that_was_not_written) {
  std::memset(&views_.lse[(1 * 2 + 0) * 40 + 39], 0xff, 4);
  EXPECT_EQ(verdict(), "batch 1 row 39 head 0: lse is NaN, or was not written");
}

TEST_F(Judge, finds_a_write_into_a_gap) {
  static_cast<uint16_t*>(views_.o.data)[64] = 0;
  EXPECT_EQ(verdict(), "o: byte 128 from its begin was written, which belongs to no row");
}

TEST_F(Judge, finds_a_write_before_the_tensor) {
  views_.lse[-1] = 0;
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

TEST_F(Judge, finds_a_row_that_sees_nothing_and_has_a_finite_lse) {
  views_.lse[3] = 0;
  EXPECT_EQ(verdict(), "batch 0 row 3 head 0 sees no key: lse must be -inf and is 0");
}

TEST_F(Judge, finds_a_row_that_sees_nothing_and_has_an_output) {
  static_cast<uint16_t*>(views_.o.data)[place(0, 3, 0) + 1] = 1;
  EXPECT_NE(verdict().find("batch 0 row 3 head 0 sees no key: o must be 0 and is "), std::string::npos);
}

TEST_F(Judge, finds_an_lse_in_base_2) {
  each_row([](int64_t, int64_t, float& lse, int64_t) { lse *= static_cast<float>(M_LOG2E); });
  EXPECT_NE(verdict().find("lse is "), std::string::npos);
}

TEST_F(Judge, finds_an_lse_off_by_one_part_in_a_hundred_thousand) {
  views_.lse[39] += 1e-5f * (1 + std::fabs(views_.lse[39]));
  EXPECT_NE(verdict().find("batch 0 row 39 head 0: lse is "), std::string::npos);
}

// Errors below every bound of a single element, but all to the same side: R46.
TEST_F(Judge, finds_errors_with_a_common_sign) {
  start("fwd f32 b1 hq8 hkv8 sq500 skv60 d16");
  EXPECT_EQ(verdict(), "");
  start("fwd bf16 b1 hq8 hkv8 sq500 skv60 d16");
  each_row([&](int64_t at, int64_t, float&, int64_t) {
    for (int64_t c = 0; c < views_.o.dim; ++c) {
      uint16_t& bits = static_cast<uint16_t*>(views_.o.data)[at + c];
      bits += random_bits(5, static_cast<uint64_t>(at + c)) % 4 == 0;  // a quarter of them one step further from zero
    }
  });
  EXPECT_NE(verdict().find("mean gain is "), std::string::npos);
}

// Masks, packed sequences, sinks and the end of the tensor: a sampled row must be the same problem as the whole.
TEST(Reference, of_some_rows_agrees_with_that_of_all) {
  for (const std::string line :
       {"fwd f32 b2 hq4 hkv2 sq40 skv70 d16 window20,5 sink softcap3",
        "fwd bf16 b4 hq2 hkv1 sq20 skv30 d8 varlen tq60 tkv90 causal : lens_q=20,0,7,13 lens_kv=30,5,0,30",
        "fwd f16 b3 hq2 hkv2 sq20 skv30 d8 seqused causal topleft : layout=bhsd"}) {
    const Case all = case_of(line);
    const auto in = make_inputs(all, 1);
    const auto views = bind(all.problem, in->tensors);
    ASSERT_TRUE(views);
    Case some = all;
    some.sample_rows = true;
    const Reference whole = make_reference(all, *views), sampled = make_reference(some, *views);
    ASSERT_GT(sampled.rows.size(), 50u);
    const auto dim = static_cast<size_t>(all.problem.dim_v);
    for (size_t i = 0; i < sampled.rows.size(); ++i) {
      const auto found = std::ranges::find(whole.rows, sampled.rows[i]);
      ASSERT_NE(found, whole.rows.end());
      const auto j = static_cast<size_t>(found - whole.rows.begin());
      EXPECT_EQ(sampled.exact.lse[i], whole.exact.lse[j]) << line;
      EXPECT_EQ(sampled.same_precision.lse[i], whole.same_precision.lse[j]) << line;
      for (size_t c = 0; c < dim; ++c) {
        ASSERT_EQ(sampled.exact.o[i * dim + c], whole.exact.o[j * dim + c]) << line;
        ASSERT_EQ(sampled.same_precision.o[i * dim + c], whole.same_precision.o[j * dim + c]) << line;
      }
    }
  }
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
