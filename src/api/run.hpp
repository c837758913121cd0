// SPDX-License-Identifier: Apache-2.0
// api: from a described problem to a result. An fh_plan is a decision too: which backend, and how it goes about it.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "src/plan/plan.hpp"

struct fh_plan {
  froghopper::Problem problem;
  std::optional<froghopper::Plan> hopper;  // nothing: the CPU computes it
  bool runs_here = true;                   // false: made for a GPU that was only named
  std::string why_cpu;                     // target auto: why it is not the GPU
  std::string line;                        // "PROBLEM -> ..."
};

namespace froghopper {

// Where the user wants it, see fh_plan_create.
struct Target {
  enum class Kind { automatic, hopper, cpu, named } kind = Kind::automatic;
  int ordinal = -1;  // hopper: which GPU, -1 the current one
  Device device;     // named
};
Result<Target> read_target(const char* target);

Result<fh_plan> make_plan(const Problem&, const Target&);
Result<fh_plan> make_plan_on(const Problem&, const Device&);  // the kernel is loaded when this returns
Result<fh_plan> make_plan_on_cpu(const Problem&);

Result<void> run(const fh_plan&, const fh_tensors&, void* workspace, size_t workspace_bytes, void* stream);

// The plan of this problem on this target, made at most once: plan_cache.cpp.
Result<std::shared_ptr<const fh_plan>> cached_plan(const fh_problem&, const char* target);

std::string explain(const Problem&, const Target&);  // lines of text

}  // namespace froghopper
