// SPDX-License-Identifier: Apache-2.0
// device/ptx: ordering of wgmma, the asynchronous matrix product of a warpgroup (PTX ISA, "wgmma"). The products
// themselves, one for each shape and type: wgmma_generated.cuh.
#pragma once

namespace froghopper::ptx {

// Before the first wgmma whose registers ordinary instructions have written.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Returns when all groups but the newest Pending have completed.
template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

}  // namespace froghopper::ptx
