// SPDX-License-Identifier: Apache-2.0
// tests: the CPU backend where numbers, lengths, threads and memory are not as usual.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "src/base/cores.hpp"
#include "tests/support/cpu_problems.hpp"

namespace froghopper {
namespace {

using namespace test;

// Every key has the same score, far beyond what e^score can hold: each weight is the same, and none may become NaN.
TEST(CpuLimits, HugeInputs) {
  for (Dtype dtype : {Dtype::bf16, Dtype::f32}) {
    HandMade t(problem(dtype, 1, 1, 70, 300, 128));
    const auto huge = [](int64_t, int64_t, int64_t) { return 133120.0f; };
    t.fill_q(huge);
    t.fill_k(huge);
    t.fill_v(huge);
    run(t);
    for (int64_t i = 0; i < 70 * 128; ++i) ASSERT_NEAR(t.o(i), 133120.0, 133120.0 * 4e-7);
  }
  for (float softcap : {0.0f, 30.0f}) {
    Problem p = problem(Dtype::f32, 1, 1, 20, 300, 256);
    p.softcap = softcap;
    HandMade t(p);
    t.fill_k([](int64_t row, int64_t, int64_t column) { return (row % 7 - 3) * 1e17f * float(column % 5 - 2); });
    run(t);
    expect_right(t);
  }
  HandMade t(problem(Dtype::f16, 1, 1, 20, 300, 256));
  t.fill_q([](int64_t row, int64_t, int64_t) { return row % 2 == 0 ? 65504.0f : -65504.0f; });
  t.fill_k([](int64_t row, int64_t, int64_t) { return row % 3 == 0 ? 65504.0f : row % 3 == 1 ? 0.0f : -65504.0f; });
  run(t);
  expect_right(t);
}

// Sums of weights times v pass the largest float, 3.4e38, and o does not. What is written without it stays as it is.
void expect_huge_values_of_v(Dtype dtype, int64_t heads_q, int64_t rows, int64_t keys = 300, int64_t dim = 24) {
  for (const cpu::Kernel* kernel : cpu::kernels(dtype)) {
    Problem p = with_mask(problem(dtype, heads_q, 1, rows, keys, dim), all_keys, 0);
    p.sink = true;
    HandMade t(p), plain(p);
    const auto one = [](int64_t, int64_t, int64_t) { return 0.01f; };
    t.fill_q(one), plain.fill_q(one);
    // Column 0 is huge, 1 is huge and cancels, 2 begins at the last keys, others are as usual.
    const auto usual = [](int64_t row, int64_t c) { return static_cast<float>((row * 7 + c * 3) % 11 - 5); };
    t.fill_v([&](int64_t row, int64_t, int64_t c) {
      if (c == 0) return 3e37f;
      if (c == 1) return row % 2 == 0 ? 3e38f : -3e38f;
      return c == 2 && row >= 290 ? -3.2e38f : usual(row, c);
    });
    plain.fill_v([&](int64_t row, int64_t, int64_t c) { return usual(row, c); });
    for (HandMade* each : {&t, &plain}) {
      const Result<void> done = cpu::run(cpu::plan_with(*kernel, each->problem), each->views);
      ASSERT_TRUE(done) << done.failure().text;
    }
    const test::Forward exact = test::exact(t);
    for (size_t i = 0; i < exact.o.size(); ++i) {
      const size_t column = i % static_cast<size_t>(dim);
      const double size = column == 0 ? 3e37 : column < 3 ? 3.2e38 : 0;
      if (size > 0) {
        ASSERT_NEAR(t.o(i), exact.o[i], size * (dtype == Dtype::f32 ? 1e-5 : 0x1p-7)) << kernel->name << ' ' << i;
      } else {
        ASSERT_EQ(t.o(i), plain.o(i)) << kernel->name << ' ' << i;
      }
    }
    ASSERT_EQ(t.lse, plain.lse) << kernel->name;
  }
}

TEST(CpuLimits, HugeValuesOfV) {
  for (Dtype dtype : {Dtype::bf16, Dtype::f32}) {
    expect_huge_values_of_v(dtype, /*heads_q=*/2, /*rows=*/90);
    expect_huge_values_of_v(dtype, /*heads_q=*/1, /*rows=*/1);
    for (int64_t heads_q : {1, 2})  // split-KV
      expect_huge_values_of_v(dtype, heads_q, /*rows=*/1, /*keys=*/1300, /*dim=*/512);
  }
}

// What is not finite in used memory reaches the rows that use it and no other: docs/5-cpu.md has the table.
TEST(CpuLimits, NaNAndInfinityStayInTheirRows) {
  const Problem p = with_mask(problem(Dtype::f32, 2, 1, 70, 150, 16), 20, 0);
  HandMade clean(p);
  run(clean);
  const auto attends = [](int64_t row, int64_t key) { return key <= row + 80 && key >= row + 60; };
  constexpr int64_t bad_row = 33, bad_key = 110, bad_column = 5;
  for (const float bad : {nan, infinity, -infinity}) {
    const auto compare = [&](View(Views::*view), int64_t row, const std::function<int(int64_t, int64_t)>& kind) {
      HandMade t(p);
      View& spoiled = t.views.*view;
      static_cast<float*>(spoiled.data)[row * spoiled.stride_seq + bad_column] = bad;
      run(t);
      for (int64_t i = 0; i < 70 * 2 * 16; ++i) {
        const int expected = kind(i / 32, i);  // 0: as without it; 1: NaN; 2: the bad value itself; 3: anything
        const float o = static_cast<float>(t.o(i));
        if (expected == 0) {
          ASSERT_EQ(o, clean.o(i)) << i;
        } else if (expected == 1 || (expected == 2 && std::isnan(bad))) {
          ASSERT_TRUE(std::isnan(o)) << i << ' ' << o;
        } else if (expected == 2) {
          ASSERT_EQ(o, bad) << i;
        }
      }
    };
    compare(&Views::q, bad_row, [](int64_t row, int64_t i) { return row == bad_row && i / 16 % 2 == 0 ? 1 : 0; });
    compare(&Views::v, bad_key,
            [&](int64_t row, int64_t i) { return attends(row, bad_key) && i % 16 == bad_column ? 2 : 0; });
    compare(&Views::k, bad_key, [&](int64_t row, int64_t) {
      return !attends(row, bad_key) ? 0 : std::isnan(bad) ? 1 : 3;
    });
  }
}

// Every f16 number, as v of a single key: on its way through floats and back it stays what it is.
TEST(CpuLimits, EveryF16NumberIsReadAndWrittenExactly) {
  for (const int64_t rows : {1, 2}) {
    for (const cpu::Kernel* kernel : cpu::kernels(Dtype::f16)) {
      HandMade t(problem(Dtype::f16, 256, 256, rows, 1, 256));
      const auto number = [&](int64_t head, int64_t c) {
        return t.views.v.as<uint16_t>() + t.views.v.at(0, 0, head) + c;
      };
      for (int bits = 0; bits < 65536; ++bits) *number(bits / 256, bits % 256) = static_cast<uint16_t>(bits);
      const Result<void> done = cpu::run(cpu::plan_with(*kernel, t.problem), t.views);
      ASSERT_TRUE(done) << done.failure().text;
      for (int64_t i = 0; i < rows * 65536; ++i) {
        const float exact = f16_to_float(static_cast<uint16_t>(i % 65536));
        ASSERT_TRUE(t.o(i) == exact || (std::isnan(t.o(i)) && std::isnan(exact))) << kernel->name << ' ' << i;
      }
    }
  }
}

// Scores that grow from key to key make every tile bring a new largest one; 400 apart, what came before is forgotten.
TEST(CpuLimits, RisingScores) {
  for (float step : {0.01f, 1.0f, 400.0f}) {
    HandMade t(problem(Dtype::f32, 1, 1, 20, 400, 16));
    t.fill_q([](int64_t, int64_t, int64_t) { return 1.0f; });
    t.fill_k([&](int64_t row, int64_t, int64_t) { return step * row / 4; });
    run(t);
    expect_right(t);
  }
}

// Masked keys of a row may be NaN and infinite in k and in v, also when its neighbours attend to them.
TEST(CpuLimits, UnseenKeysDoNotMatterWhateverTheyHold) {
  for (float bad : {nan, infinity}) {
    for (int64_t bad_key : {40, 129, 199}) {
      Problem p = with_mask(problem(Dtype::f32, 1, 1, 200, 200, 16), 30, 0);
      HandMade clean(p), t(p);
      const auto spoil = [&](View& view) {
        float* const row = static_cast<float*>(view.data) + bad_key * view.stride_seq;
        std::fill(row, row + view.dim, bad);
      };
      spoil(t.views.k);
      spoil(t.views.v);
      run(clean);
      run(t);
      for (int64_t i = 0; i < 200; ++i) {
        const bool attends = bad_key <= i && bad_key >= i - 30;
        for (int64_t c = 0; c < 16; ++c) {
          if (attends) {
            ASSERT_FALSE(std::isfinite(t.o(i * 16 + c))) << i;
          } else {
            ASSERT_EQ(t.o(i * 16 + c), clean.o(i * 16 + c)) << i;
          }
        }
      }
    }
  }
}

void expect_same_with_any_threads(Problem p) {
  p.max_sms = 1;
  HandMade one(p);
  run(one);
  for (int64_t threads : {2, 3, 1000}) {
    p.max_sms = threads;
    HandMade t(p);
    run(t);
    for (int64_t i = 0; i < p.rows_q() * p.heads_q * p.dim_v; ++i) ASSERT_EQ(t.o(i), one.o(i)) << threads;
    ASSERT_EQ(t.lse, one.lse);
  }
}

TEST(CpuLimits, ThreadsDoNotChangeTheResult) {
  Problem p = with_mask(problem(Dtype::f32, 4, 2, 500, 600, 64), all_keys, 0);
  p.batch = 2;
  expect_same_with_any_threads(p);
}

// Nor does how many heads one of them has side by side, which is fewer where there are more threads.
TEST(CpuLimits, ThreadsDoNotChangeTheResultOfFewRows) {
  for (Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16})
    for (int64_t heads_q : {4, 16}) expect_same_with_any_threads(problem(dtype, heads_q, 4, 1, 4000, 128));
}

TEST(CpuLimits, AnyNumberOfThreadsMayCall) {
  const Problem p = with_mask(problem(Dtype::bf16, 4, 4, 130, 130, 64), all_keys, 0);
  HandMade expected(p);
  run(expected);
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int n = 0; n < 8; ++n) {
    callers.emplace_back([&] {
      HandMade t(p);
      for (int round = 0; round < 20; ++round) {
        if (!run_here(t) || t.lse != expected.lse || t.o(7777) != expected.o(7777)) ++wrong;
        std::fill(t.lse.begin(), t.lse.end(), nan);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST(CpuLimits, AChildProcessMayCall) {
  const Problem p = problem(Dtype::f32, 4, 4, 300, 300, 64);
  HandMade t(p);
  run(t);
  const std::vector<float> expected = t.lse;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::fill(t.lse.begin(), t.lse.end(), nan);
    _exit(run_here(t) && t.lse == expected ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// But for what is set aside once in 4096 keys, which need not stay in the second-level cache.
TEST(CpuLimits, ScratchIsAtMost1MiBAThreadAndTwiceThatWithAmx) {
  for (int dim_qk = 8; dim_qk <= 256; dim_qk += 8) {
    for (int dim_v = 8; dim_v <= 256; dim_v += 8) {
      const auto bytes = [&](int lanes, int keys) {
        const int of_item = cpu::lanes_of_item(lanes, dim_qk, dim_v);
        return (cpu::scratch_floats(dim_qk, dim_v, of_item, cpu::keys_of_tile(keys, dim_qk, dim_v)) -
                cpu::partial_floats(dim_v, of_item)) *
               sizeof(float);
      };
      EXPECT_LE(bytes(cpu::lanes_usual, cpu::tile_kv), size_t{1} << 20);
      EXPECT_LE(bytes(cpu::lanes_avx512, cpu::tile_kv), size_t{1} << 20);
      EXPECT_LE(bytes(cpu::lanes_max, cpu::tile_kv_amx), size_t{1} << 21);
    }
  }
}

// The most memory that the process has had. Tests that ask run in a process of their own under ctest.
long peak_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmHWM:") break;
  }
  long kib = 0;
  status >> kib;
  return kib;
}

long scratch_kib() { return 1024 * cores() + 1024; }

// 100 000 keys, whose scores alone would take 25 MB for 64 rows, need no more than scratch.
TEST(CpuLimits, MemoryDoesNotGrowWithTheSequence) {
  HandMade t(problem(Dtype::f32, 1, 1, 64, 100000, 8));
  const long before = peak_kib();
  ASSERT_GT(before, 0);
  run(t);
  EXPECT_LT(peak_kib() - before, scratch_kib());
}

// A list of 16 bytes a sequence where they have lengths of their own, and nothing where they are alike.
void expect_memory_for_sequences(bool seqused, long bytes_each) {
  constexpr int64_t count = 1000000;
  Problem p = problem(Dtype::f16, 1, 1, 1, 1, 8);
  p.batch = count;
  p.seqused = seqused;
  HandMade t(p, {{}, {}, std::vector<int32_t>(seqused ? count : 0, 1), {}});
  const long before = peak_kib();
  run(t);
  EXPECT_LT(peak_kib() - before, scratch_kib() + bytes_each * count / 1024);
  EXPECT_EQ(t.o(count * 8 - 1),
            load(t.views.v.data, HandMade::element(t.views.v, count * 8 - 1), element_of(p.dtype)));
}

TEST(CpuLimits, MemoryForManySequencesOfOneLength) { expect_memory_for_sequences(false, 0); }
TEST(CpuLimits, MemoryForManySequencesWithLengthsOfTheirOwn) { expect_memory_for_sequences(true, 16); }

// The strides of an empty tensor are never checked, so nothing may be computed from them.
TEST(CpuLimits, StridesOfEmptyKeysMayBeAnything) {
  for (const bool varlen : {false, true}) {
    Problem p = problem(Dtype::f32, 4, 4, 3, 0, 8);
    p.batch = 2;
    p.varlen = varlen;
    p.total_q = varlen ? 6 : 0;
    HandMade t(p, varlen ? Lengths{{0, 3, 6}, {0, 0, 0}, {}, {}} : Lengths{});
    for (View* view : {&t.views.k, &t.views.v}) {
      view->data = nullptr;
      view->stride_batch = view->stride_seq = view->stride_head = std::numeric_limits<int64_t>::max();
    }
    run(t);
    for (float lse : t.lse) EXPECT_EQ(lse, -infinity);
    EXPECT_EQ(t.o(0), 0);
  }
}

TEST(CpuLimits, BadLengthsAreRefusedAndNothingIsWritten) {
  expect_falling_lengths_refused(problem(Dtype::f32, 1, 1, 4, 4, 8), [](const HandMade& t) {
    for (float lse : t.lse) EXPECT_TRUE(std::isnan(lse));
  });
}

}  // namespace
}  // namespace froghopper
