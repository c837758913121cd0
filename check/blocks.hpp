// SPDX-License-Identifier: Apache-2.0
// check: memory for a case, before there are values in it.
#pragma once
#include <memory>

#include "check/check.hpp"

namespace froghopper::check {

// On either side of every tensor. More than a whole tile of the largest kernel (256 rows of 512 bytes is 128 KiB), so
// that a tile stored without a bound stays within it and is seen.
inline constexpr size_t guard_bytes = 128 << 10;

// A block for each tensor that the case has, not written yet, and the tensors in them.
std::unique_ptr<Inputs> make_blocks(const Case&);

}  // namespace froghopper::check
