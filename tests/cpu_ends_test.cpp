// SPDX-License-Identifier: Apache-2.0
// tests: the CPU backend's kernels, all that this machine runs, where options are at the ends of fp32's range. What
// both backends promise: tests/ends_test.cpp.
#include "tests/support/cpu_gradients.hpp"

namespace froghopper {
namespace {

using namespace test;

constexpr float largest = std::numeric_limits<float>::max();

// As the oracle has it, except for roundings to the storage type; lse to the float that is nearest, infinities too.
void expect_exact(HandMade& t) {
  const Forward wanted = exact(t);
  const double unit = t.problem.dtype == Dtype::f32 ? 1e-5 : 0x1p-6;
  for (const cpu::Kernel* kernel : cpu::kernels(t.problem.dtype)) {
    const Result<void> done = cpu::run(cpu::plan_with(*kernel, t.problem), t.views);
    ASSERT_TRUE(done) << done.failure().text;
    const std::string what = t.problem.line() + ' ' + kernel->name;
    for (size_t i = 0; i < wanted.o.size(); ++i)
      ASSERT_NEAR(t.o(static_cast<int64_t>(i)), wanted.o[i], 4 * unit) << what << ' ' << i;
    for (size_t i = 0; i < wanted.lse.size(); ++i) {
      const auto lse = static_cast<float>(wanted.lse[i]);
      if (std::isinf(lse)) {
        ASSERT_EQ(t.lse[i], lse) << what << ' ' << i;
      } else {
        ASSERT_NEAR(t.lse[i], lse, 1e-3 + std::abs(lse) * 1e-6) << what << ' ' << i;
      }
    }
  }
}

// Rows alone, which have vectors of their own, rows in vectors, rows whose keys are split, and masks.
std::vector<Problem> shapes(Dtype dtype) {
  Problem invariant = with_mask(problem(dtype, 1, 1, 70, 300, 24), all_keys, 0);
  invariant.invariant = true;
  return {problem(dtype, 1, 1, 1, 5000, 24), problem(dtype, 4, 2, 3, 5000, 24), problem(dtype, 2, 2, 70, 300, 24),
          with_mask(problem(dtype, 2, 2, 70, 300, 24), 40, 7), invariant};
}

TEST(CpuEnds, ScalesOfZeroAndNearly) {
  for (Dtype dtype : {Dtype::bf16, Dtype::f32}) {
    for (const Problem& p : shapes(dtype)) {
      for (float scale : {0.0f, 1e-45f, 1e-40f}) {
        HandMade t(p);
        t.problem.scale = scale;
        expect_exact(t);
      }
    }
  }
}

// q.k is whole, and no two keys have the same one, so that one key has all the weight.
TEST(CpuEnds, ScalesThatTakeScoresOutOfRange) {
  for (Dtype dtype : {Dtype::bf16, Dtype::f32}) {
    for (const Problem& p : shapes(dtype)) {
      for (float scale : {3.0f, 1e38f, 0x1p127f}) {
        HandMade t(p);
        t.problem.scale = scale;
        const float size = scale < 4 ? 0x1p115f : 16.0f;
        t.fill_q([&](int64_t row, int64_t, int64_t c) {
          const float x = c == 0 ? size : c == 1 ? 64 * size : 0.0f;
          return row % 2 == 0 ? x : -x;
        });
        t.fill_k([&](int64_t row, int64_t, int64_t c) {
          const int64_t number = row * 7919 % 5000 + 1;
          return static_cast<float>(c == 0 ? number % 64 : c == 1 ? number / 64 : 0);
        });
        expect_exact(t);
      }
    }
  }
}

TEST(CpuEnds, Sinks) {
  for (Dtype dtype : {Dtype::bf16, Dtype::f32}) {
    for (Problem p : shapes(dtype)) {
      p.sink = true;
      for (float sink : {infinity, largest, -infinity, -largest}) {
        HandMade t(p);
        std::fill(t.sink.begin(), t.sink.end(), sink);
        expect_exact(t);
      }
    }
  }
}

TEST(CpuEnds, Slopes) {
  for (Dtype dtype : {Dtype::bf16, Dtype::f32}) {
    for (Problem p : shapes(dtype)) {
      p.alibi = true;
      for (float slope : {infinity, largest, -infinity, 1e20f}) {
        HandMade t(p);
        for (int64_t head = 0; head < p.heads_q; ++head)
          t.views.alibi_slopes.as<float>()[t.views.alibi_slopes.at(0, 0, head)] = slope;
        expect_exact(t);
      }
    }
  }
}

TEST(CpuEnds, Softcaps) {
  for (Dtype dtype : {Dtype::bf16, Dtype::f32}) {
    for (Problem p : shapes(dtype)) {
      for (float softcap : {1e-45f, 1e-39f, 1e-30f, 1e30f, largest}) {
        p.softcap = softcap;
        HandMade t(p);
        expect_exact(t);
        if (!p.invariant && p.seq_kv <= 300) expect_right_gradients(gradients_of(p));
      }
    }
  }
}

// v is its mean, so that o is the share of the keys.
TEST(CpuEnds, TheShareOfTheKeysHasItsDigits) {
  for (const float sink : {0.0f, 30.0f, 60.0f, 80.0f}) {
    Problem p = problem(Dtype::e4m3, 2, 2, 20, 128, 32);
    p.dtype_o = Dtype::f32, p.sink = p.smooth = true;
    HandMade t(p);
    t.fill_q([](int64_t, int64_t, int64_t) { return 0.0f; });
    t.fill_v([](int64_t, int64_t, int64_t) { return 0.0f; });
    for (const View& mean : {t.views.mean_k, t.views.mean_v})
      for (int64_t head = 0; head < 2; ++head)
        for (int64_t c = 0; c < 32; ++c) mean.as<float>()[mean.at(0, 0, head) + c] = 1;
    std::fill(t.sink.begin(), t.sink.end(), sink);
    run(t);
    const double share = 128 / (128 + std::exp(sink));
    for (int64_t i = 0; i < 20 * 2 * 32; ++i) ASSERT_NEAR(t.o(i), share, share * 1e-6) << sink;
  }
}

}  // namespace
}  // namespace froghopper
