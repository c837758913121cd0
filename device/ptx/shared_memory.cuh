// SPDX-License-Identifier: Apache-2.0
// device/ptx: shared memory by ordinary loads and stores (PTX ISA, "ld", "st"), and the fence that makes it visible to
// wgmma and TMA (PTX ISA, "fence.proxy.async").
#pragma once
#include "device/ptx/types.cuh"

namespace froghopper::ptx {

// What this thread wrote to shared memory by ordinary stores, or has observed there through a barrier, is visible to
// wgmma and to TMA.
__device__ __forceinline__ void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Ordinary loads that stay in their place among the instructions of this folder: these are volatile, and the compiler
// keeps volatile ones in order. They declare no clobber of memory, so other loads may move across them. ldmatrix
// (device/ptx/matrix.cuh) likewise.
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

}  // namespace froghopper::ptx
