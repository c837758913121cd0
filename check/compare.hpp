// SPDX-License-Identifier: Apache-2.0
// check: what the exact result is, and how far from it another one is.
#pragma once
#include <vector>

#include "check/check.hpp"
#include "src/oracle/oracle.hpp"

namespace froghopper::check {

using oracle::RowId, oracle::rows_of;

// The rows of one written tensor that are compared, in rising order, and what the oracle says of them: [rows][dim]. Of
// an append problem they are all that is written, in any order.
struct Expected {
  const Tensor* tensor;
  std::vector<RowId> rows = {};
  std::vector<double> exact = {}, same_precision = {};
  std::vector<double> rounded = {}, summed = {};            // of gradients: see oracle::Gradients
  double largest_lse = 0;                                   // of gradients: the largest |lse| that they were made of
  std::vector<size_t> scale_of_row = {}, mean_of_row = {};  // of quantised_x: which row of scale_x, of mean_x
  bool others_stay = false;                                 // rows that are not named here are not written
  std::vector<double> divisors = {};                        // of a cache with given scales: that of each row
};

// Of every tensor that the problem writes.
using Reference = std::vector<Expected>;
// The backend decides which plain loops are its yardstick: see tensor_core.hpp.
Reference make_reference(const Case&, const Views&, Backend = Backend::cpu);

// Whether a reference can be made and says anything; the Failure says why not.
Result<void> can_be_judged(const Case&, const Views&);

// The same rows of a result, in the order of the reference: [rows][dim].
using Found = std::vector<std::vector<double>>;

// Reads every row of every written tensor and keeps the rows of the reference. "": all of them are values; else which
// is not.
std::string take_rows(const Reference&, const Views&, Found&);

// What the blocks of all inputs held before a run.
struct Before {
  std::vector<size_t> hashes;           // one value for each block; 0 for tensors that are written
  std::vector<Inputs::Block> added_to;  // whole blocks of tensors that are added to; else empty

  Before(const Problem&, const Inputs&);
  Views views(const Inputs&, Views) const;  // of the tensors as they were
};

// After a run: inputs are as before, every row that is written is values, nothing else was written, and the
// values are right. Written tensors hold bytes 0xff afterwards.
void judge(const Problem&, const Reference&, const Views&, Inputs&, const Before&, Outcome&);

// Fills in all measures, their bounds, passed and why.
void compare(const Problem&, const Reference&, const Found&, Outcome&);

}  // namespace froghopper::check
