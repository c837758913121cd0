// SPDX-License-Identifier: Apache-2.0
// cpu: threads that sleep between calls. The library brings its own, because a shared object may not need libgomp.
#pragma once
#include <cstdint>
#include <functional>

namespace froghopper::cpu {

int64_t cores();  // that this process may use

// Calls work(0) ... work(count - 1), each once, in this order as far as threads are free, on the calling thread and up
// to threads - 1 sleeping ones; returns when all have returned. Any number of user threads may call it at once: each
// works on its own call, so none waits for another's. work must not throw.
void for_each(int64_t count, int64_t threads, const std::function<void(int64_t)>& work);

}  // namespace froghopper::cpu
