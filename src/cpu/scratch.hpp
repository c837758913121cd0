// SPDX-License-Identifier: Apache-2.0
// cpu: the memory of the threads of one call. A call allocates all of it before it computes anything, so that a call
// that fails for lack of memory has written nothing, and frees it at its end.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace froghopper::cpu {

class Scratch {
 public:
  Scratch(int64_t threads, size_t floats);  // for fewer threads, or none, where memory does not suffice
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  int64_t threads() const { return static_cast<int64_t>(blocks_.size()); }
  float* of(int64_t thread) const;  // 64-byte aligned

 private:
  int64_t most_free_;
  std::vector<struct Block*> blocks_;
};

}  // namespace froghopper::cpu
