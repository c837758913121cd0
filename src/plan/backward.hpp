// SPDX-License-Identifier: Apache-2.0
// plan: planning a backward problem.
#pragma once
#include "src/plan/plan.hpp"

namespace froghopper {

Result<Plan> plan_backward(const Problem&, const Device&, const Hints&);

// q tiles of all sequences, in one head, as the workspace counts them: QTiles, contract/bwd_params.h.
int64_t q_tiles_of(const Problem&, int tile_q);

}  // namespace froghopper
