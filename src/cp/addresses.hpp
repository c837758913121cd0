// SPDX-License-Identifier: Apache-2.0
// cp: whether the addresses that a caller gives can be used, asked before anything moves.
#pragma once
#include <string>

#include "src/cp/plan.hpp"

namespace froghopper::cp {

// Those of 8-bit k and v; NULL where a caller's header has none.
struct Scales {
  const float *k = nullptr, *v = nullptr;
};
Scales scales_of(const fh_cp_tensors& tensors);

// Every tensor that has elements lies at a multiple of what its plan needs, and what is written shares no byte with
// another tensor or with the workspace. "" where it is so, else the message.
std::string refused_addresses(const fh_cp_plan& plan, const fh_cp_tensors& tensors, const void* workspace);

}  // namespace froghopper::cp
