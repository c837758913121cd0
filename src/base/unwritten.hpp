// SPDX-License-Identifier: Apache-2.0
// base: bytes that have no value before they are given one, so that much memory costs nothing until it is written.
#pragma once
#include <memory>
#include <new>
#include <vector>

namespace froghopper {

template <class T>
struct Unwritten : std::allocator<T> {
  template <class U>
  struct rebind {
    using other = Unwritten<U>;
  };
  template <class U>
  void construct(U* at) {
    ::new (static_cast<void*>(at)) U;
  }
};

using Bytes = std::vector<unsigned char, Unwritten<unsigned char>>;  // Bytes(n) and resize(n) write nothing

}  // namespace froghopper
