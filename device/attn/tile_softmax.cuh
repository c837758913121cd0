// SPDX-License-Identifier: Apache-2.0
// device/attn: softmax.cuh for weights that become bf16; scaled_softmax.cuh is for weights that become e4m3 or f16. In
// both, K and V of every kv tile have scales of their own.
//
// A row max belongs to scaled scores, so it holds for tiles of all scales. But where it is large it cannot be
// an unscaled score, as in OnlineSoftmax: scores of such a tile are scaled and rounded first, as plain loops do, and
// the row max is subtracted from them then. V's scale goes into the weights, as in ScaledSoftmax; bf16 has the range
// of fp32 and the same precision in all of it, so the guard asks what weights are without that.
#pragma once
#include "contract/split.h"
#include "device/attn/scaled_softmax.cuh"
#include "device/attn/softmax.cuh"
#include "device/attn/tile_scales.cuh"
#include "device/ptx/math.cuh"
#include "device/tile/accum.cuh"
#include "device/tile/constants.cuh"

namespace froghopper::attn {

struct TileSoftmax : OneScaleSoftmax {
  // Log2 of V's scale over that of O, which is the largest one of V, so 0 or below; inverse_v_scale = 2^-log2_v_scale
  float log2_v_scale, inverse_v_scale;

  // A tile's k is all that its scores are multiplied by, in base 2.
  __device__ explicit TileSoftmax(TileScales first) : OneScaleSoftmax{{0.f}} { set_scales(first); }
  __device__ __forceinline__ void set_scales(TileScales tile) {
    scale_log2 = of_all_rows(tile.k);
    log2_v_scale = tile.log2_v_scale;
    inverse_v_scale = ptx::ex2_approx(-log2_v_scale);
  }

  // As OnlineSoftmax. The sums of large rows are negated here too, so that guarded_step() leaves them to exact_step().
  // The largest weight is a power of two, so the fraction of log2_v_scale is in the row max.
  template <int Cols>
  __device__ RowPair exact_step(tile::Accum<Cols>& s, RowPair above = {0.f, 0.f}) {
    const RowPair most = quad_most(s, {-tile::inf, -tile::inf});
    const float fraction = log2_v_scale - floorf(log2_v_scale);
    const RowPair next = {fmaxf(row_max.top, scaled(most.top) + (above.top + fraction)),
                          fmaxf(row_max.bottom, scaled(most.bottom) + (above.bottom + fraction))};
    // A row without a key so far: -inf - -inf would be NaN, -inf - 0 gives weights of 0.
    const RowPair at = {next.top == -tile::inf ? 0.f : next.top, next.bottom == -tile::inf ? 0.f : next.bottom};
    const RowPair rescale = {ptx::ex2_approx(row_max.top - at.top), ptx::ex2_approx(row_max.bottom - at.bottom)};
    const bool some_large = __any_sync(~0u, fmaxf(fabsf(at.top), fabsf(at.bottom)) > large_magnitude);
    const auto [even, odd] =
        some_large ? weights_of_large_rows(s, at) : weights(s, {at.top - log2_v_scale, at.bottom - log2_v_scale});
    sum = {fabsf(sum.top) * rescale.top + (even.top + odd.top) * inverse_v_scale,
           fabsf(sum.bottom) * rescale.bottom + (even.bottom + odd.bottom) * inverse_v_scale};
    if (fabsf(at.top) > large_magnitude) sum.top = -sum.top;
    if (fabsf(at.bottom) > large_magnitude) sum.bottom = -sum.bottom;
    row_max = next;
    return rescale;
  }

  template <int Cols>
  __device__ GuardResult guarded_step(tile::Accum<Cols>& s, RowPair& rescale) {
    const auto [even, odd] = weights(s, {row_max.top - log2_v_scale, row_max.bottom - log2_v_scale});
    const RowPair t = {(even.top + odd.top) * inverse_v_scale, (even.bottom + odd.bottom) * inverse_v_scale};
    const float largest = fmaxf(fmaxf(even.top, odd.top), fmaxf(even.bottom, odd.bottom)) * inverse_v_scale;
    const bool moderate = !is_large(sum.top) && !is_large(sum.bottom);
    if (__all_sync(~0u, largest <= guard<Cols> && moderate)) {
      sum = {sum.top + t.top, sum.bottom + t.bottom};
      return GuardResult::kept;
    }
    // The largest weight becomes a power of two, of log2_v_scale without its fraction; rows that are not above it stay.
    const float whole = floorf(log2_v_scale), base = ptx::ex2_approx(whole);
    const RowPair most = quad_most(s, {base, base});
    const RowPair next = {row_max.top + (ptx::lg2_approx(most.top) - whole),
                          row_max.bottom + (ptx::lg2_approx(most.bottom) - whole)};
    const bool stays_moderate = moderate && fmaxf(fabsf(next.top), fabsf(next.bottom)) <= large_magnitude;
    if (!__all_sync(~0u, largest <= rescale_limit && stays_moderate)) return GuardResult::recompute;
    rescale = {ptx::ex2_approx(row_max.top - next.top), ptx::ex2_approx(row_max.bottom - next.bottom)};
    s.scale_rows(rescale.top, rescale.bottom);
    sum = {(sum.top + t.top) * rescale.top, (sum.bottom + t.bottom) * rescale.bottom};
    row_max = next;
    return GuardResult::rescaled;
  }

  __device__ Finish finish_top(float sink, float o_scale) const {
    return with_scale(o_scale, finish(row_max.top, fabsf(sum.top), sink));
  }
  __device__ Finish finish_bottom(float sink, float o_scale) const {
    return with_scale(o_scale, finish(row_max.bottom, fabsf(sum.bottom), sink));
  }
  __device__ PartOfRow part_top() const = delete;
  __device__ PartOfRow part_bottom() const = delete;

 private:
  // Rounded before: as a fused difference, each weight of a large row would have another error.
  template <int Cols>
  __device__ Sums weights_of_large_rows(tile::Accum<Cols>& s, RowPair at) const {
#pragma unroll
    for (int i = 0; i < Cols / 2; ++i) s.x[i] = scaled(s.x[i]) - ((i & 2) ? at.bottom : at.top);
    TileSoftmax differences = *this;
    differences.scale_log2 = 1.f;
    return differences.weights(s, {-log2_v_scale, -log2_v_scale});
  }
};

}  // namespace froghopper::attn
