// SPDX-License-Identifier: Apache-2.0
// check: the calls a user makes, on a case's inputs.
#pragma once
#include <functional>
#include <memory>

#include "check/check.hpp"

namespace froghopper::check {

using PlanHandle = std::unique_ptr<fh_plan, decltype(&fh_plan_destroy)>;
Result<PlanHandle> create_plan(const Problem&, const std::string& target);
Failure last_failure(fh_status);  // with the text of fh_last_error

// Runs the plan `repeats` times on the inputs, leaves o and lse in their blocks, and returns the milliseconds of each
// run. The workspace is full of garbage and has guard zones, which the Failure speaks of if they were written.
Result<std::vector<double>> run_on_cpu(const fh_plan*, Inputs&, int repeats = 1);
Result<std::vector<double>> run_on_gpu(const fh_plan*, Inputs&, int repeats = 1);

// A workspace in host memory, or the image of one for a GPU.
std::vector<unsigned char> garbage_workspace(size_t bytes);
inline constexpr size_t workspace_guard_bytes = 4096;
bool guards_intact(const std::vector<unsigned char>& workspace, size_t bytes);

}  // namespace froghopper::check
