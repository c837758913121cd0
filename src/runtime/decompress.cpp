// SPDX-License-Identifier: Apache-2.0
// runtime: zstd, of which only the unpacking half is in the library.
#include <zstd.h>

#include "src/runtime/bundle.hpp"

namespace froghopper::runtime {

std::optional<std::string> decompressed(std::string_view packed, size_t bytes) {
  constexpr size_t most = 64 << 20;  // a group has about 1.5 MiB; what says more is none
  if (bytes > most || ZSTD_getFrameContentSize(packed.data(), packed.size()) != bytes) return {};
  std::string all(bytes, '\0');
  if (ZSTD_decompress(all.data(), bytes, packed.data(), packed.size()) != bytes) return {};
  return all;
}

}  // namespace froghopper::runtime
