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

// Those that meet rows [hull.begin, hull.end).
std::span<const Range> meeting(const std::vector<Range>& ranges, Range hull);

}  // namespace froghopper::cp
