// SPDX-License-Identifier: Apache-2.0
// check: how the entries of q, k and v are drawn, by name.
#pragma once
#include <span>
#include <string>

#include "src/problem/problem.hpp"

namespace froghopper::check {

// The i-th number of a stream: the same on every machine, in any order, without a state.
uint64_t random_bits(uint64_t stream, uint64_t i);
float random_normal(uint64_t stream, uint64_t i);
float random_with_outliers(uint64_t stream, uint64_t i);  // N(0,1), and N(0,100) on top in one of 1000

struct Data {
  const char* name;
  float size_q, size_k;                                 // standard deviation of the entries of q and of k
  float (*score)(int64_t key, int64_t keys) = nullptr;  // what is added to every score of this key, by column 0
  float all = 0;                                        // not 0: every entry of q, k and v
  float all_v = 0;                                      // not 0: every entry of v
  float (*draw)(uint64_t, uint64_t) = random_normal;    // entries of q, k and v, before they are multiplied
  float (*row_of_q)(int64_t row) = nullptr;             // what the entries of a row of q are also multiplied by
  float (*row_of_v)(int64_t row) = nullptr;             // and those of v
  bool ends = false;  // sinks, slopes and lse that is merged: at the ends of fp32's range, see end_of_range
};
std::span<const Data> all_data();
const Data* find_data(const std::string& name);  // null: there is none of this name

// Column 0 of q and k where data.score is set: q0 k0 scale is the score that was asked for, as far as the type can
// hold it.
inline constexpr float query_column_0 = 64;
float end_of_range(uint64_t i);  // alternately, with 1 between
float key_column_0(const Data&, const Problem&, int64_t key, int64_t keys);
float largest_entry(Dtype);  // of column 0 and of data "huge": fp16 ends at 65504

}  // namespace froghopper::check
