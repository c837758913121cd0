// SPDX-License-Identifier: Apache-2.0
// Claims: a call that finds no memory has written nothing, whichever allocation fails, and leaves the thread as it was;
// a thread's first failing call can say that there is none.
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstdlib>
#include <new>
#include <thread>
#include <utility>

#include "tests/support/call.hpp"

// Memory that fails when a test wants it to: the allocation of this number, or from it on, on this thread.
namespace {
constexpr int never = -1;
thread_local int fails_in = never;
thread_local bool fails_from_then_on = false;

void* allocate(size_t bytes, size_t alignment) {
  if (fails_in == 0) {
    if (!fails_from_then_on) fails_in = never;
    throw std::bad_alloc();
  }
  if (fails_in > 0) --fails_in;
  void* const memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment + alignment);
  return memory ? memory : throw std::bad_alloc();
}
}  // namespace

void* operator new(size_t bytes) { return allocate(bytes, alignof(std::max_align_t)); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<size_t>(alignment));
}
// Inlined, GCC takes them for a mistake: memory of new that free gets.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace {

using namespace froghopper::test;

bool signals_blocked() {
  sigset_t now;
  pthread_sigmask(SIG_SETMASK, nullptr, &now);
  return sigismember(&now, SIGINT) == 1;
}

// In a new process, where neither threads nor scratch wait from earlier calls, the n-th allocation of a call fails.
TEST(memory, a_call_without_memory_has_written_nothing) {
  // Lengths of their own, so that the CPU needs a list of them too.
  Call call("fwd f32 b4 hq4 hkv2 sq200 skv200 d64 seqused");
  const std::vector<int32_t> used{200, 3, 150, 99};
  call.tensors.seqused_q = call.tensors.seqused_kv = used.data();
  enum { all_there, had_none, was_wrong };
  for (const bool from_then_on : {false, true}) {
    int failures = 0;
    for (int n = 0;; ++n) {
      ASSERT_LT(n, 1000);
      const int status = status_of_child([&] {
        fails_from_then_on = from_then_on;
        fails_in = n;
        const fh_status ran = call.run();
        const bool reached = fails_in == never || (from_then_on && fails_in == 0);
        fails_in = never;
        if (signals_blocked()) return int{was_wrong};
        if (ran != FH_OK && (ran != FH_INTERNAL || call.written() || !*fh_last_error())) return int{was_wrong};
        const std::vector<float> o = call.o;
        call.clear();
        if (call.run() != FH_OK || (ran == FH_OK && call.o != o)) return int{was_wrong};
        return int{reached ? had_none : all_there};
      });
      ASSERT_TRUE(WIFEXITED(status)) << "allocation " << n << ": " << words(status);
      ASSERT_NE(WEXITSTATUS(status), was_wrong) << "allocation " << n;
      if (WEXITSTATUS(status) == all_there) break;
      ++failures;
    }
    EXPECT_GT(failures, 5);
  }
}

// Takes all memory that malloc has for this thread and that the system would give it.
class NoMemory {
 public:
  NoMemory() {
    getrlimit(RLIMIT_AS, &old_);
    rlimit none = old_;
    none.rlim_cur = 1;  // less than is in use: nothing more is given
    setrlimit(RLIMIT_AS, &none);
    for (size_t bytes = 1 << 20; bytes >= 8; bytes = bytes > 4096 ? bytes / 2 : bytes - 8) {
      while (void* const memory = std::malloc(bytes)) new (memory) void*(std::exchange(taken_, memory));
    }
  }
  ~NoMemory() {
    setrlimit(RLIMIT_AS, &old_);
    while (taken_) std::free(std::exchange(taken_, *static_cast<void**>(taken_)));
  }

 private:
  rlimit old_;
  void* taken_ = nullptr;
};

TEST(memory, a_first_failing_call_without_memory_says_so) {
  const int status = status_of_child([] {
    bool right = false;
    std::thread([&right] {
      {
        const NoMemory none;
        right =
            fh_plan_create(nullptr, "cpu", nullptr) != FH_OK && std::strcmp(fh_last_error(), "out of memory") == 0;
      }
      right = right && fh_plan_create(nullptr, "cpu", nullptr) == FH_INVALID_PROBLEM;
      right = right && std::strstr(fh_last_error(), "problem must point to your problem") != nullptr;
    }).join();
    return right ? 0 : 1;
  });
  EXPECT_EQ(status, 0) << words(status);
}

}  // namespace
