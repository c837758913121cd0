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

struct fh_cp_plan {
  struct Forget {
    void operator()(fh_plan* plan) const { fh_plan_destroy(plan); }
  };
  froghopper::cp::Job job;
  int64_t rank = 0;
  fh_cp_scheme scheme = FH_CP_AUTO;
  froghopper::cp::Steps steps;
  std::vector<std::unique_ptr<fh_plan, Forget>> attention;  // of steps.problems
  bool on_gpu = false;
  uint64_t attention_workspace = 0, workspace = 0;  // bytes; the first lies at the end of the second
  uint64_t digest = 0;                              // of everything that must be the same on all ranks
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

// FNV-1a over 64-bit words.
class Digest {
 public:
  void add(uint64_t word) {
    for (int i = 0; i < 8; ++i) value_ = (value_ ^ (word >> (8 * i) & 255)) * 0x100000001b3;
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace froghopper::cp
