// SPDX-License-Identifier: Apache-2.0
// plan: planning a backward problem.
#pragma once
#include "src/plan/plan.hpp"

namespace froghopper {

Result<Plan> plan_backward(const Problem&, const Device&, const Hints&);

}  // namespace froghopper
