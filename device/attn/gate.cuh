// SPDX-License-Identifier: Apache-2.0
// device/attn: the output gate: O is multiplied by the sigmoid of a tensor of its shape and type.
#pragma once
#include "contract/fields.h"
#include "device/attn/element.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/types.cuh"
#include "device/tile/constants.cuh"

namespace froghopper::attn {

// 1 / (1 + e^-x). Both ends are exact: 2^inf is inf, of which the reciprocal is 0. Relative error 2^-21 (1 + |x|).
__device__ __forceinline__ float sigmoid(float x) {
  return ptx::rcp_approx(__fadd_rn(1.f, ptx::ex2_approx(__fmul_rn(x, -tile::log2e))));
}

// Two neighbouring values of a row.
template <class T>
__device__ __forceinline__ float2 two_of(const char* row, int column) {
  if constexpr (same<T, float>)
    return reinterpret_cast<const float2*>(row)[column / 2];
  else
    return ptx::cvt_unpack2<T>(reinterpret_cast<const ptx::u32*>(row)[column / 2]);
}

}  // namespace froghopper::attn
