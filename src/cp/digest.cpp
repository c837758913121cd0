// SPDX-License-Identifier: Apache-2.0
// cp: the hash of digests, the one that the library takes for its kernels.
#include "src/cp/digest.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

namespace froghopper::cp {

uint64_t digest_of(const std::vector<uint64_t>& words) {
  return std::max<uint64_t>(1, XXH3_64bits(words.data(), words.size() * sizeof(uint64_t)));
}

}  // namespace froghopper::cp
