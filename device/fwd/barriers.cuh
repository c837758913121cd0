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
    constexpr int warps = 4 * Kernel::consumers, fillers_of_v = Kernel::fillers_of_v;
    smem.item_ring.init(Kernel::readers_of_items);
    smem.q_ring.init(warps);
    constexpr int loads = loader_arrivals<Kernel::variant>;
    smem.k_ring.init(warps, Kernel::dequantises_on_load ? fillers_of_v : loads);
    smem.v_ring.init(warps, Kernel::reads_8_bit ? fillers_of_v : loads);
    if constexpr (Kernel::reads_8_bit) smem.stored_ring.init(fillers_of_v, loads);
    Kernel::MmaOrderIfAny::init(smem.mma_order);
    ptx::mbarrier_init(&smem.draw_now, 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
}

}  // namespace froghopper::fwd
