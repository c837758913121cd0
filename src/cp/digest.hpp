// SPDX-License-Identifier: Apache-2.0
// cp: a number that tells two lists of 64-bit words apart.
#pragma once
#include <cstdint>
#include <vector>

namespace froghopper::cp {

// XXH3 of the words; never 0.
uint64_t digest_of(const std::vector<uint64_t>& words);

}  // namespace froghopper::cp
