// SPDX-License-Identifier: Apache-2.0
// contract: how steep a slope of alibi can be.
//
// Beyond nearly 2^90 the next key weighs e^-(2^90) or e^(2^90) times as much. So it does there: the weights are the
// same. Times a distance below 2^31 such a slope is still a number, also in base 2; infinity times the distance 0 is
// none. In base 2 it has few digits: kernels take a difference of two products for a distance, which is 0 then where
// the distance is.
#pragma once

namespace froghopper {

constexpr float steepest_in_base_2 = 0x1.7p90f;
constexpr float steepest_slope = static_cast<float>(steepest_in_base_2 * 0.693147180559945309);  // 0.996 x 2^90

constexpr float clamped(float x, float bound) { return x > bound ? bound : x < -bound ? -bound : x; }  // NaN stays
constexpr float within_steepest(float slope) { return clamped(slope, steepest_slope); }
constexpr float within_steepest_in_base_2(float slope) { return clamped(slope, steepest_in_base_2); }

}  // namespace froghopper
