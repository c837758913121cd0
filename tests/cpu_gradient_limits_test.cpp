// SPDX-License-Identifier: Apache-2.0
// tests: the CPU backend's gradients where numbers, memory and threads are not as usual.
#include "tests/support/cpu_gradients.hpp"

namespace froghopper {
namespace {

using namespace test;

// By a kernel, from the o and lse of the same kernel's forward pass.
void run_both(HandMade& t, const cpu::Kernel& kernel) {
  const Result<void> forward = cpu::run(cpu::plan_with(kernel, t.problem.forward()), t.views);
  ASSERT_TRUE(forward) << forward.failure().text;
  const Result<void> done = cpu::run(cpu::plan_with(kernel, t.problem), t.views);
  ASSERT_TRUE(done) << done.failure().text;
}

std::vector<double> numbers_of(const View& view) {
  std::vector<double> numbers;
  for (int64_t i = 0; i < view.batch * view.seq * view.heads * view.dim; ++i) numbers.push_back(at(view, i));
  return numbers;
}

// Scores far apart: each row's weight is all on one key, and lse has no room for anything beside that key's score. The
// forward pass finds that exactly, so the gradients are exact: grad_v is a sum of grad_o, the others are 0.
TEST(CpuGradientLimits, OneKeyTakesAllWhateverTheSizeOfScores) {
  for (Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    for (float size : {1e3f, 1e6f, 1e12f, 1e18f}) {
      for (const cpu::Kernel* kernel : cpu::kernels(dtype)) {
        HandMade t(gradients_of(problem(dtype, 1, 1, 70, 150, 24)));
        t.views.grad_lse = {};
        // Key j is largest for the rows i with 2 i + 3 = j, by the parabola q.k = 2 x j - j^2.
        t.fill_q([&](int64_t row, int64_t, int64_t c) {
          return c == 0 ? size * static_cast<float>(2 * row + 3) : c == 1 ? size : size * 1e-3f;
        });
        t.fill_k([&](int64_t row, int64_t, int64_t c) {
          const auto j = static_cast<float>(row);
          return c == 0 ? 2 * j : c == 1 ? -j * j : 0.0f;
        });
        run_both(t, *kernel);
        if (dtype == Dtype::f32) {
          for (int64_t i = 0; i < 150 * 24; ++i) {
            const int64_t j = i / 24, row = (j - 3) / 2;
            const bool taken = j >= 3 && j % 2 == 1 && row < 70;
            ASSERT_EQ(at(t.views.grad_v, i), taken ? at(t.views.grad_o, row * 24 + i % 24) : 0)
                << kernel->name << ' ' << size << ' ' << i;
          }
        }
        // delta = o grad_o is summed in another order than v grad_o, so the difference is a few roundings.
        for (double x : numbers_of(t.views.grad_v)) ASSERT_TRUE(std::isfinite(x)) << kernel->name << ' ' << size;
        for (double x : numbers_of(t.views.grad_q)) ASSERT_TRUE(std::isfinite(x)) << kernel->name << ' ' << size;
        for (double x : numbers_of(t.views.grad_k)) ASSERT_TRUE(std::isfinite(x)) << kernel->name << ' ' << size;
      }
    }
  }
}

// lse from elsewhere, of scores of 10^6: its rounding alone is 0.03. No worse than plain loops.
TEST(CpuGradientLimits, LargeScores) {
  for (float size : {30.0f, 1e3f, 1e5f}) {
    expect_right_gradients(gradients_of(problem(Dtype::f32, 2, 1, 40, 200, 64)), {}, [&](HandMade& t) {
      t.fill_q([&](int64_t row, int64_t head, int64_t c) {
        return size * static_cast<float>((row * 7 + head * 3 + c * 5) % 13 - 6);
      });
    });
  }
}

// No weight passes 1 and nothing becomes NaN, although a score is off from lse by more than e^x can hold.
TEST(CpuGradientLimits, LseThatIsARoundingOff) {
  for (const cpu::Kernel* kernel : cpu::kernels(Dtype::f32)) {
    HandMade t(gradients_of(problem(Dtype::f32, 1, 1, 20, 100, 16)));
    t.fill_q([](int64_t row, int64_t, int64_t) { return 1e9f * static_cast<float>(row % 3 - 1); });
    run_both(t, *kernel);
    for (float& lse : t.lse) lse *= 1 - 0x1p-20f * (lse > 0 ? 1.0f : -1.0f);
    fill_gradients(t, nan);
    ASSERT_TRUE(cpu::run(cpu::plan_with(*kernel, t.problem), t.views));
    for (View Views::*gradient : {&Views::grad_q, &Views::grad_k, &Views::grad_v})
      for (double x : numbers_of(t.views.*gradient)) ASSERT_TRUE(std::isfinite(x)) << kernel->name;
  }
}

// Keys that no row attends to, and rows that attend to no key, may hold NaN; HandMade has NaN beyond what is used.
TEST(CpuGradientLimits, UnseenKeysAndBlindRowsMayHoldAnything) {
  const Problem p = gradients_of(with_mask(problem(Dtype::f32, 2, 1, 200, 150, 16), 3, 0, FH_TOP_LEFT));
  const Problem q = gradients_of(with_mask(problem(Dtype::f32, 2, 1, 100, 250, 16), 3, 0, FH_TOP_LEFT));
  for (const Problem& each : {p, q}) {
    HandMade clean(each), t(each);
    for (int64_t row = 153; row < each.seq_q; ++row) {  // attend to no key
      for (View* view : {&t.views.q, &t.views.grad_o}) {
        for (int64_t c = 0; c < 32; ++c)
          store(view->data, HandMade::element(*view, row * 32 + c), view->element, nan);
      }
    }
    for (int64_t row = 100; row < each.seq_kv && each.seq_q == 100; ++row) {  // no row attends to them
      for (View* view : {&t.views.k, &t.views.v}) {
        for (int64_t c = 0; c < 16; ++c)
          store(view->data, HandMade::element(*view, row * 16 + c), view->element, nan);
      }
    }
    for (const cpu::Kernel* kernel : cpu::kernels(Dtype::f32)) {
      run_both(clean, *kernel);
      run_both(t, *kernel);
      for (View Views::*gradient : {&Views::grad_q, &Views::grad_k, &Views::grad_v})
        ASSERT_EQ(numbers_of(t.views.*gradient), numbers_of(clean.views.*gradient)) << kernel->name;
    }
  }
}

// What is not finite in a key reaches the gradients of the rows that attend to it and of the keys that those rows
// attend to, in a row those of the keys that it attends to; nothing else changes.
TEST(CpuGradientLimits, NaNAndInfinityStayWhereTheyAreUsed) {
  const Problem p = gradients_of(with_mask(problem(Dtype::f32, 1, 1, 200, 200, 16), 20, 0));
  constexpr int64_t bad_row = 90, bad_key = 90;
  for (const float bad : {nan, infinity, -infinity}) {
    for (View Views::*spoiled : {&Views::q, &Views::grad_o, &Views::k, &Views::v}) {
      HandMade clean(p), t(p);
      const View& view = t.views.*spoiled;
      const bool of_key = spoiled == &Views::k || spoiled == &Views::v;
      store(view.data, HandMade::element(view, (of_key ? bad_key : bad_row) * 16 + 5), view.element, bad);
      for (const cpu::Kernel* kernel : cpu::kernels(p.dtype)) {
        run_both(clean, *kernel);
        run_both(t, *kernel);
        const int64_t rows_end = of_key ? bad_key + 20 : bad_row, keys_begin = bad_row - 20;
        for (int64_t i = 0; i < 200 * 16; ++i) {
          const int64_t row = i / 16;
          if (row < bad_row || row > rows_end) {
            ASSERT_EQ(at(t.views.grad_q, i), at(clean.views.grad_q, i)) << kernel->name << ' ' << i;
          }
          if (row < keys_begin || row > rows_end) {
            ASSERT_EQ(at(t.views.grad_k, i), at(clean.views.grad_k, i)) << kernel->name << ' ' << i;
            ASSERT_EQ(at(t.views.grad_v, i), at(clean.views.grad_v, i)) << kernel->name << ' ' << i;
          }
        }
        if (std::isnan(bad)) { ASSERT_TRUE(std::isnan(at(t.views.grad_q, bad_row * 16))); }
      }
    }
  }
}

TEST(CpuGradientLimits, ThreadsDoNotChangeTheResult) {
  for (bool varlen : {false, true}) {
    for (int64_t left : {all_keys, int64_t{70}}) {
      Problem p = gradients_of(with_mask(problem(Dtype::f32, 4, 2, 700, 900, 24), left, 0));
      p.batch = 2;
      p.sink = true;
      p.varlen = varlen;
      if (varlen) p.total_q = 1000, p.total_kv = 1200;
      const Lengths lengths = varlen ? Lengths{{0, 300, 990}, {0, 850, 1170}, {}, {}} : Lengths{};
      p.max_sms = 1;
      HandMade one(p, lengths);
      run_both(one, cpu::fastest_kernel(p.dtype));
      for (int64_t threads : {2, 5, 16}) {
        HandMade t(p, lengths);
        cpu::Plan plan = cpu::plan_with(cpu::fastest_kernel(p.dtype), t.problem);
        run_both(t, *plan.kernel);
        for (int64_t keys : {64, 128, 256}) {
          fill_gradients(t, nan);
          plan.threads = threads;
          plan.tile_kv = keys;
          ASSERT_TRUE(cpu::run(plan, t.views));
          for (View Views::*gradient : gradients)
            ASSERT_EQ(numbers_of(t.views.*gradient), numbers_of(one.views.*gradient)) << threads << ' ' << keys;
        }
      }
    }
  }
}

TEST(CpuGradientLimits, BadLengthsAreRefusedAndNothingIsWritten) {
  expect_falling_lengths_refused(gradients_of(problem(Dtype::f32, 1, 1, 4, 4, 8)), [](const HandMade& t) {
    for (View Views::*gradient : gradients)
      for (double x : numbers_of(t.views.*gradient)) EXPECT_TRUE(std::isnan(x));
  });
}

TEST(CpuGradientLimits, ScratchIsAtMost3HalvesOfAMiBAThread) {
  for (int64_t dim = 8; dim <= 256; dim += 8) {
    for (int64_t dim_v = 8; dim_v <= 256; dim_v += 8) {
      Problem p = gradients_of(problem(Dtype::bf16, 8, 8, 4096, 4096, dim));
      p.dim_v = dim_v;
      for (const cpu::Kernel* kernel : cpu::kernels(p.dtype))
        EXPECT_LE(cpu::plan_with(*kernel, p).scratch_bytes(), size_t{3} << 19) << dim << ' ' << dim_v;
    }
  }
}

}  // namespace
}  // namespace froghopper
