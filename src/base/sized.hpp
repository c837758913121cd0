// SPDX-License-Identifier: Apache-2.0
// base: structs that start with their own size, read from callers older and newer than this library.
#pragma once
#include <algorithm>
#include <cstring>

#include "src/base/result.hpp"
#include "src/base/text.hpp"

namespace froghopper {

// A struct of 4 KiB is far more than this interface will ever need; a larger size is an uninitialised struct.
inline constexpr size_t largest_struct = 4096;

// The user's struct in this library's size. An older caller's lacks the last fields: those keep their defaults.
// A newer caller's has more: it must have left them zero, since this library does not know what they ask for.
// smallest: bytes that every version of the struct has.
template <class T>
Result<T> whole_struct(const T* user, const T& defaults, size_t smallest, fh_status status, const char* name) {
  size_t size;
  std::memcpy(&size, user, sizeof size);
  if (size < smallest || size > largest_struct || size % alignof(T) != 0)
    return Failure{status, text("{0}.size is {1}; it must hold sizeof({0}). Start from {0}_init().", name, size)};

  const auto* bytes = reinterpret_cast<const unsigned char*>(user);
  for (size_t i = sizeof(T); i < size; ++i)
    if (bytes[i] != 0)
      return Failure{status, text("{} has a field at byte {} that this version of froghopper does not know; it "
                                  "must be zero. Leave it zero or use the library of your header.",
                                  name, i / 4 * 4)};

  T whole = defaults;
  std::memcpy(static_cast<void*>(&whole), bytes, std::min(size, sizeof(T)));
  whole.size = sizeof(T);
  return whole;
}

}  // namespace froghopper
