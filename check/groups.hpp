// SPDX-License-Identifier: Apache-2.0
// check: parts of a backward problem. A gradient of a key needs all rows that attend to it, so the smallest problem of
// its own is a key head of one sequence, with the query heads that share it.
#pragma once
#include "check/compare.hpp"

namespace froghopper::check {

struct Group {
  int64_t sequence, head_kv;
};

// A few that the oracle can compute in a few seconds. Empty: each would take longer.
std::vector<Group> some_groups(const Problem&, const Views&);

// All rows of these groups that count. grad_sink has none: it is a sum over all sequences.
Reference gradients_of_groups(const Problem&, const Views&);

// Of every tensor that the problem writes, without rows.
Reference written_tensors(const Problem&);
double largest_lse(const Problem&, const Views&);

}  // namespace froghopper::check
