// SPDX-License-Identifier: Apache-2.0
// base: the handler that counts. It is there while some call watches, so that whatever handler the process has or sets
// otherwise stays its own.
#include "src/base/interrupt.hpp"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace froghopper {

std::atomic<unsigned> InterruptWatch::arrived_{0};

namespace {

std::atomic<bool> watch_wanted{false};

bool in_first_thread() { return syscall(SYS_gettid) == getpid(); }

}  // namespace

struct InterruptHandler {
  // The one that was there. Only the first thread, where all watches live, sets it, and only while this handler is not.
  static inline struct sigaction before = {};
  static inline int watches = 0;

  static void handle(int number, siginfo_t* info, void* context) {
    InterruptWatch::arrived_.fetch_add(1, std::memory_order_relaxed);
    if (before.sa_flags & SA_SIGINFO)
      before.sa_sigaction(number, info, context);
    else
      before.sa_handler(number);
  }

  static bool begin() {
    if (watches++ > 0) return true;
    const bool has_own =
        sigaction(SIGINT, nullptr, &before) == 0 &&
        ((before.sa_flags & SA_SIGINFO) || (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN));
    struct sigaction counting = before;
    counting.sa_sigaction = &handle;
    counting.sa_flags |= SA_SIGINFO;
    if (has_own && sigaction(SIGINT, &counting, nullptr) == 0) return true;
    --watches;
    return false;
  }
  static void end() {
    if (--watches == 0) sigaction(SIGINT, &before, nullptr);
  }
};

void watch_interrupts(bool wanted) { watch_wanted = wanted; }

InterruptWatch::InterruptWatch() {
  if (!watch_wanted || !in_first_thread()) return;
  before_ = arrived_.load(std::memory_order_relaxed);
  watches_ = InterruptHandler::begin();
}

InterruptWatch::~InterruptWatch() {
  if (watches_) InterruptHandler::end();
}

}  // namespace froghopper
