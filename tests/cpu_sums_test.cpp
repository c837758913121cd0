// SPDX-License-Identifier: Apache-2.0
// tests: errors of long sums on the CPU, in fp32: they may not grow with the number of what is added up. Bounds are at
// most twice what PyTorch's CPU kernels have on such inputs, and a third or less of what sums one by one have.
#include <cmath>

#include "tests/support/cpu_gradients.hpp"

namespace froghopper {
namespace {

using namespace test;

// |found - exact| / |exact| over all numbers.
double relative_error(const std::vector<double>& exact, const std::function<double(int64_t)>& found) {
  double error = 0, size = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double off = found(static_cast<int64_t>(i)) - exact[i];
    error += off * off, size += exact[i] * exact[i];
  }
  return std::sqrt(error / size);
}

struct Bounds {
  double grad_q, grad_k, grad_v;
};

void expect_gradients_within(const Bounds& bounds, const Problem& p, const Prepare& prepare = {}) {
  HandMade t(gradients_of(p));
  if (prepare) prepare(t);
  fill_from_forward(t);
  const oracle::Gradients exact = oracle::compute_gradients(t.problem, t.views);
  for (const cpu::Kernel* kernel : cpu::kernels(p.dtype)) {
    ASSERT_TRUE(cpu::run(cpu::plan_with(*kernel, t.problem), t.views));
    const auto error = [&](View Views::*gradient) {
      return relative_error(exact.exact[index_of(gradient)], [&](int64_t i) { return at(t.views.*gradient, i); });
    };
    EXPECT_LE(error(&Views::grad_q), bounds.grad_q) << kernel->name << ' ' << p.line();
    EXPECT_LE(error(&Views::grad_k), bounds.grad_k) << kernel->name << ' ' << p.line();
    EXPECT_LE(error(&Views::grad_v), bounds.grad_v) << kernel->name << ' ' << p.line();
  }
}

TEST(CpuSums, GradientsOfKeysThatManyRowsSee) {
  for (const int64_t rows : {2048, 131072})
    expect_gradients_within({6e-7, 6e-7, 6e-7}, problem(Dtype::f32, 1, 1, rows, 24, 16));
  // Of all heads that share a key head.
  expect_gradients_within({6e-7, 6e-7, 6e-7}, problem(Dtype::f32, 16, 1, 4096, 24, 16));
}

// Equal numbers: where they are added one by one, all are rounded the same way for as long as the sum is between the
// same powers of two.
TEST(CpuSums, GradientsOfEqualNumbers) {
  expect_gradients_within({1, 1, 2e-6}, problem(Dtype::f32, 1, 1, 131072, 24, 16), [](HandMade& t) {
    for (int64_t i = 0; i < t.problem.seq_q * t.problem.dim_v; ++i)
      store(t.views.grad_o.data, HandMade::element(t.views.grad_o, i), t.views.grad_o.element, 0.1f);
    t.fill_q([](int64_t, int64_t, int64_t c) { return c == 0 ? 0.7f : 0.0f; });
  });
}

TEST(CpuSums, GradientsOfRowsThatSeeManyKeys) {
  expect_gradients_within({1.5e-6, 1e-6, 1e-6}, problem(Dtype::f32, 1, 1, 20, 131072, 16));
}

// KV tiles are smaller for more threads, and sums have the same order.
TEST(CpuSums, OfRowsDoNotDependOnKvTiles) {
  for (const int64_t dim : {16, 136}) {
    HandMade t(gradients_of(with_mask(problem(Dtype::f32, 2, 1, 2300, 700, dim), 150, 0)));
    fill_from_forward(t);
    for (const cpu::Kernel* kernel : cpu::kernels(Dtype::f32)) {
      cpu::Plan plan = cpu::plan_with(*kernel, t.problem);
      std::vector<double> first;
      for (const int64_t keys : {64, 128, 256}) {
        if (keys > 128 && dim > 128) continue;  // is more than a span has
        plan.tile_kv = keys;
        fill_gradients(t, nan);
        ASSERT_TRUE(cpu::run(plan, t.views));
        std::vector<double> all;
        for (View Views::*gradient : {&Views::grad_q, &Views::grad_k, &Views::grad_v}) {
          const View& view = t.views.*gradient;
          for (int64_t i = 0; i < view.batch * view.seq * view.heads * view.dim; ++i) all.push_back(at(view, i));
        }
        if (first.empty()) first = all;
        ASSERT_EQ(all, first) << kernel->name << ' ' << keys;
      }
    }
  }
}

// `invariant`: else the keys are split here, each with sums of its own. In a batch they are not.
TEST(CpuSums, ForwardOverManyKeys) {
  Problem p = problem(Dtype::f32, 1, 1, 20, 131072, 16);
  for (const bool equal : {false, true}) {
    for (const bool one_row : {false, true}) {
      p.seq_q = one_row ? 1 : 20;
      p.invariant = !one_row;
      HandMade t(p);
      if (equal) t.fill_q([](int64_t, int64_t, int64_t) { return 0.0f; });
      if (equal) t.fill_v([](int64_t, int64_t, int64_t c) { return 0.1f * static_cast<float>(c + 1); });
      const Forward right = exact(t);
      for (const cpu::Kernel* kernel : cpu::kernels(p.dtype)) {
        ASSERT_TRUE(cpu::run(cpu::plan_with(*kernel, t.problem), t.views));
        EXPECT_LE(relative_error(right.o, [&](int64_t i) { return t.o(i); }), equal ? 2e-6 : 1e-6)
            << kernel->name << ' ' << p.line();
        EXPECT_LE(relative_error(right.lse, [&](int64_t i) { return t.lse[i]; }), 1.5e-7)
            << kernel->name << ' ' << p.line();
      }
    }
  }
}

// What is set aside once in 4096 keys: lanes that see none before or none after, scores that rise all the way, and v
// that is too large before it is divided.
TEST(CpuSums, OfKeysThatAreSetAside) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    for (const int64_t left : {all_keys, int64_t{100}, int64_t{5000}}) {
      Problem p = with_mask(problem(dtype, 2, 1, 90, 13000, 16), left, 5000, FH_TOP_LEFT);
      for (const bool invariant : {false, true}) {
        for (const float size : {1.0f, 1e37f}) {
          p.invariant = invariant;
          HandMade t(p);
          t.fill_k(
              [](int64_t row, int64_t, int64_t c) { return c == 0 ? static_cast<float>(row % 9000) * 2e-3f : 0.5f; });
          t.fill_v(
              [&](int64_t row, int64_t, int64_t c) { return size * (1 + 0.1f * static_cast<float>((row + c) % 7)); });
          const Forward right = exact(t);
          for (const cpu::Kernel* kernel : cpu::kernels(p.dtype)) {
            ASSERT_TRUE(cpu::run(cpu::plan_with(*kernel, t.problem), t.views));
            const double bound = dtype == Dtype::f32 ? 1e-6 : 8e-3;
            EXPECT_LE(relative_error(right.o, [&](int64_t i) { return t.o(i); }), bound)
                << kernel->name << ' ' << p.line() << ' ' << size;
            EXPECT_LE(relative_error(right.lse, [&](int64_t i) { return t.lse[i]; }),
                      dtype == Dtype::f32 ? 2e-7 : 1e-6)
                << kernel->name << ' ' << p.line() << ' ' << size;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace froghopper
