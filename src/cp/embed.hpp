// SPDX-License-Identifier: Apache-2.0
// cp: a smaller job's steps as a part of a larger one's.
#pragma once
#include <array>

#include "src/cp/builder.hpp"

namespace froghopper::cp {

// The ranks of the smaller job are some of the larger one's: its i-th is rank i * stride + first.
struct Peers {
  int64_t stride, first;
};

// Appends `steps`. buffers: where the tensors of the smaller job lie in the larger one's; its workspace and its tables
// get places of their own. The larger job needs lse whether or not the caller does.
void embed(Builder& to, Steps steps, std::array<Place, buffer_count> buffers, Peers peers);

}  // namespace froghopper::cp
