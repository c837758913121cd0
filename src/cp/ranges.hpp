// SPDX-License-Identifier: Apache-2.0
// cp: lists of rows, in order and without overlaps. A packed sequence that is divided by document has many ranges, so
// each function passes over a list once.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "src/cp/piece.hpp"

namespace froghopper::cp {

// The same rows. Ranges that touch or overlap become one; they need only begin in order.
std::vector<Range> joined(const std::vector<Range>& ranges);

// The rows of both.
std::vector<Range> common(const std::vector<Range>& a, const std::vector<Range>& b);

// Where ranges lie in a buffer that has the rows of `all`. Each lies in one range of `all`.
std::vector<Part> placed(const std::vector<Range>& all, const std::vector<Range>& ranges);

// Ranges that lie in two buffers, and what follows each other in both as one: of the first buffer from row `a` on, of
// the second from row `b` on.
struct Together {
  int64_t a, b, rows;
};
std::vector<Together> together(const std::vector<Part>& a, const std::vector<Part>& b);

// Where there are many rows, they are cut at multiples of a tile, so that tiles are full.
int64_t cut_at(int64_t row, int64_t rows);

// The same rows, one of the ranges in two where a row in it is that.
std::vector<Range> divided(const std::vector<Range>& ranges, int64_t row);

// Of a shard, the last rows. Under a causal mask these attend to more than the first ones.
Range second_half(const std::vector<Range>& shard);

// Those that meet rows [hull.begin, hull.end).
std::span<const Range> meeting(const std::vector<Range>& ranges, Range hull);

}  // namespace froghopper::cp
