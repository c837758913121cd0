// SPDX-License-Identifier: Apache-2.0
// device/bwd: the barriers of deterministic variants by which a CTA tells the DqOrderSignaller, and that one the
// DqOrderWaiter, that adds to grad_q are issued. device/bwd/producers.cuh, "Deterministic grad_q", says how the two
// threads keep the order of adds. Each is one half of a ring of two stages, of which the other half is not used.
#pragma once
#include "device/ptx/types.cuh"
#include "device/tile/ring.cuh"

namespace froghopper::bwd {

// The Consumers to the DqOrderSignaller: the last adds of an item are issued. Only items with iterations count.
struct ItemAddsIssued : private tile::Ring<2> {
  __device__ void init(int consumer_warps) {
    Ring::init(/*arrivals_on_full=*/consumer_warps, /*arrivals_on_empty=*/1);
  }
  __device__ void announce(ptx::u32 item) { arrive_full(item); }  // one thread of each warp
  __device__ void wait(ptx::u32 item) { Ring::wait(item); }
};

// The DqOrderSignaller to the DqOrderWaiter: it has seen that the adds of an iteration are issued.
struct AddsSeen : private tile::Ring<2> {
  __device__ void init() { Ring::init(/*arrivals_on_full=*/1, /*arrivals_on_empty=*/1); }
  __device__ void announce(ptx::u32 iteration) { arrive_empty(iteration); }
  // Those of the iteration two before this one; there is none before the first two.
  __device__ void wait_two_before(ptx::u32 iteration) { wait_room(iteration); }
};

}  // namespace froghopper::bwd
