// SPDX-License-Identifier: Apache-2.0
// plan: planning a quantise problem.
#pragma once
#include "src/plan/plan.hpp"

namespace froghopper {

Result<Plan> plan_quantise(const Problem&, const Device&, const Hints&);

}  // namespace froghopper
