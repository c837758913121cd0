// SPDX-License-Identifier: Apache-2.0
// tests: the CPU backend against the oracle. Its error may be twice that of plain loops in the same precision.
#include "src/cpu/cpu.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cmath>
#include <fstream>
#include <limits>
#include <thread>

#include "src/cpu/work.hpp"
#include "src/oracle/oracle.hpp"
#include "tests/support/hand_made.hpp"

namespace froghopper {
namespace {

using test::HandMade;
using test::Lengths;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

Problem problem(Dtype dtype, int64_t heads_q, int64_t heads_kv, int64_t seq_q, int64_t seq_kv, int64_t dim) {
  Problem p;
  p.dtype = dtype;
  p.heads_q = heads_q;
  p.heads_kv = heads_kv;
  p.seq_q = seq_q;
  p.seq_kv = seq_kv;
  p.dim_qk = p.dim_v = dim;
  p.scale = default_scale(dim);
  return p;
}

Problem with_mask(Problem p, int64_t left, int64_t right, fh_align align = FH_BOTTOM_RIGHT) {
  p.window_left = left;
  p.window_right = right;
  p.align = align;
  return p;
}

// With the kernel and the threads that this machine takes.
Result<void> run_here(const HandMade& t) {
  const auto plan = cpu::plan(t.problem);
  if (!plan) return plan.failure();
  return cpu::run(*plan, t.views);
}

void run(const HandMade& t) {
  const Result<void> done = run_here(t);
  ASSERT_TRUE(done) << done.failure().text;
}

double largest_error(const std::vector<double>& exact, const std::function<double(size_t)>& got) {
  double error = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    if (exact[i] == got(i)) continue;  // infinities
    const double here = std::abs(exact[i] - got(i));
    error = here <= error ? error : here;  // a NaN stays
    if (std::isnan(error)) return error;
  }
  return error;
}

// Weights are sums of products of the size of the scores, so lse may be off by a few roundings of the largest score.
void expect_right(const HandMade& t, const test::Forward& exact, const test::Forward& rough, const char* kernel) {
  const double allowed = largest_error(exact.o, [&](size_t i) { return rough.o[i]; });
  const double allowed_lse = largest_error(exact.lse, [&](size_t i) { return rough.lse[i]; });
  EXPECT_LE(largest_error(exact.o, [&](size_t i) { return t.o(i); }), 2 * allowed + 1e-7)
      << kernel << ' ' << t.problem.line();
  EXPECT_LE(largest_error(exact.lse, [&](size_t i) { return t.lse[i]; }), 2 * allowed_lse + 1e-6)
      << kernel << ' ' << t.problem.line();
}

// By every kernel that this machine can run.
void expect_right(const Problem& p, const Lengths& lengths = {}) {
  HandMade t(p, lengths);
  const test::Forward exact = test::exact(t);
  const test::Forward rough = test::same_precision(t);
  for (const cpu::Kernel& kernel : cpu::kernels()) {
    HandMade fresh(p, lengths);
    const Result<void> done = cpu::run(cpu::plan_with(kernel, fresh.problem), fresh.views);
    ASSERT_TRUE(done) << done.failure().text;
    expect_right(fresh, exact, rough, kernel.name);
  }
}

void expect_right(const HandMade& t) {
  expect_right(t, test::exact(t), test::same_precision(t), "default");
}

constexpr Dtype all_dtypes[] = {Dtype::f16, Dtype::bf16, Dtype::f32};

TEST(Cpu, EveryHeadDim) {
  for (Dtype dtype : all_dtypes) {
    for (int64_t dim = 8; dim <= 256; dim += 8) expect_right(problem(dtype, 2, 1, 37, 150, dim));
  }
}

TEST(Cpu, HeadDimOfVIsItsOwn) {
  for (Dtype dtype : all_dtypes) {
    for (auto [dim_qk, dim_v] : {std::pair{192, 128}, {8, 256}, {256, 8}, {72, 40}}) {
      Problem p = problem(dtype, 1, 1, 70, 200, dim_qk);
      p.dim_v = dim_v;
      expect_right(p);
    }
  }
}

// Around the sizes of vectors (16), blocks (64), tiles (128) and pieces (256), and the register rows (6).
TEST(Cpu, OddLengths) {
  for (int64_t seq_q : {1, 2, 5, 15, 16, 17, 63, 65, 127, 257, 300}) {
    for (int64_t seq_kv : {1, 3, 6, 7, 127, 128, 129, 261}) {
      expect_right(problem(Dtype::f32, 1, 1, seq_q, seq_kv, 16));
      expect_right(with_mask(problem(Dtype::bf16, 1, 1, seq_q, seq_kv, 16), all_keys, 0));
    }
  }
}

TEST(Cpu, Masks) {
  for (int64_t left : {all_keys, int64_t{0}, int64_t{5}, int64_t{130}}) {
    for (int64_t right : {all_keys, int64_t{0}, int64_t{3}, int64_t{200}}) {
      for (fh_align align : {FH_BOTTOM_RIGHT, FH_TOP_LEFT}) {
        for (auto [seq_q, seq_kv] : {std::pair{150, 150}, {40, 301}, {301, 40}}) {
          expect_right(with_mask(problem(Dtype::f32, 2, 1, seq_q, seq_kv, 24), left, right, align));
        }
      }
    }
  }
}

TEST(Cpu, HeadsShareKeys) {
  for (auto [heads_q, heads_kv] : {std::pair{8, 8}, {8, 2}, {6, 2}, {40, 1}, {7, 1}}) {
    for (int64_t seq_q : {1, 3, 50}) {
      expect_right(with_mask(problem(Dtype::f16, heads_q, heads_kv, seq_q, 140, 64), all_keys, 0));
    }
  }
}

TEST(Cpu, SoftcapScaleAndSink) {
  for (Dtype dtype : all_dtypes) {
    for (float softcap : {0.0f, 0.5f, 30.0f}) {
      for (bool sink : {false, true}) {
        Problem p = with_mask(problem(dtype, 4, 2, 90, 80, 32), 20, 0);
        p.softcap = softcap;
        p.sink = sink;
        p.scale = 0.3f;
        expect_right(p);
      }
    }
  }
}

TEST(Cpu, PackedSequencesOfAllKinds) {
  for (Dtype dtype : all_dtypes) {
    Problem p = with_mask(problem(dtype, 4, 2, 200, 300, 40), all_keys, 0);
    p.varlen = true;
    p.batch = 6;
    p.total_q = 400;
    p.total_kv = 500;
    // No query, no key, more queries than keys, fewer, one of each; rows 391 to 399 belong to none.
    const Lengths lengths{{0, 0, 50, 190, 190, 390, 391}, {0, 10, 10, 60, 60, 330, 331}, {}, {}};
    expect_right(p, lengths);
    p.sink = true;
    p.align = FH_TOP_LEFT;
    expect_right(p, lengths);
    p.seqused = true;
    Lengths used = lengths;
    used.used_q = {0, 49, 140, 0, 130, 0};
    used.used_kv = {9, 0, 1, 0, 129, 1};
    expect_right(p, used);
    used.used_q.clear();
    expect_right(p, used);
  }
}

TEST(Cpu, UsedLengthsWithoutPacking) {
  Problem p = with_mask(problem(Dtype::bf16, 2, 2, 70, 200, 64), all_keys, 0);
  p.batch = 4;
  p.seqused = true;
  expect_right(p, {{}, {}, {70, 0, 13, 65}, {200, 100, 0, 131}});
  expect_right(p, {{}, {}, {}, {1, 128, 199, 64}});
}

TEST(Cpu, NothingToDo) {
  for (auto [batch, seq_q, seq_kv] : {std::array{0, 5, 5}, {2, 0, 5}, {2, 5, 0}, {0, 0, 0}}) {
    Problem p = problem(Dtype::f32, 2, 2, seq_q, seq_kv, 16);
    p.batch = batch;
    p.sink = true;
    expect_right(p);
  }
  Problem p = problem(Dtype::f32, 2, 2, 0, 0, 16);
  p.varlen = true;
  p.batch = 0;
  p.total_q = 5;
  expect_right(p, {{0}, {0}, {}, {}});
}

TEST(Cpu, LseMayBeLeftOut) {
  HandMade t(problem(Dtype::f32, 2, 1, 33, 65, 64));
  t.views.lse.data = nullptr;
  run(t);
  EXPECT_TRUE(std::isnan(t.lse[0]));
  const test::Forward exact = test::exact(t);
  EXPECT_LT(largest_error(exact.o, [&](size_t i) { return t.o(i); }), 1e-5);
}

// Every key has the same score, far beyond what e^score can hold: each weight is the same, and none may become NaN.
TEST(Cpu, HugeInputs) {
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

// Scores that grow from key to key make every tile bring a new largest one; 400 apart, what came before is forgotten.
TEST(Cpu, RisingScores) {
  for (float step : {0.01f, 1.0f, 400.0f}) {
    HandMade t(problem(Dtype::f32, 1, 1, 20, 400, 16));
    t.fill_q([](int64_t, int64_t, int64_t) { return 1.0f; });
    t.fill_k([&](int64_t row, int64_t, int64_t) { return step * row / 4; });
    run(t);
    expect_right(t);
  }
}

// Keys that a row does not see may be NaN and infinite in k and in v, also when its neighbours see them.
TEST(Cpu, UnseenKeysDoNotMatterWhateverTheyHold) {
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
        const bool sees = bad_key <= i && bad_key >= i - 30;
        for (int64_t c = 0; c < 16; ++c) {
          if (sees) {
            ASSERT_FALSE(std::isfinite(t.o(i * 16 + c))) << i;
          } else {
            ASSERT_EQ(t.o(i * 16 + c), clean.o(i * 16 + c)) << i;
          }
        }
      }
    }
  }
}

TEST(Cpu, ThreadsDoNotChangeTheResult) {
  Problem p = with_mask(problem(Dtype::f32, 4, 2, 500, 600, 64), all_keys, 0);
  p.batch = 2;
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

TEST(Cpu, AnyNumberOfThreadsMayCall) {
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

TEST(Cpu, AChildProcessMayCall) {
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

TEST(Cpu, ScratchIsAtMost4MiBAThread) {
  for (int dim_qk = 8; dim_qk <= 256; dim_qk += 8) {
    for (int dim_v = 8; dim_v <= 256; dim_v += 8) {
      EXPECT_LE(cpu::scratch_floats(dim_qk, dim_v) * sizeof(float), size_t{4} << 20);
    }
  }
}

// Of the process's memory: 100 000 keys, whose scores alone would take 25 MB for 64 rows, need no more than scratch.
TEST(Cpu, MemoryDoesNotGrowWithTheSequence) {
  const auto peak_kib = [] {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;) {
      if (word == "VmHWM:") break;
    }
    long kib = 0;
    status >> kib;
    return kib;
  };
  HandMade t(problem(Dtype::f32, 1, 1, 64, 100000, 8));
  const long before = peak_kib();
  ASSERT_GT(before, 0);
  run(t);
  EXPECT_LT(peak_kib() - before, 4096 * static_cast<long>(std::thread::hardware_concurrency()) + 1024);
}

TEST(Cpu, SaysWhatRunsHere) {
  Problem p = problem(Dtype::f32, 8, 8, 1000, 1000, 64);
  p.max_sms = 1;
  const auto plan = cpu::plan(p);
  ASSERT_TRUE(plan);
  const std::string line = plan->line();
  EXPECT_EQ(line, p.line() + " -> " + plan->how());
  EXPECT_NE(line.find(" -> cpu "), std::string::npos) << line;
  EXPECT_NE(line.find(".kv128 threads 1"), std::string::npos) << line;
}

TEST(Cpu, BadLengthsAreRefusedAndNothingIsWritten) {
  Problem p = problem(Dtype::f32, 1, 1, 4, 4, 8);
  p.varlen = true;
  p.batch = 2;
  p.total_q = p.total_kv = 6;
  HandMade t(p, {{0, 3, 6}, {0, 3, 6}, {}, {}});
  const std::vector<int32_t> falling{0, 4, 2};
  t.views.cu_seqlens_kv.data = const_cast<int32_t*>(falling.data());
  const Result<void> done = run_here(t);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.failure().status, FH_INVALID_TENSOR);
  for (float lse : t.lse) EXPECT_TRUE(std::isnan(lse));
}

}  // namespace
}  // namespace froghopper
