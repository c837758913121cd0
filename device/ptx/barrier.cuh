// SPDX-License-Identifier: Apache-2.0
// device/ptx: barriers that have a number and no memory (PTX ISA, bar.sync).
#pragma once
#include "device/ptx/mbarrier.cuh"

namespace froghopper::ptx {

// Meets the other threads of a warpgroup at barrier `number`, 1 to 15.
__device__ __forceinline__ void warpgroup_sync(u32 number) {
  asm volatile("bar.sync %0, 128;" ::"r"(number) : "memory");
}

// Waits at barrier `number` until so many threads are there or have arrived; arrives there and goes on. Whole warps.
__device__ __forceinline__ void barrier_wait(u32 number, u32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 number, u32 threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

}  // namespace froghopper::ptx
