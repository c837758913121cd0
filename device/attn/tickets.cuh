// SPDX-License-Identifier: Apache-2.0
// device/attn: how persistent CTAs agree on who takes which work item.
#pragma once
#include "contract/shared_params.h"

namespace froghopper::attn {

// A dynamic persistent tile scheduler. A CTA's first item is that of its own number, further items come from an atomic
// counter: ticket n, counted from 0, is item n + number of CTAs. (A deterministic backward kernel fetches its first
// item too, and its ticket n is item n.) The counter is in the caller's memory and need not be initialised: its upper
// 32 bits hold the tag, never 0, of the launch that it counts for, and a CTA that finds another tag replaces it by this
// launch's tag and a count of 0, by compare-and-swap. fetch() issues the atomic and read() waits for its value, so that
// other work hides the latency.
struct Tickets {
  QueueParams queue;

  // Whether tickets are fetched. Else there are as many CTAs as items, and each has the one of its own number.
  // Forward kernels ask; backward kernels always fetch (QueueParams).
  __device__ bool in_use() const { return queue.counter != nullptr; }
  __device__ unsigned long long fetch() const { return atomicAdd(queue.counter, 1ull); }
  __device__ int read(unsigned long long fetched) const {
    while (tag_of(fetched) != queue.tag) {
      unsigned long long found = fetched + 1;
      while (tag_of(found) != queue.tag) {
        const unsigned long long mine = static_cast<unsigned long long>(queue.tag) << 32;
        const unsigned long long before = atomicCAS(queue.counter, found, mine);
        if (before == found) break;
        found = before;
      }
      fetched = fetch();
    }
    return static_cast<int>(fetched);
  }
  // By the CTA that fetched the last ticket: the next launch starts from 0 whatever its tag is.
  __device__ void forget() const { *queue.counter = 0; }

 private:
  static __device__ unsigned int tag_of(unsigned long long word) { return static_cast<unsigned int>(word >> 32); }
};

}  // namespace froghopper::attn
