// SPDX-License-Identifier: Apache-2.0
// tests: problems for the CPU backend, and the judge: its error may be twice that of plain loops in the same precision.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "src/cpu/cpu.hpp"
#include "src/cpu/work.hpp"
#include "src/oracle/oracle.hpp"
#include "tests/support/hand_made.hpp"

namespace froghopper::test {

inline constexpr float infinity = std::numeric_limits<float>::infinity();
inline constexpr float nan = std::numeric_limits<float>::quiet_NaN();

inline Problem problem(Dtype dtype, int64_t heads_q, int64_t heads_kv, int64_t seq_q, int64_t seq_kv, int64_t dim) {
  Problem p;
  p.dtype = p.dtype_kv = p.dtype_o = dtype;
  p.heads_q = heads_q;
  p.heads_kv = heads_kv;
  p.seq_q = seq_q;
  p.seq_kv = seq_kv;
  p.dim_qk = p.dim_v = dim;
  p.scale = default_scale(dim);
  return p;
}

inline Problem with_mask(Problem p, int64_t left, int64_t right, fh_align align = FH_BOTTOM_RIGHT) {
  p.window_left = left;
  p.window_right = right;
  p.align = align;
  return p;
}

// With the kernel and the threads that this machine takes.
inline Result<void> run_here(const HandMade& t) {
  const auto plan = cpu::plan(t.problem);
  if (!plan) return plan.failure();
  return cpu::run(*plan, t.views);
}

inline void run(const HandMade& t) {
  const Result<void> done = run_here(t);
  ASSERT_TRUE(done) << done.failure().text;
}

// Two packed sequences whose places among the keys fall. see: looks at what must not have been written.
inline void expect_falling_lengths_refused(Problem p, const std::function<void(const HandMade&)>& see) {
  p.varlen = true;
  p.batch = 2;
  p.total_q = p.total_kv = 6;
  HandMade t(p, {{0, 3, 6}, {0, 3, 6}, {}, {}});
  const std::vector<int32_t> falling{0, 4, 2};
  t.views.cu_seqlens_kv.data = const_cast<int32_t*>(falling.data());
  const Result<void> done = run_here(t);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.failure().status, FH_INVALID_TENSOR);
  see(t);
}

inline double largest_error(const std::vector<double>& exact, const std::function<double(size_t)>& got) {
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
inline void expect_right(const HandMade& t, const test::Forward& exact, const test::Forward& rough,
                         const char* kernel) {
  const double allowed = largest_error(exact.o, [&](size_t i) { return rough.o[i]; });
  const double allowed_lse = largest_error(exact.lse, [&](size_t i) { return rough.lse[i]; });
  EXPECT_LE(largest_error(exact.o, [&](size_t i) { return t.o(i); }), 2 * allowed + 1e-7)
      << kernel << ' ' << t.problem.line();
  EXPECT_LE(largest_error(exact.lse, [&](size_t i) { return t.lse[i]; }), 2 * allowed_lse + 1e-6)
      << kernel << ' ' << t.problem.line();
}

// By every kernel that this machine can run.
inline void expect_right(const Problem& p, const Lengths& lengths = {}) {
  HandMade t(p, lengths);
  const test::Forward exact = test::exact(t);
  const test::Forward rough = test::same_precision(t);
  for (const cpu::Kernel* kernel : cpu::kernels(cpu::multiplied_as(p))) {
    HandMade fresh(p, lengths);
    const Result<void> done = cpu::run(cpu::plan_with(*kernel, fresh.problem), fresh.views);
    ASSERT_TRUE(done) << done.failure().text;
    expect_right(fresh, exact, rough, kernel->name);
  }
}

inline void expect_right(const HandMade& t) { expect_right(t, test::exact(t), test::same_precision(t), "default"); }

}  // namespace froghopper::test
