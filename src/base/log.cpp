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
  std::atomic<int> inside{0};  // threads that run it now

  void leave() {
    if (--inside == 0) inside.notify_all();
  }
  void wait_until_left() {
    for (int threads; (threads = inside.load()) > 0;) inside.wait(threads);
  }
};

std::atomic<bool> wanted = false;
std::mutex mutex;  // of `listener`; never held while a listener runs, so no wait for it is long
// Lives until the process ends: threads may still log while it exits.
std::shared_ptr<Listener>& listener = *new std::shared_ptr<Listener>;
// The one this thread is in: what it makes the library do is not logged again.
thread_local const Listener* inside_of = nullptr;

// A child has none of the other threads that were inside.
void count_again() {
  if (listener) listener->inside = inside_of == listener.get() ? 1 : 0;
}
[[maybe_unused]] const bool forks = unlocked_in_children<mutex>() && in_children(count_again);

std::shared_ptr<Listener> enter() {
  const std::lock_guard lock(mutex);
  if (listener) ++listener->inside;
  return listener;
}

}  // namespace

bool log_wanted() { return wanted.load(std::memory_order_relaxed); }

void log(const std::string& line) {
  if (!log_wanted() || inside_of) return;
  const std::shared_ptr<Listener> now = enter();
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
  std::shared_ptr<Listener> former(function ? new Listener{function, user} : nullptr);  // the next, until they swap
  {
    const std::lock_guard lock(mutex);
    wanted.store(function != nullptr, std::memory_order_relaxed);
    former.swap(listener);
  }
  // When this returns the former listener is not running any more, so its owner may delete what `user` points to. New
  // lines go to the new one, so the wait is over when those that are inside have left, however many threads log.
  // A listener that sets another one is still running itself and cannot wait for that.
  if (former && !inside_of) former->wait_until_left();
}

}  // namespace froghopper
