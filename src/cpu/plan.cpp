// SPDX-License-Identifier: Apache-2.0
// cpu: which kernel and how many threads.
#include <algorithm>

#include "src/base/cores.hpp"
#include "src/base/text.hpp"
#include "src/cpu/cpu.hpp"
#include "src/cpu/work.hpp"

namespace froghopper::cpu {
namespace {

// Threads wake up for at least this many multiply-adds each: a core does them in 10 to 20 microseconds, and waking a
// thread takes as long.
constexpr double worth_a_thread = 1e6;

int64_t threads_for(const Problem& p) {
  const double work = static_cast<double>(p.rows_q()) * p.heads_q * p.seq_kv * (p.dim_qk + p.dim_v);
  const int64_t allowed = p.max_sms == 0 ? cores() : std::min(p.max_sms, cores());
  return std::clamp<int64_t>(static_cast<int64_t>(std::min(work / worth_a_thread, 1e6)), 1, allowed);
}

}  // namespace

// Whatever forward problem Problem::from accepts is computed.
Result<Plan> plan(const Problem& problem) {
  if (problem.backward())
    return Failure{FH_UNSUPPORTED, "op is FH_BACKWARD; the CPU computes the forward pass. Use FH_FORWARD."};
  return plan_with(kernels().front(), problem);
}

Plan plan_with(const Kernel& kernel, const Problem& problem) { return {problem, &kernel, threads_for(problem)}; }

size_t Plan::scratch_bytes() const { return scratch_floats(problem.dim_qk, problem.dim_v) * sizeof(float); }

std::string Plan::how() const {
  return text("cpu {} q{}.kv{} threads {}", kernel->name, kernel->block_lanes, tile_kv, threads);
}

std::string Plan::line() const { return text("{} -> {}", problem.line(), how()); }

}  // namespace froghopper::cpu
