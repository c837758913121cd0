// SPDX-License-Identifier: Apache-2.0
// cpu: the default backend. Tiled, vectorised, threaded: the forward pass with an online softmax, and gradients.
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
  int64_t threads = 1;              // at most; fewer where the system gives no more
  int64_t tile_q = 0, tile_kv = 0;  // rows and keys that a thread computes at a time
  bool side_by_side = false;        // forward: a piece of work may have the rows of several key heads

  int piece_lanes_most() const;  // forward: query rows x heads of a piece of work
  size_t scratch_bytes() const;  // of one thread
  std::string how() const;       // "cpu avx512 q64.kv128 threads 2"
  std::string line() const;      // "PROBLEM -> cpu avx512 q64.kv128 threads 2"
};

// The choices for this machine. Takes no memory for the computation and starts no thread.
Result<Plan> plan(const Problem&);

// Checks lengths and scales, takes all memory, then computes: a run that fails has written nothing. With lengths of
// their own it takes 16 bytes a sequence besides the scratch. Gradients take more, see backward.cpp.
Result<void> run(const Plan&, const Views&);

// Its parts, with lengths and scales that have been checked.
// Each ends early where the watch is asked.
Result<void> run_forward(const Plan&, const Views&, const InterruptWatch&);   // forward.cpp
Result<void> run_backward(const Plan&, const Views&, const InterruptWatch&);  // backward.cpp
Result<void> run_quantise(const Plan&, const Views&, const InterruptWatch&);  // quantise.cpp
Result<void> run_append(const Plan&, const Views&, const InterruptWatch&);    // append.cpp

}  // namespace froghopper::cpu
