// SPDX-License-Identifier: Apache-2.0
// check: plain loops that add 8-bit products as a Hopper tensor core does.
#pragma once
#include <cstdint>
#include <vector>

#include "check/check.hpp"
#include "src/oracle/oracle.hpp"

namespace froghopper::check {

// Rows of values as they are stored.
struct Stored {
  int64_t columns;  // of a row
  std::vector<float> values, powers;

  Stored(int64_t rows, int64_t columns) : columns(columns), values(rows * columns), powers(rows * columns) {}

  // A number and the power of two that a tensor core takes it for: its own, or that of the smallest normal number of
  // its type; 0 for 0.
  struct Value {
    float value, power;
  };
  static Value value_of(float, Element type);
  void set(int64_t at, Value x) { values[at] = x.value, powers[at] = x.power; }
};

// sums[i] += sum over j of [0, count) of x[at + j] * (row first + j of rows)[begin + i], as one wgmma adds them: see
// tensor_core.cpp. count is at most 32.
void add_products(const Stored& x, int64_t at, const Stored& rows, int64_t first, int64_t count, int64_t begin,
                  std::vector<float>& sums);

// What a backend is measured by, of all rows or of some: oracle::compute_same_precision(), and on a GPU, of a forward
// problem with 8-bit q, loops whose products are added as above.
oracle::Answers plain_loops(Backend, const Problem&, const Views&);
oracle::Answers plain_loops(Backend, const Problem&, const Views&, const std::vector<oracle::RowId>&);

}  // namespace froghopper::check
