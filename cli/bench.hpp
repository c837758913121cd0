// SPDX-License-Identifier: Apache-2.0
// cli: what `froghopper bench` is made of. A Stand holds a case's tensors where its plan wants them, and a stopwatch;
// the measurements are written once, for both backends.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "check/backends.hpp"

namespace froghopper::cli {

// Tensors and workspace of one plan in the memory of its backend.
class Stand {
 public:
  virtual ~Stand() = default;
  virtual const fh_tensors& tensors() const = 0;
  virtual void next() {}  // from here on tensors() are the next copy, where there are several
  virtual void* workspace() const = 0;
  virtual size_t workspace_bytes() const = 0;
  virtual void* stream() const = 0;
  // Milliseconds from the start of the first to the end of the last of the calls made by work.
  virtual Result<double> time(const std::function<Result<void>()>& work) = 0;
  virtual Result<void> finish() = 0;        // waits for all calls made so far
  virtual int sm_clock_mhz() const = 0;     // median while work of the last time() ran; 0: unknown
  virtual std::string machine() const = 0;  // "NVIDIA H200"
  virtual std::string driver() const = 0;   // "" where there is none
};
Result<std::unique_ptr<Stand>> make_cpu_stand(check::Inputs&, size_t workspace_bytes);
// cold: as many copies of the tensors as make more than an L2 cache holds.
Result<std::unique_ptr<Stand>> make_gpu_stand(const check::Inputs&, size_t workspace_bytes, bool cold);

struct Effort {
  double ms = 20;  // of one round
  int rounds = 9;
};

struct Timing {
  double ms = 0;         // median over the rounds, of one call
  double spread = 0;     // median absolute deviation, percent of the median
  int sm_clock_mhz = 0;  // median over the rounds; 0: unknown
};
Timing summarize(std::vector<double> ms, std::vector<int> clocks);

// One call of the plan, as the machine sees it.
Result<Timing> time_plan(Stand&, const fh_plan*, const Effort&);

// One call, as the calling thread sees it: the time until the work is handed to the GPU.
struct HostCost {
  Timing plan_run, attention;  // fh_plan_run; fh_attention with its plan in the cache
};
Result<HostCost> time_host(Stand&, const Problem&, const std::string& target, const fh_plan*, int rounds);

}  // namespace froghopper::cli
