// SPDX-License-Identifier: Apache-2.0
// device/ptx: thin wrappers of PTX instructions. The first lines of each file say where PTX ISA describes them. Only
// here is asm written; nothing here knows of tiles or attention. This file: integers, tags of element types, and shared
// addresses.
#pragma once

namespace froghopper::ptx {

using u32 = unsigned int;
using u64 = unsigned long long;

// The element types of wgmma and cvt, as tags.
struct bf16;
struct f16;
struct e4m3;
struct e5m2;

__device__ __forceinline__ u32 smem_addr(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

}  // namespace froghopper::ptx
