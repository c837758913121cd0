// SPDX-License-Identifier: Apache-2.0
// device/ptx: one function per instruction, named after it. No policy, no attention, and one loop: mbarrier_wait, as
// its instruction waits for some time only.
// This file: integers, tags of element types, and shared addresses.
#pragma once

namespace froghopper::ptx {

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

// The element types of wgmma and cvt, as tags.
struct bf16;
struct f16;
struct e4m3;
struct e5m2;

__device__ __forceinline__ u32 smem_addr(const void* p) { return (u32)__cvta_generic_to_shared(p); }

}  // namespace froghopper::ptx
