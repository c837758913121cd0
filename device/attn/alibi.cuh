// SPDX-License-Identifier: Apache-2.0
// device/attn: the slope of a query head, of alibi variants.
#pragma once
#include "contract/alibi.h"
#include "contract/shared_params.h"
#include "device/tile/constants.cuh"

namespace froghopper::attn {

// What alibi takes from a score for each key of distance, in base 2.
__device__ __forceinline__ float slope_of(const ScaleValues& slopes, int sequence, int head) {
  return within_steepest_in_base_2(slopes.data[sequence * slopes.batch + head * slopes.head] * tile::log2e);
}

}  // namespace froghopper::attn
