// SPDX-License-Identifier: Apache-2.0
// runtime: plan and tensors -> the kernel's argument.
#pragma once
#include "contract/fwd_params.h"
#include "src/plan/plan.hpp"
#include "src/problem/tensors.hpp"
#include "src/runtime/driver.hpp"

namespace froghopper::runtime {

// Everything but the tensor maps; no driver is needed.
FwdParams plain_params(const Plan&, const Views&, void* workspace);

// The tensor maps of q, k and v, and the row units their coordinates count in. All messages about layout are here.
Result<void> set_maps(const Driver&, const Plan&, const Views&, FwdParams&);

}  // namespace froghopper::runtime
