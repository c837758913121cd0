// SPDX-License-Identifier: Apache-2.0
// cpu: threads that sleep between calls. The library brings its own, because a shared object may not need libgomp.
#pragma once
#include <cstdint>
#include <functional>

#include "src/base/interrupt.hpp"

namespace froghopper::cpu {

// Calls work(0, thread) ... work(count - 1, thread), each once, in this order as far as threads are free, on the
// calling thread and up to threads - 1 sleeping ones; returns when all have returned. `thread` counts those that take
// part: it is below `threads`, and no two calls at the same time have the same one. Any number of user threads may call
// it at once: each computes its own call, so none waits for another's. work must not throw; std::bad_alloc is thrown
// only before the first call of it. Where `watch` is asked, no more calls begin: then the calls are those of 0 to some
// number, without a gap, so that a call may wait for those of lower indices.
void for_each(int64_t count, int64_t threads, const InterruptWatch& watch,
              const std::function<void(int64_t index, int64_t thread)>& work);

}  // namespace froghopper::cpu
