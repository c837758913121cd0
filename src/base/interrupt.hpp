// SPDX-License-Identifier: Apache-2.0
// base: Ctrl-C during a call. An interpreter's handler of SIGINT only notes that the signal came, and acts on it once
// the call has returned; so a long call should return.
#pragma once
#include <atomic>

namespace froghopper {

// From now on, or no longer: calls of the process's first thread watch for SIGINT. Off at first.
void watch_interrupts(bool wanted);

// While one lives, SIGINT is counted, and then handled as before. It watches nothing where that is not wanted, in other
// threads, and where the process has no handler of its own, since then SIGINT ends it or is ignored.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  bool asked() const { return watches_ && arrived_.load(std::memory_order_relaxed) != before_; }

 private:
  friend struct InterruptHandler;
  static std::atomic<unsigned> arrived_;

  bool watches_ = false;
  unsigned before_ = 0;
};

}  // namespace froghopper
