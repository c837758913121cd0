// SPDX-License-Identifier: Apache-2.0
// device/ptx: kernels of one stream that overlap, programmatic dependent launch (PTX ISA, griddepcontrol). Without the
// launch attribute both do nothing.
#pragma once

namespace froghopper::ptx {

// Returns when the kernels before this one in the stream have ended and what they wrote is visible.
__device__ __forceinline__ void wait_for_earlier_kernels() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// The next kernel may start once every CTA has said so or has ended.
__device__ __forceinline__ void let_next_kernel_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace froghopper::ptx
