// SPDX-License-Identifier: Apache-2.0
// plan: the steps of planning a forward problem, each in a file of its own: the launch (forward.cpp), the tiles
// (tiles.cpp), the order of work items (order.cpp).
#pragma once
#include "src/plan/either_pass.hpp"

namespace froghopper {

Result<Plan> plan_forward(const Problem&, const Device&, const Hints&);

Tiles tuned_tiles(const Problem&, Dims, int sms);

// q tiles over all sequences and query heads; for packed sequences the most there can be.
int64_t items_at_most(const Problem& p, int tile_q);

Order order_items(const Problem& p, const FwdVariant& variant, const Device& device, const Hints&);

}  // namespace froghopper
