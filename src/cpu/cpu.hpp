// SPDX-License-Identifier: Apache-2.0
// cpu: the default backend: tiled, vectorised, threaded. The forward pass with an online softmax, the backward pass,
// and the quantiser.
#pragma once
#include <string>

#include "src/base/interrupt.hpp"
#include "src/problem/tensors.hpp"

namespace froghopper::cpu {

struct Kernel;  // work.hpp

// How the CPU computes a problem.
struct Plan {
  Problem problem;
  const Kernel* kernel = nullptr;   // for one kind of vector unit; lives as long as the library
  int64_t threads = 1;              // at most; fewer where the system grants fewer
  int64_t tile_q = 0, tile_kv = 0;  // rows and keys of a tile
  bool side_by_side = false;        // forward: a work item may have the rows of several KV heads

  int item_lanes_most() const;     // forward: query rows x heads of a work item
  size_t scratch_bytes() const;    // of one thread
  size_t workspace_bytes() const;  // of the caller: sums of grad_q in f32, where its calls are phases; phases.cpp
  std::string how() const;         // "cpu avx512 q64.kv128 threads 2"
  std::string line() const;        // "PROBLEM -> cpu avx512 q64.kv128 threads 2"
};

// Chooses the plan for this machine. Allocates no memory for the computation and starts no thread.
Result<Plan> plan(const Problem&);

// Checks lengths and scales, allocates all memory, then computes: a run that fails has written nothing. Sequences with
// lengths of their own need 16 bytes each in addition to the scratch, and the backward pass more, see backward.cpp.
Result<void> run(const Plan&, const Views&, void* workspace = nullptr);

// The passes, for lengths and scales that have been checked. They end early if the watch says so.
Result<void> run_forward(const Plan&, const Views&, const InterruptWatch&);                 // forward.cpp
Result<void> run_backward(const Plan&, const Views&, const InterruptWatch&);                // backward.cpp
Result<void> run_quantise(const Plan&, const Views&, const InterruptWatch&);                // quantise.cpp
Result<void> run_append(const Plan&, const Views&, const InterruptWatch&);                  // append.cpp
Result<void> run_phase(const Plan&, const Views&, void* workspace, const InterruptWatch&);  // phases.cpp, of a pass

}  // namespace froghopper::cpu
