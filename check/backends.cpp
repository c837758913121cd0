// SPDX-License-Identifier: Apache-2.0
// check: plans and runs as a user makes them, and the workspace they get. Runs on a GPU: backends_gpu.cpp.
#include "check/backends.hpp"

#include <chrono>

namespace froghopper::check {

Result<PlanHandle> create_plan(const Problem& p, const std::string& target) {
  const fh_problem user = p.user_struct();
  fh_plan* plan = nullptr;
  const fh_status status = fh_plan_create(&user, target.c_str(), &plan);
  if (status != FH_OK) return last_failure(status);
  return PlanHandle(plan, &fh_plan_destroy);
}

// Without the name of the C function, which no user of the program has called.
Failure last_failure(fh_status status) {
  std::string text = fh_last_error();
  const size_t end = text.find(": ");
  if (text.starts_with("fh_") && end < text.find(' ')) text.erase(0, end + 2);
  return {status, text};
}

Result<std::vector<double>> run_on_cpu(const fh_plan* plan, Inputs& in, int repeats) {
  const size_t bytes = fh_plan_workspace_bytes(plan);
  std::vector<unsigned char> workspace = garbage_workspace(bytes);
  std::vector<double> ms;
  for (int i = 0; i < repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const fh_status status = fh_plan_run(plan, &in.tensors, workspace.data() + workspace_guard_bytes, bytes, nullptr);
    if (status != FH_OK) return last_failure(status);
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  if (!guards_intact(workspace, bytes)) return Failure{FH_INTERNAL, "memory next to the workspace was written"};
  return ms;
}

// Neither zeros nor all ones, which a counter or a flag might take for a start.
constexpr unsigned char garbage = 0xa5;

std::vector<unsigned char> garbage_workspace(size_t bytes) {
  return std::vector<unsigned char>(bytes + 2 * workspace_guard_bytes, garbage);
}

bool guards_intact(const std::vector<unsigned char>& workspace, size_t bytes) {
  for (size_t i = 0; i < workspace_guard_bytes; ++i) {
    if (workspace[i] != garbage || workspace[workspace_guard_bytes + bytes + i] != garbage) return false;
  }
  return true;
}

}  // namespace froghopper::check
