// SPDX-License-Identifier: Apache-2.0
// device/ptx: barriers that have a number and no memory (PTX ISA, bar.sync).
#pragma once
#include "device/ptx/types.cuh"

namespace froghopper::ptx {

// Meets the other threads of a warpgroup at barrier `number`, 1 to 15.
__device__ __forceinline__ void warpgroup_sync(u32 number) {
  asm volatile("bar.sync %0, 128;" ::"r"(number) : "memory");
}

// Meets so many threads there, of whole warps.
template <int Threads>
__device__ __forceinline__ void sync_threads(u32 number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(Threads) : "memory");
}

}  // namespace froghopper::ptx
