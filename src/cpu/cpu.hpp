// SPDX-License-Identifier: Apache-2.0
// cpu: the default backend. Tiled, vectorised, threaded online softmax in fp32.
#pragma once
#include <string>

#include "src/problem/tensors.hpp"

namespace froghopper::cpu {

struct Kernel;

// How a problem is computed here, as a value.
struct Plan {
  Problem problem;
  const Kernel* kernel = nullptr;  // the kind of vector unit
  int64_t threads = 1;

  std::string line() const;         // "PROBLEM -> cpu avx512 q64.kv128 threads 2"
  std::string explanation() const;  // the same without the problem, and the memory
};
Result<Plan> plan(const Problem&);
Result<void> run(const Plan&, const Views&);

}  // namespace froghopper::cpu
