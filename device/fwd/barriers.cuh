// SPDX-License-Identifier: Apache-2.0
// device/fwd: how many arrive at each barrier of the forward kernel. The head of forward.cuh says who. Kernel is
// Forward of a variant.
#pragma once
#include "device/fwd/kv_source.cuh"
#include "device/ptx/mbarrier.cuh"

namespace froghopper::fwd {

// Before the roles diverge.
template <class Kernel>
__device__ void init_barriers(typename Kernel::Smem& smem) {
  if (threadIdx.x == 0) {
    constexpr int warps = 4 * Kernel::consumer_warpgroups, v_producer_warps = Kernel::v_producer_warps;
    // Those who read items: Consumer warps; the fillers of V (Transposers, Dequantisers or the Loader of V); and the
    // other loaders (StoredLoaders, the Fp8Loader or the Loader of K).
    smem.item_ring.init(1, warps + v_producer_warps + (Kernel::dequantises_on_load ? Kernel::stored_loaders : 1));
    smem.q_ring.init(1, warps);
    constexpr int loads = loader_arrivals<Kernel::variant>;
    smem.k_ring.init(Kernel::dequantises_on_load ? v_producer_warps : loads, warps);
    smem.v_ring.init(Kernel::reads_8_bit ? v_producer_warps : loads, warps);
    if constexpr (Kernel::reads_8_bit) smem.stored_ring.init(loads, v_producer_warps);
    Kernel::MmaOrderIfAny::init(smem.mma_order);
    ptx::mbarrier_init(&smem.fetch_next, 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
}

}  // namespace froghopper::fwd
