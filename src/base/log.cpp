// SPDX-License-Identifier: Apache-2.0
// base: the listener the user has set, and how it may come and go while other threads log.
#include "src/base/log.hpp"

#include <atomic>
#include <memory>
#include <mutex>

#include "src/base/fork.hpp"

namespace froghopper {
namespace {

struct Listener {
  fh_log_function function;
  void* user;
  uint64_t number = 0;                  // rises from one listener to the next
  std::atomic<int> inside{0};           // threads that run it now; of a replaced one it only falls
  std::shared_ptr<Listener> earlier{};  // of a replaced one: another replaced one

  void leave() {
    if (--inside == 0) inside.notify_all();
  }
  void wait_until_left() {
    for (int threads; (threads = inside.load()) > 0;) inside.wait(threads);
  }
};
using Pointer = std::shared_ptr<Listener>;

std::atomic<bool> wanted = false;
std::mutex mutex;  // of what follows; never held while a listener runs, so no wait for it is long
// Both live until the process ends: threads may still log while it exits.
Pointer& listener = *new Pointer;
Pointer& replaced = *new Pointer;  // the last of those that some thread may still be in, each with the ones before it
uint64_t listeners = 0;
// The one this thread is in: what it makes the library do is not logged again.
thread_local const Listener* inside_of = nullptr;

// A child has none of the other threads that were inside.
void count_again() {
  if (listener) listener->inside = inside_of == listener.get() ? 1 : 0;
  for (Listener* one = replaced.get(); one; one = one->earlier.get()) one->inside = inside_of == one ? 1 : 0;
}
[[maybe_unused]] const bool forks = unlocked_in_children<mutex>() && in_children(count_again);

Pointer enter() {
  const std::lock_guard lock(mutex);
  if (listener) ++listener->inside;
  return listener;
}

// Makes `next` the listener; the number of the last one before it.
uint64_t put_in_place(Pointer next) {
  const std::lock_guard lock(mutex);
  wanted.store(next != nullptr, std::memory_order_relaxed);
  const uint64_t last = listeners;
  if (next) next->number = ++listeners;
  listener.swap(next);
  if (next) {
    next->earlier = std::move(replaced);
    replaced = std::move(next);
  }
  return last;
}

// A replaced listener of at most that number that some thread is in; null: there is none. Forgets the others.
Pointer still_running(uint64_t last) {
  const std::lock_guard lock(mutex);
  for (Pointer* one = &replaced; *one;) {
    if ((*one)->inside == 0) {
      Pointer gone = std::move(*one);
      *one = std::move(gone->earlier);
    } else if ((*one)->number <= last) {
      return *one;
    } else {
      one = &(*one)->earlier;
    }
  }
  return nullptr;
}

}  // namespace

bool log_wanted() { return wanted.load(std::memory_order_relaxed); }

void log(const std::string& line) {
  if (!log_wanted() || inside_of) return;
  const Pointer now = enter();
  if (!now) return;
  inside_of = now.get();
  try {
    now->function(line.c_str(), now->user);
  } catch (...) {  // The user's exception must not unwind through a library that has none.
  }
  inside_of = nullptr;
  now->leave();
}

void set_log(fh_log_function function, void* user) {
  const uint64_t last = put_in_place(Pointer(function ? new Listener{function, user} : nullptr));
  // When this returns no earlier listener is running, whoever replaced it, so its owner may delete what `user` points
  // to. New lines go to the new one, so the wait is over when those that are inside have left, however many threads
  // log. A listener that sets another one is still running itself; and two that wait for each other would do so for
  // ever.
  for (Pointer running = still_running(last); running && !inside_of; running = still_running(last))
    running->wait_until_left();
}

}  // namespace froghopper
