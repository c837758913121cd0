// SPDX-License-Identifier: Apache-2.0
// plan: the order in which persistent CTAs take work. device/fwd/schedule.cuh follows it.
#pragma once
#include "src/plan/plan.hpp"

namespace froghopper {

// q tiles over all sequences and query heads; for packed sequences the most there can be.
int64_t works_at_most(const Problem& p, int tile_q);

Order order_works(const Problem& p, const FwdVariant& variant, const Device& device);

}  // namespace froghopper
