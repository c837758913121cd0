// SPDX-License-Identifier: Apache-2.0
// oracle: plain loops in double, read by eye. Knows problem; knows no other room and no vector unit.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "src/problem/tensors.hpp"

namespace froghopper::oracle {

// By index in tensors(): dense, [batch][seq][heads][dim] of the tensor's shape; empty where the problem does not write
// the tensor. lse too is [batch][seq][heads] here, max_logit [batch][heads]. Gradients that are added to what their
// tensor holds are the sums.
using Answers = std::vector<std::vector<double>>;
Answers compute(const Problem&, const Views&);

// A row of a tensor. Packed tensors have batch 0 and count rows over all sequences.
struct RowId {
  int64_t batch, row, head;
  auto operator<=>(const RowId&) const = default;
};
std::vector<RowId> rows_of(const Shape&);  // all of them, in rising order
std::vector<RowId> query_rows(const Problem&);

// Of a forward problem only these query rows: o is [row][dim] and lse [row], and max_logit is of them.
Answers compute(const Problem&, const Views&, const std::vector<RowId>&);

// The same loops with the arithmetic of the storage type: inputs and weights rounded to it, sums in float.
// The error of this against compute() is the yardstick of every tolerance. A backward problem reads o and lse here;
// compute() makes its own.
Answers compute_same_precision(const Problem&, const Views&);
Answers compute_same_precision(const Problem&, const Views&, const std::vector<RowId>&);

// A backward problem: the same as compute(), and for every value how large that is which is added up to it. A gradient
// may cancel to much less, or to 0, and yet no arithmetic but an exact one can know it better than to a part of these.
struct Gradients {
  Answers exact;
  Answers rounded;  // the norm of the products whose one factor is rounded to the storage type
  Answers summed;   // the same with the sums of magnitudes that were inside of that factor
};
Gradients compute_gradients(const Problem&, const Views&);

// A quantise problem. Empty where the tensor is left out.
struct Quantised {
  Answers
      exact;  // quantised_x: the values that are stood for, rotated, less the exact mean and not divided by a scale,
              // NaN in rows that do not count; scale_x: the scales; mean_x: the means
  Answers
      summed;  // of every value, the sum of the magnitudes that its rotation adds up, or 0; of a mean, the mean of
               // the magnitudes that it is made of; of a scale, the largest of these in its block, as a part of the
               // scale's own unit
};
Quantised quantised(const Problem&, const Views&);

// An append problem: a row of a head that is written.
struct AppendedRow {
  View Views::*to;
  View Views::*scales;               // of the cache; null: q_out
  RowId at;                          // of `to`; with scales of rows of theirs too
  double scale;                      // what is stored is divided by it; 1: it has none
  std::vector<double> exact, sizes;  // not divided; of each value the magnitudes that it is a sum of
};
std::vector<AppendedRow> appended(const Problem&, const Views&);

// Calls work(0) ... work(count - 1), each once, on all cores. The calls must not write to the same place.
void for_each(int64_t count, const std::function<void(int64_t)>& work);

}  // namespace froghopper::oracle
