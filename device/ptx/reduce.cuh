// SPDX-License-Identifier: Apache-2.0
// device/ptx: adding to global memory, and the order of such adds between CTAs (PTX ISA, "red", "ld", "Memory
// Consistency Model").
#pragma once
#include "device/ptx/types.cuh"

namespace froghopper::ptx {

// Four adjacent floats, 16-byte aligned. Each add is atomic, in no promised order, and no thread waits for it.
__device__ __forceinline__ void red_add_v4_f32(float* to, float a, float b, float c, float d) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
}
// Two adjacent floats, 8-byte aligned, likewise.
__device__ __forceinline__ void red_add_v2_f32(float* to, float a, float b) {
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(a), "f"(b) : "memory");
}
// Four floats as above, by a plain store. Other CTAs may add to them only after they have acquired a counter that this
// thread's CTA released after the store.
__device__ __forceinline__ void st_v4_f32(float* to, float a, float b, float c, float d) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}

// A counter in global memory, one more, or 0 after `last`. What this thread knows of memory before the release is known
// to whoever acquires the value that it made.
__device__ __forceinline__ void red_release_inc(u32* counter, u32 last) {
  asm volatile("red.release.gpu.global.inc.u32 [%0], %1;" ::"l"(counter), "r"(last) : "memory");
}
__device__ __forceinline__ u32 ld_acquire(const u32* counter) {
  u32 value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

}  // namespace froghopper::ptx
