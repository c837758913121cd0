// SPDX-License-Identifier: Apache-2.0
// base: what a child process inherits. fork() copies one thread; a lock that another thread held at that moment would
// stay locked in the child forever.
#pragma once
#include <pthread.h>

#include <mutex>

namespace froghopper {

// fork() waits until the mutex is free and holds it while it copies the process. For mutexes that are held for a few
// instructions, in which nothing else is locked and no code of the user runs: fork() may be called from anywhere.
// glibc forgets the three functions when dlclose unloads the library.
template <std::mutex& mutex>
bool unlocked_in_children() {
  return pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, [] { mutex.unlock(); }) == 0;
}

// Called in a child, before fork() returns there.
inline bool in_children(void (*function)()) { return pthread_atfork(nullptr, nullptr, function) == 0; }

}  // namespace froghopper
