// SPDX-License-Identifier: Apache-2.0
// runtime: whether libcuda is in this process, by whatever code. Every call on the CPU asks, and where there is no
// NVIDIA driver the answer would cost more than a small problem if dlopen had to search the disk for it: 20
// microseconds. The list of what is loaded is in memory, and so is how often it has grown.
#include <link.h>

#include <atomic>
#include <cstring>
#include <mutex>

#include "src/base/fork.hpp"
#include "src/runtime/runtime.hpp"

namespace froghopper::runtime {

namespace {

struct Search {
  unsigned long long known;  // how many objects had been loaded when the list was last read
  unsigned long long loaded = 0;
  bool found = false;
};

// Called for one object after the other until it returns 1.
int look_at(dl_phdr_info* object, size_t, void* search) {
  auto& s = *static_cast<Search*>(search);
  s.loaded = object->dlpi_adds;
  if (s.loaded == s.known) return 1;  // nothing new since
  const char* const slash = std::strrchr(object->dlpi_name, '/');
  const char* const name = slash == nullptr ? object->dlpi_name : slash + 1;
  s.found = std::strncmp(name, "libcuda.so", std::strlen("libcuda.so")) == 0;
  return s.found ? 1 : 0;
}

// The loader has a lock of its own for its list, which a child would inherit locked: so no thread of ours is in there
// while the process forks.
std::mutex mutex;
[[maybe_unused]] const bool forks = unlocked_in_children<mutex>();

unsigned long long known = 0;  // Search::known
std::atomic<bool> found{false};

}  // namespace

bool driver_is_loaded() {
  if (found.load(std::memory_order_relaxed)) return true;
  const std::lock_guard lock(mutex);
  Search search{known};
  dl_iterate_phdr(look_at, &search);
  known = search.loaded;
  if (search.found) found = true;  // and stays: once asked, this library holds it too
  return found;                    // perhaps by a thread for which this one has waited
}

}  // namespace froghopper::runtime
