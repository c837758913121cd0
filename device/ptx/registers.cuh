// SPDX-License-Identifier: Apache-2.0
// device/ptx: moving registers between warpgroups (PTX ISA, setmaxnreg). All four warps of a warpgroup execute it.
#pragma once

namespace froghopper::ptx {

template <int N>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

}  // namespace froghopper::ptx
