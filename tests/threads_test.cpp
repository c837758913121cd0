// SPDX-License-Identifier: Apache-2.0
// Claims: the calls that for_each makes are those of 0 to some number without a gap, also where SIGINT ends it early.
// So work that waits for that of a lower index ends.
#include "src/cpu/threads.hpp"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <vector>

namespace froghopper::cpu {
namespace {

TEST(threads, an_interrupt_leaves_no_gap) {
  struct sigaction own = {}, before = {};
  own.sa_handler = [](int) {};  // a watch looks only where the process has a handler
  ASSERT_EQ(sigaction(SIGINT, &own, &before), 0);
  watch_interrupts(true);
  constexpr int64_t count = 64, threads = 8;
  for (int turn = 0; turn < 50000; ++turn) {
    const InterruptWatch watch;
    std::vector<std::atomic<int>> calls(count + 1);
    for_each(count, threads, watch, [&](int64_t index, int64_t) {
      ++calls[index];
      if (index == turn % count) kill(getpid(), SIGINT);
    });
    int64_t first_left = 0;
    while (calls[first_left] == 1) ++first_left;
    EXPECT_GT(first_left, turn % count);
    for (int64_t index = first_left; index < count; ++index) ASSERT_EQ(calls[index], 0) << "turn " << turn;
  }
  watch_interrupts(false);
  sigaction(SIGINT, &before, nullptr);
}

}  // namespace
}  // namespace froghopper::cpu
