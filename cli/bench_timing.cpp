// SPDX-License-Identifier: Apache-2.0
// cli: the measurements of `froghopper bench`: bursts of calls, their median and its spread.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "cli/bench.hpp"

namespace froghopper::cli {

namespace {

double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

template <class T>
T median(std::vector<T> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Result<void> run(const Stand& stand, const fh_plan* plan) {
  const fh_status status =
      fh_plan_run(plan, &stand.tensors(), stand.workspace(), stand.workspace_bytes(), stand.stream());
  if (status != FH_OK) return check::last_failure(status);
  return {};
}

}  // namespace

Result<Timing> time_plan(Stand& stand, const fh_plan* plan, const Effort& effort) {
  int64_t calls = 1;
  const auto burst = [&]() -> Result<void> {
    for (int64_t i = 0; i < calls; ++i, stand.next())
      if (auto ran = run(stand, plan); !ran) return ran;
    return {};
  };
  // The first burst loads the kernel and touches the memory; the second says how many calls fill a round.
  constexpr int64_t most_calls = 10'000;
  auto once = stand.time(burst);
  if (once) once = stand.time(burst);
  if (!once) return once.failure();
  calls = std::clamp(static_cast<int64_t>(effort.ms / std::max(*once, 1e-3)), int64_t{1}, most_calls);

  std::vector<double> ms;
  std::vector<int> clocks;
  for (int round = 0; round < effort.rounds; ++round) {
    const auto took = stand.time(burst);
    if (!took) return took.failure();
    ms.push_back(*took / static_cast<double>(calls));
    clocks.push_back(stand.sm_clock_mhz());
  }
  return summarize(std::move(ms), std::move(clocks));
}

Result<HostCost> time_host(Stand& stand, const Problem& problem, const std::string& target, const fh_plan* plan,
                           int rounds) {
  // A GPU takes about 1000 launches before it makes the caller wait, so a chunk stays well below.
  constexpr int chunk = 200;
  const fh_problem user = problem.user_struct();
  const auto plan_run = [&] { return run(stand, plan); };
  const auto attention = [&]() -> Result<void> {
    const fh_status status = fh_attention(&user, target.c_str(), &stand.tensors(), stand.workspace(),
                                          stand.workspace_bytes(), stand.stream());
    if (status != FH_OK) return check::last_failure(status);
    return {};
  };
  const auto time_chunk = [&](const auto& call, std::vector<double>& ms) -> Result<void> {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < chunk; ++i)
      if (auto ran = call(); !ran) return ran;
    ms.push_back(milliseconds_since(begin) / chunk);
    return stand.finish();
  };
  std::vector<double> of_plan_run, of_attention;
  for (int round = 0; round <= rounds; ++round) {
    if (auto ran = time_chunk(plan_run, of_plan_run); !ran) return ran.failure();
    if (auto ran = time_chunk(attention, of_attention); !ran) return ran.failure();
  }
  // The first round found the plan, loaded the kernel and woke the GPU.
  of_plan_run.erase(of_plan_run.begin());
  of_attention.erase(of_attention.begin());
  return HostCost{summarize(std::move(of_plan_run), {}), summarize(std::move(of_attention), {})};
}

Timing summarize(std::vector<double> ms, std::vector<int> clocks) {
  Timing timing;
  timing.ms = median(ms);
  for (double& x : ms) x = std::abs(x - timing.ms);
  timing.spread = timing.ms > 0 ? 100 * median(std::move(ms)) / timing.ms : 0;
  timing.sm_clock_mhz = median(std::move(clocks));
  return timing;
}

}  // namespace froghopper::cli
