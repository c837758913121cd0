// SPDX-License-Identifier: Apache-2.0
// tests: the judge of gradients is judged. What plain loops compute is right, as is what any arithmetic must leave
// where gradients cancel; each thing that a backward pass may forget is found.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "check/data.hpp"
#include "tests/support/judged.hpp"

namespace froghopper::check {
namespace {

using test::case_of;

constexpr const char* everything = " b3 hq4 hkv2 sq60 skv70 d64 dv32 varlen tq150 tkv170 causal sink softcap5";
constexpr const char* with_grad_lse = " : grad_lse=yes";

class JudgeGradients : public test::Judged {
 protected:
  void SetUp() override { start_all("bf16"); }

  void start_all(const std::string& type) { start("bwd " + type + everything + with_grad_lse); }

  void set(View Views::*tensor, int64_t b, int64_t row, int64_t head, int64_t column, float x) {
    const View& view = views_.*tensor;
    store(view.data, view.at(b, row, head) + column, view.element, x);
  }

  // Multiplies a whole gradient.
  void multiply(View Views::*tensor, float factor) {
    const View& view = views_.*tensor;
    each_row(view, [&](int64_t at) {
      for (int64_t c = 0; c < view.dim; ++c)
        store(view.data, at + c, view.element, factor * load(view.data, at + c, view.element));
    });
  }

  // The verdict where the result is of a problem that is another one.
  std::string verdict_of(const std::function<void(Problem&, Views&)>& spoil) {
    Problem p = c_.problem;
    Views views = views_;
    spoil(p, views);
    write(p, views);
    return verdict();
  }
};

bool blames(const std::string& why, const char* tensor) { return why.find(tensor) != std::string::npos; }

TEST_F(JudgeGradients, accepts_what_plain_loops_compute) {
  for (const std::string type : {"f16", "bf16", "f32"}) {
    for (const std::string& line : {type + everything, type + everything + with_grad_lse, type + everything + " acc",
                                    type + everything + " det"}) {
      start("bwd " + line);
      EXPECT_EQ(verdict(), "") << line;
    }
  }
}

TEST_F(JudgeGradients, finds_what_a_pass_may_forget) {
  for (const std::string type : {"f16", "bf16", "f32"}) {
    SCOPED_TRACE(type);
    start_all(type);
    EXPECT_TRUE(blames(verdict_of([](Problem&, Views& v) { v.grad_lse = {}; }), "grad_q"));
    start_all(type);
    EXPECT_TRUE(blames(verdict_of([](Problem& p, Views&) { p.softcap = 0; }), "grad_q"));
    start_all(type);
    EXPECT_TRUE(blames(verdict_of([](Problem& p, Views&) { p.scale *= 1.05f; }), "grad_q"));
    start_all(type);
    EXPECT_NE(verdict_of([](Problem& p, Views&) { p.align = FH_TOP_LEFT; }), "");
    start_all(type);
    EXPECT_NE(verdict_of([](Problem& p, Views&) { p.window_left = 40; }), "") << "the farthest keys of long rows";
  }
}

// An lse off by one part in a hundred is a weight off by as much.
TEST_F(JudgeGradients, finds_weights_off_by_one_part_in_twenty) {
  for (const std::string type : {"f16", "bf16", "f32"}) {
    start_all(type);
    std::vector<float> lse(views_.lse.as<float>(), views_.lse.as<float>() + views_.lse.heads * views_.lse.seq);
    for (float& x : lse) x += 0.05f;
    EXPECT_NE(verdict_of([&](Problem&, Views& v) { v.lse.data = lse.data(); }), "") << type;
  }
}

// R46: each gradient a little too large, by less than a single row of bf16 would show.
TEST_F(JudgeGradients, finds_errors_with_a_common_sign) {
  start("bwd bf16 b1 hq8 hkv8 sq200 skv200 d64");
  for (View Views::*const tensor : {&Views::grad_q, &Views::grad_k, &Views::grad_v}) {
    write(c_.problem, views_);
    EXPECT_EQ(verdict(), "");
    write(c_.problem, views_);
    multiply(tensor, 1.003f);
    EXPECT_TRUE(blames(verdict(), "errors have a common sign"));
  }
}

TEST_F(JudgeGradients, finds_a_gradient_that_was_not_written) {
  std::memset(views_.grad_k.address(0, 17, 1), 0xff, 2);
  EXPECT_EQ(verdict(), "batch 0 row 17 head 1 column 0: grad_k is NaN, or was not written");
}

TEST_F(JudgeGradients, finds_a_wrong_element) {
  set(&Views::grad_v, 0, 20, 0, 3, 100);
  EXPECT_TRUE(blames(verdict(), "batch 0 row 20 head 0 column 3: grad_v is 100"));
}

TEST_F(JudgeGradients, finds_a_wrong_sink) {
  views_.grad_sink.as<float>()[2] *= 1.01f;
  EXPECT_TRUE(blames(verdict(), "row 0 head 2"));
}

// 0 where structure says so, and only there.
TEST_F(JudgeGradients, finds_numbers_where_nothing_was_added_up) {
  start("bwd f16 b1 hq2 hkv1 sq40 skv30 d64 causal");  // rows 0 to 9 see nothing
  set(&Views::grad_q, 0, 3, 1, 7, 1e-7f);
  EXPECT_TRUE(blames(verdict(), "batch 0 row 3 head 1: grad_q must be 0 in column 7"));
  start("bwd f16 b1 hq2 hkv1 sq30 skv40 d64 causal topleft");  // keys 30 to 39 are seen by none
  set(&Views::grad_k, 0, 35, 0, 7, 1e-7f);
  EXPECT_TRUE(blames(verdict(), "batch 0 row 35 head 0: grad_k must be 0 in column 7"));
}

TEST_F(JudgeGradients, finds_a_sum_that_did_not_stay) {
  start("bwd f16 b1 hq2 hkv1 sq40 skv30 d64 causal acc");
  const float held = load(views_.grad_q.data, views_.grad_q.at(0, 3, 1) + 7, Element::f32);
  set(&Views::grad_q, 0, 3, 1, 7, std::nextafter(held, 100.0f));
  EXPECT_TRUE(blames(verdict(), "batch 0 row 3 head 1: grad_q must be "));
  start("bwd f16 b1 hq2 hkv1 sq40 skv30 d64 causal acc");
  write(c_.problem, views_);
  set(&Views::grad_q, 0, 30, 1, 7, 0);  // written instead of added to
  EXPECT_TRUE(blames(verdict(), "batch 0 row 30 head 1 column 7"));
}

// A row that sees one key has ds = weight (g.v - delta) = 0, and finite arithmetic leaves a few u32 of g.v.
TEST_F(JudgeGradients, accepts_what_rounding_leaves_of_a_gradient_that_cancels) {
  for (const char* const type : {"f16", "bf16", "f32"}) {
    start(std::string("bwd ") + type + " b1 hq2 hkv2 sq50 skv1 d64");
    EXPECT_EQ(verdict(), "");
    const auto fill = [&](double part) {
      double size = 0;
      for (const Expected& e : reference_)
        if (e.tensor->view == &Views::grad_q) size = e.summed[0];
      write(c_.problem, views_);
      set(&Views::grad_q, 0, 0, 0, 0, static_cast<float>(part * size));
      return verdict();
    };
    EXPECT_EQ(fill(4 * 0x1p-24), "") << type;
    EXPECT_NE(fill(0x1p-10), "") << type;
  }
}

// The sample of groups has the numbers of the whole.
TEST(Groups, agree_with_the_whole) {
  for (const std::string line :
       {"bwd f32 b2 hq4 hkv2 sq40 skv70 d16 window20,5 sink softcap3",
        "bwd bf16 b4 hq2 hkv1 sq20 skv30 d8 varlen tq60 tkv90 seqused causal sink acc : lens_q=20,9,7,13 "
        "lens_kv=9,5,0,30 used_q=20,9,7,4",
        "bwd f16 b3 hq2 hkv2 sq20 skv30 d8 seqused causal topleft : layout=bhsd"}) {
    const Case all = case_of(line);
    const auto in = make_inputs(all, 1);
    const auto views = bind(all.problem, in->tensors);
    ASSERT_TRUE(views);
    Case some = all;
    some.sample_rows = true;
    ASSERT_TRUE(can_be_judged(some, *views));
    const Reference whole = make_reference(all, *views), sampled = make_reference(some, *views);
    ASSERT_EQ(sampled.size(), whole.size());
    for (size_t t = 0; t < whole.size(); ++t) {
      SCOPED_TRACE(line + " " + whole[t].tensor->name);
      ASSERT_EQ(sampled[t].tensor, whole[t].tensor);
      EXPECT_EQ(sampled[t].rows.empty(), whole[t].tensor->view == &Views::grad_sink);
      const size_t dim = whole[t].exact.size() / whole[t].rows.size();
      for (size_t i = 0; i < sampled[t].rows.size(); ++i) {
        const auto found = std::ranges::find(whole[t].rows, sampled[t].rows[i]);
        ASSERT_NE(found, whole[t].rows.end());
        const size_t j = static_cast<size_t>(found - whole[t].rows.begin()) * dim;
        for (size_t c = 0; c < dim; ++c) {
          ASSERT_EQ(sampled[t].exact[i * dim + c], whole[t].exact[j + c]);
          ASSERT_EQ(sampled[t].same_precision[i * dim + c], whole[t].same_precision[j + c]);
          ASSERT_EQ(sampled[t].rounded[i * dim + c], whole[t].rounded[j + c]);
          ASSERT_EQ(sampled[t].summed[i * dim + c], whole[t].summed[j + c]);
        }
      }
    }
  }
}

// What no reference can say anything about is refused, with the reason.
TEST(Groups, that_cannot_be_judged_are_refused) {
  const auto why = [](const char* line) {
    const Case c = case_of(line);
    const auto in = make_inputs(c, 1);
    const auto views = bind(c.problem, in->tensors);
    EXPECT_TRUE(views);
    const auto can = can_be_judged(c, *views);
    return can ? "" : can.failure().text;
  };
  EXPECT_EQ(why("bwd bf16 b1 hq1 hkv1 sq4 skv8 d64 : data=rising_100_a_tile"), "");
  EXPECT_NE(why("bwd bf16 b1 hq1 hkv1 sq4 skv8 d64 : data=huge").find("lse reaches "), std::string::npos);
  EXPECT_NE(why("bwd bf16 b1 hq1 hkv1 sq3000 skv3000 d64 : rows=sample").find("too large for the oracle"),
            std::string::npos);
}

}  // namespace
}  // namespace froghopper::check
