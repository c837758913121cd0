// SPDX-License-Identifier: Apache-2.0
// Before a forward kernel that raises values in memory (max_logit): gives them the value that they begin with.
//
// Work      a thread takes strided values
// Roles     all threads alike
// Order     none
// Barriers  none
// Overlap   the next kernel may start at once, and waits; this one waits for those before it, which may still read what
//           is here
// Shared    nothing
#pragma once
#include "contract/fill.h"
#include "device/ptx/launch.cuh"

namespace froghopper::fwd {

template <FillVariant>
struct Fill {
  static constexpr int threads = fill_threads;
  static constexpr int smem_bytes = fill_smem_bytes;

  static __device__ void run(const FillParams& params) {
    ptx::let_next_kernel_start();
    ptx::wait_for_earlier_kernels();
    const long long step = static_cast<long long>(gridDim.x) * threads;
    for (long long i = static_cast<long long>(blockIdx.x) * threads + threadIdx.x; i < params.count; i += step)
      params.to[i] = params.value;
  }
};

}  // namespace froghopper::fwd
