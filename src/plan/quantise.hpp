// SPDX-License-Identifier: Apache-2.0
// plan: planning a quantise problem.
#pragma once
#include <algorithm>

#include "contract/quantise.h"
#include "src/base/ceil_div.hpp"
#include "src/plan/plan.hpp"

namespace froghopper {

// Of a head of a sequence with so many rows at most. Without rows it has one all the same where one scale is that of
// all rows, as the tile writes it.
inline int64_t quantise_tiles(const Problem& p, int64_t rows) {
  return std::max<int64_t>(p.scale_rows == 0 ? 1 : 0, ceil_div(rows, quantise_rows));
}

Result<Plan> plan_quantise(const Problem&, const Device&, const Hints&);

}  // namespace froghopper
