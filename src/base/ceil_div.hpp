// SPDX-License-Identifier: Apache-2.0
// base: how many pieces of one size hold so many things; the last piece may be part full.
#pragma once
#include <cstdint>

namespace froghopper {

constexpr int64_t ceil_div(int64_t things, int64_t size) { return (things + size - 1) / size; }

}  // namespace froghopper
