// SPDX-License-Identifier: Apache-2.0
// contract: how steep a slope of alibi can be.
//
// From about 2^90 on the next key weighs e^-(2^90) or e^(2^90) times as much, so a steeper slope gives the same
// weights: steeper slopes are replaced by the steepest one. Times a distance below 2^31 that one is finite, also in
// base 2; an infinite slope times the distance 0 would be NaN. In base 2 the steepest slope has few digits that are
// not 0: kernels compute slope x distance as a difference of two products, which then is exactly 0 where the distance
// is 0.
#pragma once

namespace froghopper {

constexpr float steepest_in_base_2 = 0x1.7p90f;
constexpr float steepest_slope = static_cast<float>(steepest_in_base_2 * 0.693147180559945309);  // 0.996 x 2^90

constexpr float clamped(float x, float bound) { return x > bound ? bound : x < -bound ? -bound : x; }  // NaN stays
constexpr float within_steepest(float slope) { return clamped(slope, steepest_slope); }
constexpr float within_steepest_in_base_2(float slope) { return clamped(slope, steepest_in_base_2); }

}  // namespace froghopper
