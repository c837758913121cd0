// SPDX-License-Identifier: Apache-2.0
// cpu: the memory of the threads of one call. A call takes all of it before it computes anything, so that a call that
// fails for want of memory has written nothing, and gives it back at its end.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace froghopper::cpu {

class Scratch {
 public:
  Scratch(int64_t threads, size_t floats);  // for fewer threads, or none, where there is no memory for all
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  int64_t threads() const { return static_cast<int64_t>(blocks_.size()); }
  float* of(int64_t thread) const;  // 64-byte aligned

 private:
  int64_t most_on_shelf_;
  std::vector<struct Block*> blocks_;
};

}  // namespace froghopper::cpu
