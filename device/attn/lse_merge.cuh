// SPDX-License-Identifier: Apache-2.0
// device/attn: merges the softmax of a row over some keys with that over other keys. Every operation is spelled out, so
// that no compiler fuses two of them: all kernels that merge the same parts in the same order get the same bits.
#pragma once
#include "contract/split.h"
#include "device/attn/softmax.cuh"
#include "device/ptx/math.cuh"
#include "device/tile/constants.cuh"

namespace froghopper::attn {

// The merged row, and the factors of the two partial results; 0: that one has no weight, and the other stays as it is.
struct LseMerge {
  PartOfRow row;
  float factor_before, factor_more;
};

__device__ __forceinline__ bool is_large(const PartOfRow& part) { return __float_as_int(part.sum) < 0; }
__device__ __forceinline__ float scaled(const PartOfRow& part, float scale_log2) {
  return is_large(part) ? __fmul_rn(part.row_max, scale_log2) : part.row_max;
}

// As OnlineSoftmax::exact_step(): where both rows are large, one row max is subtracted from the other before they are
// scaled.
__device__ __forceinline__ LseMerge merge(const PartOfRow& before, const PartOfRow& more, float scale_log2) {
  if (more.row_max == -tile::inf) return {before, 1.f, 0.f};
  if (before.row_max == -tile::inf) return {more, 0.f, 1.f};
  const float one = scaled(before, scale_log2), other = scaled(more, scale_log2);
  const bool both_large = is_large(before) && is_large(more);
  const bool grew = both_large ? more.row_max > before.row_max : other > one;
  float below = -fabsf(__fsub_rn(one, other));  // of the smaller row max
  if (both_large) below = __fmul_rn(-fabsf(__fsub_rn(more.row_max, before.row_max)), scale_log2);
  const float small = ptx::ex2_approx(below);
  const PartOfRow& top = grew ? more : before;
  const PartOfRow& rest = grew ? before : more;
  const float sum = __fmaf_rn(fabsf(rest.sum), small, fabsf(top.sum));
  return {{top.row_max, copysignf(sum, top.sum)}, grew ? small : 1.f, grew ? 1.f : small};
}

__device__ __forceinline__ float merged(float before, float more, const LseMerge& by) {
  if (by.factor_more == 0.f) return before;
  if (by.factor_before == 0.f) return more;
  return __fmaf_rn(before, by.factor_before, __fmul_rn(more, by.factor_more));
}

// As finish().
__device__ __forceinline__ Finish finish_part(const PartOfRow& whole, float scale_log2, float sink) {
  if (whole.sum == 0.f) return {0.f, sink, 1.f};
  const float row_max = finite(scaled(whole, scale_log2)), sink_log2 = sink_in_base_2(sink);
  const float top = fmaxf(row_max, sink_log2);
  const float rescale = ptx::ex2_approx(__fsub_rn(row_max, top));
  const float of_sink = ptx::ex2_approx(__fsub_rn(sink_log2, top));
  const float all = __fmaf_rn(fabsf(whole.sum), rescale, of_sink), one = ptx::rcp_approx(all);
  return {__fmul_rn(rescale, one), lse_of(__fadd_rn(top, ptx::lg2_approx(all)), sink), __fmul_rn(of_sink, one)};
}

}  // namespace froghopper::attn
