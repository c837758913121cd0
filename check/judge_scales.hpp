// SPDX-License-Identifier: Apache-2.0
// check: what the judges of quantise and append problems share, which know what must be stored.
#pragma once
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "check/compare.hpp"
#include "src/base/text.hpp"

namespace froghopper::check {

inline std::string place_of(const Expected& expected, size_t row) {
  const RowId& id = expected.rows[row];
  return text("batch {} row {} head {}", id.batch, id.row, id.head);
}

// allowed(exact, summed): how far a scale may be off. "": all scales are right; else the first one that is not.
template <class Allowed>
std::string judge_scales(const Expected& expected, const std::vector<double>& found, Measures& m, Allowed allowed) {
  std::string why;
  for (size_t i = 0; i < expected.exact.size(); ++i) {
    const double exact = expected.exact[i], off = std::fabs(found[i] - exact);
    const double most = allowed(exact, expected.summed[i]);
    m.error = std::max(m.error, off / exact), m.allowed = std::max(m.allowed, most / exact);
    if (!(off <= most) && why.empty())
      why = text("{}: {} is {}, exact {}", place_of(expected, i), m.tensor, found[i], exact);
  }
  return why;
}

}  // namespace froghopper::check
