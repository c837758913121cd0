// SPDX-License-Identifier: Apache-2.0
// base: the listener the user has set, and how it may come and go while other threads speak.
#include "src/base/log.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <shared_mutex>

namespace froghopper {
namespace {

struct Listener {
  fh_log_function function;
  void* user;
};

std::atomic<std::shared_ptr<const Listener>> listener;
std::atomic<bool> wanted = false;
std::shared_mutex speaking;                 // held shared while the listener runs
thread_local bool inside_listener = false;  // what the listener makes the library do is not logged again

}  // namespace

bool log_wanted() { return wanted.load(std::memory_order_relaxed); }

void log(const std::string& line) {
  if (!log_wanted() || inside_listener) return;
  std::shared_lock lock(speaking);
  const std::shared_ptr<const Listener> now = listener.load();
  if (!now) return;
  inside_listener = true;
  try {
    now->function(line.c_str(), now->user);
  } catch (...) {  // The user's exception must not unwind through a library that has none.
  }
  inside_listener = false;
}

void set_log(fh_log_function function, void* user) {
  listener.store(function ? std::make_shared<const Listener>(Listener{function, user}) : nullptr);
  wanted.store(function != nullptr, std::memory_order_relaxed);
  // When this returns the former listener is not running any more, so its owner may delete what `user` points to.
  // A listener that sets another one is still running itself and cannot wait for that.
  if (!inside_listener) std::unique_lock wait(speaking);
}

}  // namespace froghopper
