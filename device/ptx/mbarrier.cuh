// SPDX-License-Identifier: Apache-2.0
// device/ptx: mbarrier, the barrier that counts arrivals and bytes (PTX ISA, "Parallel Synchronization: mbarrier").
#pragma once
#include "device/ptx/types.cuh"

namespace froghopper::ptx {

__device__ __forceinline__ void mbarrier_init(u64* bar, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_addr(bar)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(u64* bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_addr(bar)) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive_expect_tx(u64* bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_addr(bar)), "r"(bytes) : "memory");
}
// Returns once the phase with the given parity has completed: asks until the answer is yes.
__device__ __forceinline__ void mbarrier_wait(u64* bar, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(smem_addr(bar)),
      "r"(parity)
      : "memory");
}
// The same for threads that can afford to sleep until the phase completes. Polling takes cycles of shared memory from
// products, about one in twenty where three threads poll; waking takes a little longer.
__device__ __forceinline__ void mbarrier_wait_asleep(u64* bar, u32 parity) {
  constexpr u32 at_most = 10'000'000;  // nanoseconds, far more than a phase takes; then it asks again
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, %2;\n"
      "@!done bra again;\n}" ::"r"(smem_addr(bar)),
      "r"(parity), "r"(at_most)
      : "memory");
}
// Makes initialised barriers visible to TMA.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

}  // namespace froghopper::ptx
