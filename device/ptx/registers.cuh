// SPDX-License-Identifier: Apache-2.0
// device/ptx: registers: their number, and what need not stay in one.
#pragma once
#include "device/ptx/types.cuh"

namespace froghopper::ptx {

// threadIdx.x, read here again from its special register, so that what follows from it is computed here and not kept in
// registers from before.
__device__ __forceinline__ u32 thread_here() {
  u32 thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// Loads and stores stay on their side of it: those of a long unrolled loop, all begun at once, would take as many
// registers.
__device__ __forceinline__ void keep_order() { asm volatile("" ::: "memory"); }

// A copy of x that the compiler knows nothing about: what follows from it is computed here, not kept in registers from
// outside of a loop.
__device__ __forceinline__ int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// x is computed by here, and not later, where it is first used.
__device__ __forceinline__ void force(float& x) { asm volatile("" : "+f"(x)); }

// Moves registers between warpgroups (PTX ISA, setmaxnreg). All four warps of a warpgroup execute it.
template <int N>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

}  // namespace froghopper::ptx
