// SPDX-License-Identifier: Apache-2.0
// device/tile: the constants device code needs; NVRTC has no <math.h>.
#pragma once

namespace froghopper::tile {

constexpr float inf = __builtin_bit_cast(float, 0x7f800000u);
constexpr float largest = __builtin_bit_cast(float, 0x7f7fffffu), least = __builtin_bit_cast(float, 1u);  // above 0
constexpr float ln2 = 0.693147180559945f;      // natural units per power of two
constexpr float log2e = 1.44269504088896341f;  // powers of two per natural unit

}  // namespace froghopper::tile
