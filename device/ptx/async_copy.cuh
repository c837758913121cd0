// SPDX-License-Identifier: Apache-2.0
// device/ptx: copies from global to shared memory that a thread starts and later waits for (PTX ISA, "cp.async").
#pragma once
#include "device/ptx/types.cuh"

namespace froghopper::ptx {

// 16 bytes to a shared address, or as many zeros; then nothing is read. Both addresses are 16-byte aligned.
__device__ __forceinline__ void cp_async_16(u32 to, const void* from, bool zeros) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(zeros ? 0 : 16)
               : "memory");
}
__device__ __forceinline__ void cp_async_16(void* to, const void* from, bool zeros) {
  cp_async_16(smem_addr(to), from, zeros);
}
// 4 bytes likewise.
__device__ __forceinline__ void cp_async_4(void* to, const void* from, bool zeros) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(smem_addr(to)), "l"(from), "r"(zeros ? 0 : 4)
               : "memory");
}
// What this thread started since the last one is a group.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Returns when all but the last `Pending` groups of this thread are there, for this thread to see.
template <int Pending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// One of the barrier's arrivals, once all that this thread started is there.
__device__ __forceinline__ void cp_async_arrive(u64* bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(smem_addr(bar)) : "memory");
}

}  // namespace froghopper::ptx
