// SPDX-License-Identifier: Apache-2.0
// cpu: a pool of sleeping threads. A call is a Job on the caller's stack; sleepers that join it and the caller take its
// indices from one counter until none is left.
#include "src/cpu/threads.hpp"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "src/base/fork.hpp"

namespace froghopper::cpu {
namespace {

struct Job {
  const std::function<void(int64_t, int64_t)>& work;
  const InterruptWatch& watch;
  int64_t count;
  int64_t wanted;       // sleepers that may still join
  int64_t inside = 0;   // that have joined and not left
  Job* next = nullptr;  // in the pool's list
  std::atomic<int64_t> next_index{0}, next_thread{0};

  // The watch is asked before an index is taken, never after: work may wait for that of lower indices, so an index that
  // is taken is worked on, by this thread and without a condition. Then the lowest one that works never waits, and all
  // that were taken end.
  void take_items() {
    const int64_t thread = next_thread++;
    while (!watch.asked()) {
      const int64_t i = next_index++;
      if (i >= count) return;
      work(i, thread);
    }
  }
};

// Signals are for the user's threads: a thread that is made while this lives gets none.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &old_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t old_;
};

class Pool {
 public:
  void run(Job& job) {
    const int64_t wanted = job.wanted;
    {
      const std::lock_guard lock(mutex_);
      hire(wanted);
      *end_of_list() = &job;
    }
    for (int64_t n = 0; n < wanted; ++n) awake_.notify_one();
    job.take_items();
    std::unique_lock lock(mutex_);
    remove(job);
    left_.wait(lock, [&] { return job.inside == 0; });
  }

  void close() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    awake_.notify_all();
    for (std::thread& sleeper : sleepers_) sleeper.join();
    sleepers_.clear();
  }

 private:
  // Where the system gives no more threads, or no memory for them, those that are there do the work.
  void hire(int64_t wanted) {
    if (closing_ || static_cast<int64_t>(sleepers_.size()) >= wanted) return;
    const NoSignals blocked;
    try {
      while (static_cast<int64_t>(sleepers_.size()) < wanted) sleepers_.emplace_back([this] { sleep(); });
    } catch (const std::system_error&) {
    } catch (const std::bad_alloc&) {}
  }

  void sleep() {
    std::unique_lock lock(mutex_);
    while (true) {
      awake_.wait(lock, [&] { return closing_ || jobs_; });
      if (closing_) return;
      Job& job = *jobs_;
      if (--job.wanted == 0) remove(job);
      ++job.inside;
      lock.unlock();
      job.take_items();
      lock.lock();
      remove(job);  // no item is left
      if (--job.inside == 0) left_.notify_all();
    }
  }

  Job** end_of_list() {
    Job** at = &jobs_;
    while (*at) at = &(*at)->next;
    return at;
  }
  void remove(Job& job) {
    Job** at = &jobs_;
    while (*at && *at != &job) at = &(*at)->next;
    if (*at) *at = job.next;
  }

  std::mutex mutex_;
  std::condition_variable awake_, left_;
  Job* jobs_ = nullptr;  // that sleepers may join: a list through Job::next
  std::vector<std::thread> sleepers_;
  bool closing_ = false;
};

// A pool is never freed, because at the end of the process a user's thread may still be in it.
std::atomic<Pool*> newest{nullptr};

// A child that fork made has none of its parent's threads, and its parent's pool may be locked: it makes its own.
[[maybe_unused]] const bool forks = in_children([] { newest = nullptr; });

Pool& pool() {
  Pool* known = newest.load();
  if (known) return *known;
  Pool* const made = new Pool;
  if (newest.compare_exchange_strong(known, made)) return *made;
  delete made;
  return *known;
}

// Before the library's code goes away, at dlclose or at the end of the process, its threads must.
struct Closer {
  ~Closer() {
    if (Pool* const known = newest.load()) known->close();
  }
} closer;

}  // namespace

void for_each(int64_t count, int64_t threads, const InterruptWatch& watch,
              const std::function<void(int64_t, int64_t)>& work) {
  Job job{work, watch, count, std::min(threads, count) - 1};
  if (job.wanted > 0) {
    pool().run(job);
  } else {
    job.take_items();
  }
}

}  // namespace froghopper::cpu
