// SPDX-License-Identifier: Apache-2.0
// base: which numbers are scales of 8-bit values.
#pragma once

namespace froghopper {

inline bool is_scale(float x) { return x >= 0x1p-126f && x <= 0x1p126f; }  // so that one over it is such a value too

inline constexpr const char* rule_of_scales =
    "a scale is positive, from 1.2e-38 to 8.5e37 (2^-126 to 2^126). Use 1 for values that stand for themselves.";

}  // namespace froghopper
