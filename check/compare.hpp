// SPDX-License-Identifier: Apache-2.0
// check: what the exact result is, and how far from it another one is.
#pragma once
#include <array>
#include <vector>

#include "check/check.hpp"

namespace froghopper::check {

// A row of o. Packed tensors have batch 0 and count rows over all sequences.
struct RowId {
  int64_t batch, row, head;
  auto operator<=>(const RowId&) const = default;
};

// Rows of o and lse: o is [rows][dim_v], lse is [rows].
struct Answer {
  std::vector<double> o, lse;
};

// The rows that are compared, in rising order, and what the oracle says of them.
struct Reference {
  std::vector<RowId> rows;
  Answer exact, same_precision;
};
Reference make_reference(const Case&, const Views&);

// What the blocks of all inputs hold, as one number a block.
using Hashes = std::array<size_t, parts>;
Hashes hashes_of(const Inputs&);

// After a run: inputs are as before, every row of o and lse is a number, nothing beside them was written, and the
// numbers are right. o and lse hold bytes 0xff again afterwards.
void judge(const Case&, const Views&, Inputs&, const Hashes& before, Outcome&);

// Fills in all measures, their bounds, passed and why.
void compare(const Problem&, const Reference&, const Answer& found, Outcome&);

}  // namespace froghopper::check
