// SPDX-License-Identifier: Apache-2.0
// Claims about options at the ends of fp32's range, on either backend (docs/1-math.md, section 1.6): what is there
// instead of NaN, to the last bit where nothing is left to round. Lines that the judge knows: tests/cases/ends.txt.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "check/backends.hpp"
#include "src/base/storage.hpp"
#include "src/problem/mask.hpp"
#include "tests/support/case_of.hpp"

namespace froghopper {
namespace {

using namespace check;

constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
constexpr float largest = std::numeric_limits<float>::max();

// A line's tensors and what a backend makes of them.
struct Ran {
  Case its;
  std::unique_ptr<Inputs> in;
  Views views;

  explicit Ran(const std::string& line)
      : its(test::case_of(line)),
        in(make_inputs(its, 1, FirstPass::missing)),
        views(*bind(its.problem, in->tensors)) {}

  const Problem& problem() const { return its.problem; }
  float o(int64_t row, int64_t head, int64_t column) const {
    return load(views.o.data, views.o.at(0, row, head) + column, views.o.element);
  }
  float lse(int64_t row, int64_t head) const { return views.lse.as<float>()[views.lse.at(0, row, head)]; }
  float v(int64_t key, int64_t head, int64_t column) const {
    return load(views.v.data, views.v.at(0, key, head) + column, views.v.element);
  }
  std::vector<float> all(View Views::*tensor, int64_t head) const {
    const View& x = views.*tensor;
    std::vector<float> numbers;
    for (int64_t row = 0; row < x.seq; ++row)
      for (int64_t c = 0; c < x.dim; ++c) numbers.push_back(load(x.data, x.at(0, row, head) + c, x.element));
    return numbers;
  }
};

class Ends : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (GetParam() == std::string("cpu")) return;
    if (const auto here = hopper_is_here(); !here) GTEST_SKIP() << here.failure().text;
  }

  // A backward problem's forward pass first, on the CPU.
  void run(Ran& t) {
    const fh_tensors all = t.in->tensors;
    if (t.problem().backward()) run_one(t, t.problem().forward(), tensors_of(t.problem().forward(), all), "cpu");
    run_one(t, t.problem(), all, GetParam());
  }

 private:
  void run_one(Ran& t, const Problem& p, const fh_tensors& tensors, const char* target) {
    const auto plan = create_plan(p, target);
    if (!plan && plan.failure().text.find("no usable libnvrtc") != std::string::npos)
      GTEST_SKIP() << plan.failure().text;
    ASSERT_TRUE(plan) << plan.failure().text;
    const fh_tensors whole = std::exchange(t.in->tensors, tensors);
    const bool on_gpu = fh_plan_on_gpu(plan->get()) != 0;
    const auto ran = on_gpu ? run_on_gpu(plan->get(), *t.in) : run_on_cpu(plan->get(), *t.in);
    t.in->tensors = whole;
    ASSERT_TRUE(ran) << ran.failure().text;
  }
};
INSTANTIATE_TEST_SUITE_P(, Ends, testing::Values("cpu", "hopper"),
                         [](const auto& p) { return std::string(p.param); });

// Bits, where NaN is NaN.
void expect_same(const std::vector<float>& found, const std::vector<float>& wanted, const std::string& what) {
  ASSERT_EQ(found.size(), wanted.size()) << what;
  for (size_t i = 0; i < found.size(); ++i)
    ASSERT_TRUE(found[i] == wanted[i] || (std::isnan(found[i]) && std::isnan(wanted[i])))
        << what << " number " << i << ": " << found[i] << ", not " << wanted[i];
}

// Kernels with every way to the end of a row: at once, packed and in parts, in parts of 1024 keys, 8 bits, with means.
const char* const shapes[] = {"fwd bf16 b1 hq6 hkv6 sq70 skv200 d64",
                              "fwd f16 b1 hq6 hkv6 sq70 skv200 d128 causal",
                              "fwd bf16 b1 hq6 hkv6 sq1 skv3000 d64",
                              "fwd bf16 b1 hq6 hkv6 sq70 skv2100 d64 invariant",
                              "fwd e4m3 b1 hq6 hkv6 sq70 skv200 d128",
                              "fwd e4m3 b1 hq6 hkv6 sq70 skv200 d128 smooth",
                              "fwd bf16 kv=e4m3 b1 hq6 hkv6 sq70 skv200 d64 scales128"};

TEST_P(Ends, a_sink_beyond_all_scores_is_all_of_lse_and_leaves_no_output) {
  for (const std::string shape : shapes) {
    Ran without(shape), with(shape + " sink"), with_nan(shape + " sink");
    const float sinks[] = {largest, 2.4e38f, infinity, -infinity, -largest, std::numeric_limits<float>::denorm_min()};
    for (int64_t head = 0; head < 6; ++head) {
      with.views.sink.as<float>()[head] = sinks[head];
      with_nan.views.sink.as<float>()[head] = head == 1 ? nan : sinks[head];
    }
    run(without), run(with), run(with_nan);
    if (HasFatalFailure() || IsSkipped()) return;
    for (int64_t head = 0; head < 6; ++head) {
      const std::string what = shape + " head " + std::to_string(head);
      const std::vector<float> o = with.all(&Views::o, head), lse = with.all(&Views::lse, head);
      if (head < 3) {
        expect_same(o, std::vector<float>(o.size(), 0.0f), what + " o");
        expect_same(lse, std::vector<float>(lse.size(), sinks[head]), what + " lse");
      } else if (head < 5) {
        expect_same(o, without.all(&Views::o, head), what + " o");
        expect_same(lse, without.all(&Views::lse, head), what + " lse");
      }
      const bool is_nan = head == 1;
      expect_same(with_nan.all(&Views::o, head), is_nan ? std::vector<float>(o.size(), nan) : o, what + " o, nan");
      expect_same(with_nan.all(&Views::lse, head), is_nan ? std::vector<float>(lse.size(), nan) : lse,
                  what + " lse, nan");
    }
  }
}

TEST_P(Ends, gradients_beside_such_a_sink_are_zero_but_for_its_own) {
  for (const char* const line : {"bwd bf16 b1 hq4 hkv4 sq70 skv200 d64 causal sink : grad_lse=yes",
                                 "bwd bf16 b1 hq4 hkv4 sq200 skv70 d192 causal sink : grad_lse=yes"}) {
    Ran t(line);
    const float sinks[] = {largest, 2.4e38f, infinity, -infinity};
    for (int64_t head = 0; head < 4; ++head) t.views.sink.as<float>()[head] = sinks[head];
    run(t);
    if (HasFatalFailure() || IsSkipped()) return;
    for (int64_t head = 0; head < 4; ++head) {
      double of_lse = 0, sizes = 0;
      for (const float x : t.all(&Views::grad_lse, head)) of_lse += x, sizes += std::fabs(x);
      const float of_sink = t.views.grad_sink.as<float>()[head];
      EXPECT_NEAR(of_sink, head < 3 ? of_lse : 0, sizes * 1e-6) << line << ' ' << head;
      for (View Views::*tensor : {&Views::grad_q, &Views::grad_k, &Views::grad_v})
        for (const float x : t.all(tensor, head)) {
          ASSERT_TRUE(std::isfinite(x)) << line << ' ' << head;
          ASSERT_TRUE(head == 3 || x == 0) << line << ' ' << head << ' ' << x;
        }
    }
  }
}

TEST_P(Ends, with_a_scale_of_zero_scores_have_no_gradient) {
  Ran t("bwd bf16 b1 hq2 hkv2 sq70 skv200 d64 causal scale0");
  run(t);
  if (HasFatalFailure() || IsSkipped()) return;
  for (int64_t head = 0; head < 2; ++head) {
    for (View Views::*tensor : {&Views::grad_q, &Views::grad_k})
      for (const float x : t.all(tensor, head)) ASSERT_EQ(x, 0);
    for (int64_t row = 0; row < 70; ++row) ASSERT_NEAR(t.lse(row, head), std::log(131 + row), 1e-5);
  }
}

// q.k is 512 times a number of the key or, of odd rows, minus that; all of them differ, and the scale takes all but the
// least of the scores out of fp32's range, to the upper side and to the lower one.
int number_of(int64_t key, int64_t keys) { return static_cast<int>(key * 7919 % keys) + 1; }

void put_columns(Ran& t) {
  const View &q = t.views.q, &k = t.views.k;
  for (int64_t head = 0; head < q.heads; ++head)
    for (int64_t row = 0; row < q.seq; ++row)
      for (int64_t c = 0; c < q.dim; ++c) {
        const float size = c == 0 ? 512.0f : c == 1 ? 16384.0f : 0.0f;
        store(q.data, q.at(0, row, head) + c, q.element, row % 2 == 0 ? size : -size);
      }
  for (int64_t head = 0; head < k.heads; ++head)
    for (int64_t key = 0; key < k.seq; ++key)
      for (int64_t c = 0; c < k.dim; ++c) {
        const int number = number_of(key, k.seq);
        const int digit = c == 0 ? number % 32 : c == 1 ? number / 32 : 0;
        store(k.data, k.at(0, key, head) + c, k.element, static_cast<float>(digit));
      }
}

TEST_P(Ends, a_scale_that_takes_scores_out_of_range_leaves_the_largest) {
  for (const std::string line :
       {"fwd bf16 b1 hq2 hkv2 sq70 skv200 d64 scale1e38", "fwd f16 b1 hq2 hkv2 sq70 skv200 d128 causal scale1e38",
        "fwd bf16 b1 hq2 hkv2 sq1 skv3000 d64 scale1e38", "fwd bf16 b1 hq2 hkv2 sq70 skv2100 d64 invariant scale1e38",
        "fwd bf16 b1 hq2 hkv2 sq70 skv200 d64 scale1.7014118e38",
        "fwd bf16 b1 hq2 hkv2 sq70 skv200 d64 window50,10 scale1e38"}) {
    Ran t(line);
    put_columns(t);
    run(t);
    if (HasFatalFailure() || IsSkipped()) return;
    const int64_t keys = t.problem().seq_kv;
    for (int64_t row = 0; row < t.problem().seq_q; ++row) {
      const Visible seen = visible_keys(t.problem(), t.problem().seq_q, keys, row);
      const int sign = row % 2 == 0 ? 1 : -1;
      int64_t best = seen.begin;
      for (int64_t j = seen.begin; j < seen.end; ++j)
        if (sign * number_of(j, keys) > sign * number_of(best, keys)) best = j;
      for (int64_t head = 0; head < 2; ++head) {
        for (int64_t c = 0; c < t.problem().dim_v; ++c)
          ASSERT_EQ(t.o(row, head, c), t.v(best, head, c)) << line << " row " << row;
        ASSERT_GT(sign * t.lse(row, head), 2.3e38f) << line << " row " << row;
      }
    }
  }
}

TEST_P(Ends, a_slope_beyond_2_to_the_90_leaves_the_nearest_key) {
  Ran t("fwd bf16 b1 hq6 hkv6 sq70 skv200 d64 causal alibi"),
      at_2_90("fwd bf16 b1 hq6 hkv6 sq70 skv200 d64 causal alibi");
  const float slopes[] = {largest, infinity, 0x1p91f, -largest, -infinity, nan};
  for (int64_t head = 0; head < 6; ++head) {
    t.views.alibi_slopes.as<float>()[t.views.alibi_slopes.at(0, 0, head)] = slopes[head];
    at_2_90.views.alibi_slopes.as<float>()[at_2_90.views.alibi_slopes.at(0, 0, head)] = head < 3 ? 0x1p90f : -0x1p90f;
  }
  run(t), run(at_2_90);
  if (HasFatalFailure() || IsSkipped()) return;
  for (int64_t head = 0; head < 6; ++head) {
    const std::vector<float> o = t.all(&Views::o, head), lse = t.all(&Views::lse, head);
    if (head == 5) {
      expect_same(o, std::vector<float>(o.size(), nan), "o");
      expect_same(lse, std::vector<float>(lse.size(), nan), "lse");
      continue;
    }
    expect_same(o, at_2_90.all(&Views::o, head), "o");
    expect_same(lse, at_2_90.all(&Views::lse, head), "lse");
    for (int64_t row = 0; row < 70; ++row)
      for (int64_t c = 0; c < 64; ++c) ASSERT_EQ(t.o(row, head, c), t.v(head < 3 ? 130 + row : 0, head, c)) << head;
  }
}

// The keys have e^-50 of the weight beside the sink, and v is nothing but its mean.
TEST_P(Ends, the_share_of_the_keys_has_its_digits_beside_a_large_sink) {
  Ran t("fwd e4m3 o=f32 b1 hq2 hkv2 sq70 skv128 d128 sink smooth");
  for (const View& x : {t.views.q, t.views.v})
    for (int64_t row = 0; row < x.seq; ++row)
      for (int64_t head = 0; head < 2; ++head)
        for (int64_t c = 0; c < 128; ++c) store(x.data, x.at(0, row, head) + c, x.element, 0.0f);
  for (int64_t head = 0; head < 2; ++head) {
    t.views.sink.as<float>()[head] = 50;
    for (int64_t c = 0; c < 128; ++c) t.views.mean_v.as<float>()[t.views.mean_v.at(0, 0, head) + c] = 1;
  }
  run(t);
  if (HasFatalFailure() || IsSkipped()) return;
  const double share = 128 * std::exp(-50.0);
  for (int64_t row = 0; row < 70; ++row)
    for (int64_t head = 0; head < 2; ++head) ASSERT_NEAR(t.o(row, head, 5), share, share * 1e-4);
}

// exp(lse) of what is held is all there is, or nothing.
TEST_P(Ends, lse_that_is_merged_may_be_infinite) {
  for (const char* const line :
       {"fwd bf16 b1 hq5 hkv5 sq70 skv200 d64 acc", "fwd bf16 b1 hq5 hkv5 sq70 skv200 d512 acc"}) {
    Ran t(line), before(line);
    const float held[] = {largest, 2.4e38f, infinity, nan, -infinity};
    for (Ran* const each : {&t, &before})
      for (int64_t row = 0; row < 70; ++row)
        for (int64_t head = 0; head < 5; ++head) {
          each->views.lse.as<float>()[each->views.lse.at(0, row, head)] = held[head];
          for (int64_t c = 0; c < t.problem().dim_v; ++c)
            each->views.o.as<float>()[each->views.o.at(0, row, head) + c] = static_cast<float>(row + c);
        }
    run(t);
    if (HasFatalFailure() || IsSkipped()) return;
    for (int64_t head = 0; head < 3; ++head) {
      expect_same(t.all(&Views::o, head), before.all(&Views::o, head), "o");
      expect_same(t.all(&Views::lse, head), before.all(&Views::lse, head), "lse");
    }
    for (const float x : t.all(&Views::lse, 3)) ASSERT_TRUE(std::isnan(x));
    for (const float x : t.all(&Views::o, 4)) ASSERT_LT(std::fabs(x), 10) << "what lse calls nothing was read";
  }
}

// All scores are -3.4e38, or one of them is 3.4e38: nothing is infinity less infinity.
TEST_P(Ends, scores_as_large_as_can_be) {
  for (const std::string line :
       {"fwd bf16 b1 hq2 hkv2 sq70 skv200 d64 scale1", "fwd bf16 b1 hq2 hkv2 sq1 skv3000 d64 scale1",
        "fwd bf16 b1 hq2 hkv2 sq70 skv2100 d64 scale1 invariant",
        "fwd bf16 b1 hq2 hkv2 sq70 skv200 d64 scale1 causal"}) {
    for (const bool mixed : {false, true}) {
      Ran t(line);
      for (const View& x : {t.views.q, t.views.k})
        for (int64_t row = 0; row < x.seq; ++row)
          for (int64_t head = 0; head < 2; ++head)
            for (int64_t c = 0; c < 64; ++c) {
              const bool key = x.data == t.views.k.data, one = mixed && row % 50 == 7;
              const float size = !key ? 0x1p63f : one ? 0x1.fep64f : mixed && row % 2 ? 0.0f : -0x1.fep64f;
              store(x.data, x.at(0, row, head) + c, x.element, c == 0 ? size : 0.0f);
            }
      run(t);
      if (HasFatalFailure() || IsSkipped()) return;
      const int64_t keys = t.problem().seq_kv;
      for (int64_t row = 0; row < t.problem().seq_q; ++row) {
        const Visible seen = visible_keys(t.problem(), t.problem().seq_q, keys, row);
        double sum = 0, count = 0;
        for (int64_t j = seen.begin; j < seen.end; ++j)
          if (!mixed || j % 50 == 7) sum += t.v(j, 0, 3), ++count;
        ASSERT_NEAR(t.o(row, 0, 3), sum / count, 0.02) << line << ' ' << mixed << " row " << row;
        ASSERT_GT((mixed ? 1 : -1) * t.lse(row, 0), 2.3e38f) << line;
      }
    }
  }
}

// Its tanh has an absolute error, which softcap multiplies.
TEST(EndsOfAPlan, a_gpu_refuses_a_softcap_that_leaves_no_digits) {
  EXPECT_TRUE(create_plan(test::case_of("fwd bf16 b1 hq1 hkv1 sq9 skv9 d64 softcap32768").problem, "h200"));
  for (const char* const op : {"fwd", "bwd"}) {
    const auto plan =
        create_plan(test::case_of(op + std::string(" bf16 b1 hq1 hkv1 sq9 skv9 d64 softcap1e+30")).problem, "h200");
    ASSERT_FALSE(plan) << op;
    EXPECT_EQ(plan.failure().status, FH_UNSUPPORTED);
    EXPECT_TRUE(plan.failure().text.find("softcap is 1e+30; the Hopper kernels take up to 32768, beyond") !=
                std::string::npos)
        << plan.failure().text;
  }
}

}  // namespace
}  // namespace froghopper
