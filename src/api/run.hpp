// SPDX-License-Identifier: Apache-2.0
// api: from a described problem to a result. An fh_plan is a decision too: which backend, and how it goes about it.
#pragma once
#include <memory>
#include <string>
#include <variant>

#include "src/cpu/cpu.hpp"
#include "src/plan/plan.hpp"

struct fh_plan {
  std::variant<froghopper::Plan, froghopper::cpu::Plan> how;  // both hold the problem, and print themselves
  bool runs_here = true;                                      // false: made for a GPU that was only named
  std::string why_cpu;                                        // target auto: why it is not the GPU
  std::string line;                                           // "PROBLEM -> ..."

  const froghopper::Plan* gpu() const { return std::get_if<froghopper::Plan>(&how); }
  const froghopper::cpu::Plan* cpu() const { return std::get_if<froghopper::cpu::Plan>(&how); }
  const froghopper::Problem& problem() const { return gpu() ? gpu()->problem : cpu()->problem; }
  size_t workspace_bytes() const { return gpu() ? gpu()->workspace.bytes : cpu()->workspace_bytes(); }
};

namespace froghopper {

// Where the user wants it, see fh_plan_create.
struct Target {
  enum class Kind { automatic, hopper, cpu, named } kind = Kind::automatic;
  int ordinal = -1;  // automatic, hopper: which GPU, -1 the current one
  Device device;     // named
  Hints hints;       // for a plan on a GPU
};
Result<Target> read_target(const char* target);

Result<fh_plan> make_plan(const Problem&, const Target&);  // its kernels are loaded, where it runs here

Result<void> run(const fh_plan&, const fh_tensors&, void* workspace, size_t workspace_bytes, void* stream);

// The plan of this problem on this target, made at most once: plan_cache.cpp. tensors, if not null, say where "auto"
// is: the GPU that holds them, or the CPU.
Result<std::shared_ptr<const fh_plan>> cached_plan(const fh_problem&, const char* target, const fh_tensors* tensors);

struct Explanation {
  std::string text;  // lines
  fh_status status;  // of fh_plan_create for the same
};
Explanation explain(const Problem&, const Target&);

}  // namespace froghopper
