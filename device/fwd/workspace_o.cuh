// SPDX-License-Identifier: Apache-2.0
// device/fwd: what one Consumer keeps of O in the workspace, in fp32. A thread has there one or several headers,
// float4s that say what the sums of its two rows are relative to (promotion.cuh, batch_invariant.cuh), and then its
// values of O, fragment by fragment. All of it stays in L2.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "contract/types.h"
#include "device/ptx/registers.cuh"
#include "device/tile/accum.cuh"

namespace froghopper::fwd {

template <FwdVariant V>
struct WorkspaceO {
  using Output = tile::Accum<fwd_columns(V)>;
  static constexpr int fragments = fwd_columns(V) / 8, headers = fwd_sums_headers(V);

  // This thread's first header; the next ones and the fragments of its O lie a warpgroup further each.
  static __device__ float4* address(const FwdParams& params, int consumer) {
    const int at = blockIdx.x * fwd_consumers(V) + consumer;
    return reinterpret_cast<float4*>(params.sums) + at * fwd_sums_floats(V) / 4ll + ptx::thread_here() % warpgroup;
  }

  // Together fragments from fragment `at` on: on their way at once, for each wait for L2 is hundreds of cycles.
  template <int Together>
  static __device__ __forceinline__ void load(float4 (&sum)[Together], int at, const float4* sums) {
#pragma unroll
    for (int i = 0; i < Together; ++i)
      if (at + i < fragments) sum[i] = __ldcg(sums + (headers + at + i) * warpgroup);
  }
  // operation(fragment of o, fragment of the sum) for each of those fragments.
  template <int Together, class Operation>
  static __device__ __forceinline__ void each(const float4 (&sum)[Together], Output& o, int at,
                                              const Operation& operation) {
#pragma unroll
    for (int i = 0; i < Together; ++i)
      if (at + i < fragments) operation(o.x + 4 * (at + i), sum[i]);
  }
  // Loads them, and applies the operation to each.
  template <int Together, class Operation>
  static __device__ __forceinline__ void apply(Output& o, int at, const float4* sums, const Operation& operation) {
    float4 sum[Together];
    load(sum, at, sums);
    each(sum, o, at, operation);
  }
};

}  // namespace froghopper::fwd
