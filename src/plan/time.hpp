// SPDX-License-Identifier: Apache-2.0
// plan: how long a plan takes, by a model with two numbers a kernel, fitted to bench/results. docs/4-planning.md, "How
// long it takes".
#pragma once
#include <optional>
#include <span>

#include "src/plan/plan.hpp"

namespace froghopper {

// What CTAs do in the launch that takes longest: iterations, each a tile of queries with a tile of keys, and items
// over them, each of which begins and ends with something that belongs to no iteration.
struct Load {
  double iterations = 0, items = 0;
};

// What one of them takes an SM that has to do with nothing else.
struct Rate {
  double iteration_us = 0, item_us = 0;
};

enum class Bound { tensor_core, exponentials, memory, few_items };

struct Estimate {
  double us = 0;
  Rate rate;
  Load busiest, average;  // of an SM; of gradients above head dim 128: of a cluster of two
  double busy = 0;        // average time of an SM at work, over that of the busiest
  // Shares of what the device could do in this time at its highest clock.
  double tensor_core = 0, exponentials = 0, memory = 0;
  Bound bound = Bound::memory;
};

// Nothing where no kernel like these was ever measured. Sequences with lengths of their own are taken as equally
// long; of a plan with a launch for those with few rows as many as possible have one row, and the others the rest.
std::optional<Estimate> estimate(const Plan&, const Device&);

const char* name_of(Bound);  // "the tensor cores"

// What the device was used for in this many microseconds, and how they compare with the model: "71% tensor 1.02".
std::string share_of_roof(const Estimate&, double us);

// ---- What planning asks ----

// Rate{} where nothing like it was measured.
Rate rate_of(const FwdVariant&, const Device&);
Rate rate_of(const BwdVariant&, const Device&);

// Only the forward kernel, without PackGQA, the keys of a tile in up to so many parts (1 where ragged). Equal items
// take whole rounds; few unequal ones are handed out one by one; many, and those of sequences with lengths of their
// own, are taken to keep all SMs as busy.
double kernel_us(const Problem&, const FwdVariant&, int64_t parts, const Device&);
// With the launches before and after it: what dequantises k and v, what combines parts.
double forward_us(const Problem&, const FwdVariant&, int64_t parts, const Device&);

// One way to compute a problem.
struct Candidate {
  FwdVariant variant;
  int64_t parts = 1;
  double below = 1;  // it must take less than this share of the time of the best one before it
};
// The first of them, or whichever takes the place of the best before it.
const Candidate& quickest(const Problem&, std::span<const Candidate>, const Device&);

double read_us(double bytes, const Device&);          // by a kernel that does nothing else
double combine_us(const Problem&, int64_t parts);     // the launch that combines parts of rows
double dequantise_us(const Problem&, const Device&);  // the launch that gives 8-bit k and v q's type
double values_of_keys(const Problem&);                // that k and v have
double part_bytes(const Problem&);                    // that one part of all rows takes
double overlapped(double one_us, double other_us);    // of two that overlap in part

}  // namespace froghopper
