// SPDX-License-Identifier: Apache-2.0
// cpu: a pool of sleeping threads. A call is a Job on the caller's stack; sleepers that join it and the caller take its
// indices from one counter until none is left.
#include "src/cpu/threads.hpp"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <list>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace froghopper::cpu {
namespace {

struct Job {
  const std::function<void(int64_t)>& work;
  int64_t count;
  int64_t wanted;      // sleepers that may still join
  int64_t inside = 0;  // that have joined and not left
  std::atomic<int64_t> next{0};

  void take_turns() {
    for (int64_t i = next++; i < count; i = next++) work(i);
  }
};

class Pool {
 public:
  const pid_t process = getpid();

  void run(Job& job) {
    const int64_t wanted = job.wanted;
    {
      std::lock_guard lock(mutex_);
      hire(wanted);
      jobs_.push_back(&job);
    }
    for (int64_t n = 0; n < wanted; ++n) awake_.notify_one();
    job.take_turns();
    std::unique_lock lock(mutex_);
    jobs_.remove(&job);
    left_.wait(lock, [&] { return job.inside == 0; });
  }

  void close() {
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
    }
    awake_.notify_all();
    for (std::thread& sleeper : sleepers_) sleeper.join();
    sleepers_.clear();
  }

 private:
  // Where the system gives no more threads, those that are there do the work.
  void hire(int64_t wanted) {
    sigset_t all, old;  // signals are for the user's threads
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    try {
      while (!closing_ && static_cast<int64_t>(sleepers_.size()) < wanted)
        sleepers_.emplace_back([this] { sleep(); });
    } catch (const std::system_error&) {}
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
  }

  void sleep() {
    std::unique_lock lock(mutex_);
    while (true) {
      awake_.wait(lock, [&] { return closing_ || !jobs_.empty(); });
      if (closing_) return;
      Job& job = *jobs_.front();
      if (--job.wanted == 0) jobs_.pop_front();
      ++job.inside;
      lock.unlock();
      job.take_turns();
      lock.lock();
      jobs_.remove(&job);  // no turn is left
      if (--job.inside == 0) left_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable awake_, left_;
  std::list<Job*> jobs_;  // that sleepers may join
  std::vector<std::thread> sleepers_;
  bool closing_ = false;
};

// The pool of this process: a child that fork made has none of its parent's threads, and makes a pool of its own.
// A pool is never freed, because at the end of the process a user's thread may still be in it.
std::atomic<Pool*> newest{nullptr};

Pool& pool() {
  Pool* known = newest.load();
  if (known && known->process == getpid()) return *known;
  Pool* const made = new Pool;
  if (newest.compare_exchange_strong(known, made)) return *made;
  delete made;
  return *known;
}

// Before the library's code goes away, at dlclose or at the end of the process, its threads must.
struct Closer {
  ~Closer() {
    Pool* const known = newest.load();
    if (known && known->process == getpid()) known->close();
  }
} closer;

}  // namespace

int64_t cores() { return std::max<int64_t>(1, std::thread::hardware_concurrency()); }

void for_each(int64_t count, int64_t threads, const std::function<void(int64_t)>& work) {
  Job job{work, count, std::min(threads, count) - 1};
  if (job.wanted > 0) {
    pool().run(job);
  } else {
    job.take_turns();
  }
}

}  // namespace froghopper::cpu
