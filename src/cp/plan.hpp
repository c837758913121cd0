// SPDX-License-Identifier: Apache-2.0
// cp: a plan: the job, its steps on this rank, the library's own plans for their calls, and what it says of itself.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/base/result.hpp"
#include "src/cp/job.hpp"
#include "src/cp/steps.hpp"

namespace froghopper::cp {

struct Forget {
  void operator()(fh_plan* plan) const { fh_plan_destroy(plan); }
};
using Attention = std::unique_ptr<fh_plan, Forget>;  // the library's plan of one call

}  // namespace froghopper::cp

struct fh_cp_plan {
  froghopper::cp::Job job;
  int64_t rank = 0;
  fh_cp_scheme scheme = FH_CP_AUTO;
  froghopper::cp::Steps steps;
  std::vector<froghopper::cp::Attention> attention;  // of steps.problems
  bool on_gpu = false;
  bool runs_here = true;  // false: made for a GPU that was only named
  // Bytes; attention's own lies at the end, what all calls use first, and then those of slots, from these places on.
  uint64_t workspace = 0;
  std::vector<uint64_t> slots;
  uint64_t digest = 0;  // of everything that must be the same on all ranks
  double seconds = 0;
  std::string text;
};

namespace froghopper::cp {

Result<std::unique_ptr<fh_cp_plan>> make_plan(const fh_cp_problem& problem, const char* target);
std::string printed(const fh_cp_plan& plan, const std::vector<std::string>& why);
const char* name_of(fh_cp_scheme scheme);

// Runs the steps. The text of a failure says which step.
Result<void> run(const fh_cp_plan& plan, const fh_cp_transport* transport, const fh_cp_memory* memory,
                 const fh_cp_tensors& tensors, void* workspace, uint64_t workspace_bytes, void* stream);

}  // namespace froghopper::cp
