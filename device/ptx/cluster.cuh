// SPDX-License-Identifier: Apache-2.0
// device/ptx: CTAs of a cluster: who is who, barriers and shared memory of another one (PTX ISA, "mapa",
// "barrier.cluster", "st.async", "cp.async.bulk").
#pragma once
#include "device/ptx/types.cuh"

namespace froghopper::ptx {

__device__ __forceinline__ u32 cta_in_cluster() {
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all CTAs of the cluster, each once.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Where the same thing lies in the shared memory of that CTA.
__device__ __forceinline__ u32 smem_addr_at(const void* p, u32 cta) {
  u32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(smem_addr(p)), "r"(cta));
  return there;
}
// Arrives at a barrier of that CTA, without release semantics: a release would wait for every add to global memory of
// this thread. So it may only signal that reads are over: those of completed wgmmas, and of loads whose values have
// been used.
__device__ __forceinline__ void mbarrier_arrive_at(u64* bar, u32 cta) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(smem_addr_at(bar, cta))
               : "memory");
}
// Writes *to and counts its 4 bytes at *bar, both of that CTA.
__device__ __forceinline__ void st_async(u32* to, u64* bar, u32 cta, u32 value) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(smem_addr_at(to, cta)),
      "r"(value), "r"(smem_addr_at(bar, cta))
      : "memory");
}
// The same with 16 bytes and addresses that smem_addr_at has given, so that several stores need it once.
__device__ __forceinline__ void st_async_v4_f32(u32 to, u32 bar, float a, float b, float c, float d) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
               "f"(a), "f"(b), "f"(c), "f"(d), "r"(bar)
               : "memory");
}
// Copies to the shared memory of that CTA and counts the bytes at its *bar.
__device__ __forceinline__ void copy_to_cta(void* to, u64* bar, u32 cta, const void* from, u32 bytes) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   smem_addr_at(to, cta)),
               "r"(smem_addr(from)), "r"(bytes), "r"(smem_addr_at(bar, cta))
               : "memory");
}

}  // namespace froghopper::ptx
