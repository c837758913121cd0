// SPDX-License-Identifier: Apache-2.0
// device/ptx: mbarrier, the barrier that counts arrivals and bytes (PTX ISA, "Parallel Synchronization: mbarrier"); and
// fences, loads and stores of shared memory.
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
  constexpr u32 at_most = 10'000'000;  // nanoseconds, then it asks again
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, %2;\n"
      "@!done bra again;\n}" ::"r"(smem_addr(bar)),
      "r"(parity), "r"(at_most)
      : "memory");
}
// What this thread wrote to shared memory by ordinary stores, or has observed there through a barrier, is visible to
// wgmma and to TMA.
__device__ __forceinline__ void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Ordinary loads that stay in their place among the instructions of this folder.
__device__ __forceinline__ float2 ld_shared_v2_f32(u32 addr) {
  float2 r;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(r.x), "=f"(r.y) : "r"(addr));
  return r;
}
__device__ __forceinline__ float4 ld_shared_v4_f32(u32 addr) {
  float4 r;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(r.x), "=f"(r.y), "=f"(r.z), "=f"(r.w) : "r"(addr));
  return r;
}
__device__ __forceinline__ void ld_shared_v4(u32 (&d)[4], u32 addr) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(addr));
}
__device__ __forceinline__ void st_shared_v4(u32 addr, const u32 (&a)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(addr), "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
               : "memory");
}
// Makes initialised barriers visible to TMA.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

}  // namespace froghopper::ptx
