// SPDX-License-Identifier: Apache-2.0
// plan: planning an append problem.
#pragma once
#include "src/plan/plan.hpp"

namespace froghopper {

Result<Plan> plan_append(const Problem&, const Device&, const Hints&);

}  // namespace froghopper
