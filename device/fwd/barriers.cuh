// SPDX-License-Identifier: Apache-2.0
// device/fwd: how many arrive at each barrier of the forward kernel. Its banner, in forward.cuh, says who. Kernel is
// Forward of a variant.
#pragma once
#include "device/fwd/kv_source.cuh"
#include "device/ptx/mbarrier.cuh"

namespace froghopper::fwd {

// Before the roles diverge.
template <class Kernel>
__device__ void init_barriers(typename Kernel::Smem& smem) {
  if (threadIdx.x == 0) {
    constexpr int warps = 4 * Kernel::consumers, helpers = Kernel::helpers;
    smem.item_ring.init(warps + (Kernel::dequantises ? Kernel::stored_loaders : 1) + helpers);
    smem.q_ring.init(warps);
    constexpr int loads = loader_arrivals<Kernel::variant>;
    smem.k_ring.init(warps, Kernel::dequantises ? helpers : loads);
    smem.v_ring.init(warps, Kernel::scaled ? helpers : loads);
    if constexpr (Kernel::scaled) smem.stored_ring.init(helpers, loads);
    Kernel::MmaOrderIfAny::init(smem.mma_order);
    ptx::mbarrier_init(&smem.next_wanted, 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
}

}  // namespace froghopper::fwd
