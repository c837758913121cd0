// SPDX-License-Identifier: Apache-2.0
// oracle: plain loops in double, read by eye. Knows problem; knows no other room and no vector unit.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "src/problem/tensors.hpp"

namespace froghopper::oracle {

// By index in tensors(): dense, [batch][seq][heads][dim] of the tensor's shape; empty where the problem does not write
// the tensor. lse too is [batch][seq][heads] here.
using Answers = std::vector<std::vector<double>>;
Answers compute(const Problem&, const Views&);

// The same loops with the arithmetic of the storage type: inputs and weights rounded to it, sums in float.
// The error of this against compute() is the yardstick of every tolerance.
Answers compute_same_precision(const Problem&, const Views&);

// Gradients of sum(o * grad_o): grad_o dense like the answer for o. sink gradient [heads_q], empty without a sink.
struct Gradients {
  std::vector<double> q, k, v, sink;
};
Gradients backward(const Problem&, const Views&, const std::vector<double>& grad_o);

// Calls work(0) ... work(count - 1), each once, on all cores. The calls must not write to the same place.
void for_each(int64_t count, const std::function<void(int64_t)>& work);

}  // namespace froghopper::oracle
