// SPDX-License-Identifier: Apache-2.0
// check: the calls a user makes, on a case's inputs.
#pragma once
#include <functional>
#include <memory>

#include "check/check.hpp"
#include "check/gpu/session.hpp"

namespace froghopper::check {

using PlanHandle = std::unique_ptr<fh_plan, decltype(&fh_plan_destroy)>;
Result<PlanHandle> create_plan(const Problem&, const std::string& target);
Failure last_failure(fh_status);  // with the text of fh_last_error

// Runs the plan `repeats` times on the inputs, leaves what it writes in their blocks, and returns the milliseconds of
// each run. The workspace is full of garbage and has guard zones, which the Failure names if they were written.
Result<std::vector<double>> run_on_cpu(const fh_plan*, Inputs&, int repeats = 1);
Result<std::vector<double>> run_on_gpu(const fh_plan*, Inputs&, int repeats = 1);

// Gradients may be added up in any order, unless the problem is deterministic.
inline bool bit_equal(const Problem& p) { return !p.backward() || p.deterministic; }

// Runs the plan on the inputs from NaN again and again, in ways that must not change the result: from garbage in the
// workspace, twice from a graph of one call, which must not depend on what the run before left there, and with other
// garbage. "": all is well; else what is not, and where. Where results are bit-equal, the first is left in the blocks
// and the others are compared with it. Else `look` sees each of them in the blocks, and says what is wrong with it.
Result<std::string> run_in_many_ways_on_gpu(const fh_plan*, const Problem&, Inputs&,
                                            const std::function<std::string()>& look);

// Copies of all blocks of the inputs, gaps and guard zones included, in the memory of a GPU.
struct OnGpu {
  std::vector<void*> begins;  // of the blocks, by index in froghopper::tensors()
  fh_tensors tensors = fh_tensors_init();
};
Result<OnGpu> upload(GpuSession&, const Inputs&);

// A workspace in host memory, or the image of one for a GPU.
std::vector<unsigned char> garbage_workspace(size_t bytes);
inline constexpr size_t workspace_guard_bytes = 4096;
bool guards_intact(const std::vector<unsigned char>& workspace, size_t bytes);

}  // namespace froghopper::check
