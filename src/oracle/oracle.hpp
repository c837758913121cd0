// SPDX-License-Identifier: Apache-2.0
// oracle: plain loops in double, read by eye. Knows problem; knows no other room and no vector unit.
#pragma once
#include <vector>

#include "src/problem/tensors.hpp"

namespace froghopper::oracle {

// Dense, [batch][seq][heads][dim] with batch = 1 and seq = total when packed; lse the way fh_tensors has it.
struct Forward {
  std::vector<double> o, lse;
};
Forward forward(const Problem&, const Views&);

// The same loops with the arithmetic of the storage type: inputs and weights rounded to it, sums in float.
// The error of this against forward() is the yardstick of every tolerance.
Forward forward_same_precision(const Problem&, const Views&);

// Gradients of sum(o * grad_o): grad_o dense like Forward::o. sink gradient [heads_q], empty without a sink.
struct Gradients {
  std::vector<double> q, k, v, sink;
};
Gradients backward(const Problem&, const Views&, const std::vector<double>& grad_o);

}  // namespace froghopper::oracle
