// SPDX-License-Identifier: Apache-2.0
// plan: the steps of planning a forward problem, each in a file of its own: the launch (forward.cpp), the tiles
// (tiles.cpp), the order of work items (order.cpp).
#pragma once
#include "src/plan/plan.hpp"

namespace froghopper {

Result<Plan> plan_forward(const Problem&, const Device&, const Hints&);

// The head dims a kernel exists for that hold the problem's columns: the next larger tile, filled up with zeros.
std::optional<Dims> tile_dims(int64_t dim_qk, int64_t dim_v);

// The mask as far as it changes the machine code.
Mask kernel_mask(const Problem&);

Tiles tuned_tiles(const Problem&, Dims, int sms);

// What no Hopper kernel takes, forward or backward.
Result<void> check_limits(const Problem&);

int usable_sms(const Problem&, const Device&);

// q tiles over all sequences and query heads; for packed sequences the most there can be.
int64_t items_at_most(const Problem& p, int tile_q);

Order order_items(const Problem& p, const FwdVariant& variant, const Device& device, const Hints&);

// How many sections so many pairs make, each with an item for every SM at least.
int64_t sections_of(int64_t pairs, int64_t pair_bytes, int64_t bytes, int64_t items, int sms);

}  // namespace froghopper
