// SPDX-License-Identifier: Apache-2.0
// device/attn: softmax over the two rows a thread owns, in base 2. Scores arrive without the factor scale_log2. (Those
// of ALiBi arrive in base 2, and the factor is 1; those of softcap arrive as a tanh: device/fwd/score_mod.cuh.)
//
// The row max, as the papers call what is subtracted before exp2, may be stale here: it lies at the row's maximum so
// far or near it, and not always above it. Any row max gives the same result in exact arithmetic; it only has to keep
// weights and sums moderate.
//
// exact_step() is the exact online softmax (Milakov and Gimelshein 2018): it moves the row max to the maximum so far,
// or by a given headroom above that. guarded_step() is the guarded one: it keeps the row max, so that the search for
// the maximum leaves the inner loop, and the row sum, needed anyway, tells when the row max must move.
// (FlashAttention-4 also rescales only when it has to, its conditional rescaling; but it computes the maximum of every
// tile.) Then the tile's weights are divided by their largest; only if they left the range of fp32, exact_step() must
// have the tile's scores again. docs/1-math.md shows that all of them give the same result for every input.
#pragma once
#include "contract/softcap.h"
#include "contract/split.h"
#include "device/ptx/math.cuh"
#include "device/tile/accum.cuh"
#include "device/tile/constants.cuh"

namespace froghopper::attn {

struct RowPair {
  float top, bottom;
};
__device__ __forceinline__ float of_row(RowPair x, bool bottom) { return bottom ? x.bottom : x.top; }
__device__ __forceinline__ float of_row(float x, bool) { return x; }  // the same for all

// A row lies in the four lanes of a quad.
__device__ __forceinline__ float quad_max(float v) {
  v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
  return fmaxf(v, __shfl_xor_sync(~0u, v, 2));
}
__device__ __forceinline__ float quad_sum(float v) {
  v += __shfl_xor_sync(~0u, v, 1);
  return v + __shfl_xor_sync(~0u, v, 2);
}

// What became of a tile whose weights were computed by the old row max. A weight that is NaN does not move the row max:
// the larger one of a number and NaN is the number.
//   kept       they stay
//   rescaled   a row outgrew its row max: the new one makes the tile's largest weight 1
//   recompute  the weights left the range of fp32 (rescale_limit), or a row is large, or all sums of a thread are NaN:
//              exact_step() must have the scores again
// In the first two a NaN stays in the row's sum and in its O.
enum class GuardResult { kept, rescaled, recompute };

// The largest values of this thread's columns of its two rows, at least `most`; and those of all columns.
template <int Cols>
__device__ __forceinline__ RowPair largest_of(const tile::Accum<Cols>& s, RowPair most) {
#pragma unroll
  for (int i = 0; i < Cols / 2; ++i) {
    float& of_row = (i & 2) ? most.bottom : most.top;
    of_row = fmaxf(of_row, s.x[i]);
  }
  return most;
}
template <int Cols>
__device__ __forceinline__ RowPair quad_most(const tile::Accum<Cols>& s, RowPair most) {
  most = largest_of(s, most);
  return {quad_max(most.top), quad_max(most.bottom)};
}

// The sum of a large row is negated (PartOfRow, contract/split.h), so that no register is spent on a flag; -0 too,
// for a thread may have no share of the sum.
__device__ __forceinline__ bool is_large(float sum) { return __float_as_int(sum) < 0; }

// What O is multiplied by and the log of the denominator in natural units, once all tiles are in. The sink is one
// more logit of the row, -inf if there is none; sink_weight is its weight after the division. A row that attends to no
// key has inverse = 0, and only the sink in its denominator.
struct Finish {
  float inverse, lse, sink_weight;
};

// Multiplied by log2(e), a large finite value may become infinite, and the difference of two infinities is NaN. So
// it is clamped to the finite values. NaN stays NaN.
__device__ __forceinline__ float finite(float row_max) {
  return ptx::max_or_nan(ptx::min_or_nan(row_max, tile::largest), -tile::largest);
}
__device__ __forceinline__ float sink_in_base_2(float sink) {  // -inf, which is no sink, stays -inf
  return ptx::min_or_nan(__fmul_rn(sink, tile::log2e), tile::largest);
}
// The log of a sum is not below that of a summand. Rounding would put it there, and above 2.3e38 base 2 has ended.
__device__ __forceinline__ float lse_of(float in_base_2, float sink) {
  return ptx::max_or_nan(__fmul_rn(in_base_2, tile::ln2), sink);
}

__device__ __forceinline__ Finish finish(float row_max, float sum, float sink) {
  if (sum == 0.f) return {0.f, sink, 1.f};
  row_max = finite(row_max);
  const float sink_log2 = sink_in_base_2(sink);
  const float top = fmaxf(row_max, sink_log2);  // the sink may lie far above every key, or far below
  const float rescale = ptx::ex2_approx(row_max - top);
  const float of_sink = ptx::ex2_approx(sink_log2 - top);
  const float all = sum * rescale + of_sink, one = ptx::rcp_approx(all);
  return {rescale * one, lse_of(top + ptx::lg2_approx(all), sink), of_sink * one};
}

// What else may be done with the largest scores of a tile's two rows, which exact_step() finds: nothing.
struct NoObserver {
  __device__ __forceinline__ void operator()(RowPair) const {}
};

struct OnlineSoftmax {
  // The guard: the row max is kept as long as a tile brings at most so much to each of a thread's two sums of a row,
  // each over an eighth of the columns. Not more, because a row's largest weight rounds without error only if it is a
  // power of two, so a row that one key dominates is the more exact the closer its row max is. At least Cols / 8, the
  // sum in a row of equal scores, whose weights are 1.
  template <int Cols>
  static constexpr float guard = Cols > 128 ? Cols / 8 : 16;
  // By how much, in powers of two, exact_step() puts the row max above the maximum so far in rows that attended to
  // fewer than few_keys keys: their largest score is likely to be small, and the next tile would move the row max. The
  // largest weight is 2^-3 then, and still exact. (Not the Max_offset of FlashAttention-3, which lowers the row max for
  // FP8 weights: what does that here is ScaledSoftmax::first_weight.)
  static constexpr float headroom = 3.f;
  static constexpr int few_keys = 64;
  static constexpr float headroom_again = 0.f;  // of a row whose weights are lost
  // The largest partial sum for which a tile's weights are divided by their largest in place (GuardResult::rescaled);
  // above it S is computed again (GuardResult::recompute). Up to it the weights are finite, and so is the sum with what
  // was summed before, which is at most 2^32. Their exponents are below 128, so they were rounded by at most 2^-18, as
  // scores of that size are themselves.
  static constexpr float rescale_limit = 0x1p100f;
  // A row is large if its row max is beyond this, 710 in natural units. It is subtracted before the scores are scaled:
  // rounding the product would put a factor on all weights of the row, up to 2^(2^-14) here and out of range from 2^31
  // on, and the rounding of weights to the stored type does not cancel it. (Large rows of gradients: large_lse,
  // device/bwd/delta.cuh.)
  static constexpr float large_magnitude = 1024.f;

  float scale_log2;
  // The row max of each row, which may be stale, times scale_log2; in large rows (large_magnitude) without that factor.
  RowPair row_max = {-tile::inf, -tile::inf};
  // Of 2^(scale_log2 s - row_max), over this thread's columns only until complete(). Negated in large rows: is_large().
  RowPair sum = {0.f, 0.f};

  // Exact: where the maximum of the tile plus `above`, the headroom, exceeds the row max, that becomes the row max.
  // Returns the factor for what was accumulated before. observe() gets the largest scores of the tile.
  template <int Cols, class Observer = NoObserver>
  __device__ RowPair exact_step(tile::Accum<Cols>& s, RowPair above = {0.f, 0.f}, Observer observe = {}) {
    const RowPair most = quad_most(s, {-tile::inf, -tile::inf});
    observe(most);
    RowPair next = {fmaxf(row_max.top, scaled(most.top) + above.top),
                    fmaxf(row_max.bottom, scaled(most.bottom) + above.bottom)};
    // A row without a key so far: -inf - -inf would be NaN, -inf - 0 gives weights of 0. A score may be -inf only once
    // it is scaled: such a row is large.
    RowPair at = {fmaxf(row_max.top, most.top) == -tile::inf ? 0.f : next.top,
                  fmaxf(row_max.bottom, most.bottom) == -tile::inf ? 0.f : next.bottom};
    RowPair rescale = {ptx::ex2_approx(row_max.top - at.top), ptx::ex2_approx(row_max.bottom - at.bottom)};
    const bool moderate =
        fmaxf(fabsf(at.top), fabsf(at.bottom)) <= large_magnitude && !is_large(sum.top) && !is_large(sum.bottom);
    const bool some_large = !__all_sync(~0u, moderate);
    if (some_large) {
      handle_large_rows(s, most, next, at, rescale);
      sum = {fabsf(sum.top), fabsf(sum.bottom)};
    }
    const auto [even, odd] = weights(s, at);
    sum = {sum.top * rescale.top + (even.top + odd.top), sum.bottom * rescale.bottom + (even.bottom + odd.bottom)};
    if (some_large) sum = {mark(sum.top, next.top, at.top), mark(sum.bottom, next.bottom, at.bottom)};
    row_max = next;
    return rescale;
  }

  // Guarded, for tiles without a mask: weights by the old row max. The result is the whole warp's. rescaled:
  // `rescale` is the factor for what was accumulated before. recompute: s is lost; row_max, sum and `rescale` are as
  // they were before the call.
  // A weight is NaN where the score is. It also is where the score is -inf and so is the row max, because all scores of
  // the row were: -inf - -inf. docs/1-math.md, "A score", has what becomes of such rows.
  template <int Cols>
  __device__ GuardResult guarded_step(tile::Accum<Cols>& s, RowPair& rescale) {
    const auto [even, odd] = weights(s, row_max);
    const RowPair t = {even.top + odd.top, even.bottom + odd.bottom};
    const float largest = fmaxf(fmaxf(even.top, odd.top), fmaxf(even.bottom, odd.bottom));
    const bool moderate = !is_large(sum.top) && !is_large(sum.bottom);
    if (__all_sync(~0u, largest <= guard<Cols> && moderate)) {
      sum = {sum.top + t.top, sum.bottom + t.bottom};
      return GuardResult::kept;
    }
    // Rows that did not outgrow their row max keep it: log2 of 1 is 0.
    const RowPair most = quad_most(s, {1.f, 1.f});
    const RowPair next = {row_max.top + ptx::lg2_approx(most.top), row_max.bottom + ptx::lg2_approx(most.bottom)};
    const bool stays_moderate = moderate && fmaxf(fabsf(next.top), fabsf(next.bottom)) <= large_magnitude;
    if (!__all_sync(~0u, largest <= rescale_limit && stays_moderate)) return GuardResult::recompute;
    // From the rounded row max, so that later tiles agree with what is here.
    rescale = {ptx::ex2_approx(row_max.top - next.top), ptx::ex2_approx(row_max.bottom - next.bottom)};
    s.scale_rows(rescale.top, rescale.bottom);
    sum = {(sum.top + t.top) * rescale.top, (sum.bottom + t.bottom) * rescale.bottom};
    row_max = next;
    return GuardResult::rescaled;
  }

  // After the last tile, before the next product is issued: shuffles would wait until that has read its operands,
  // hundreds of cycles.
  __device__ void complete() { sum = {of_quad(sum.top), of_quad(sum.bottom)}; }

  // The second argument is o_scale of the softmaxes of 8-bit K and V, what O is multiplied by in addition; 1 here.
  __device__ Finish finish_top(float sink, float /*o_scale*/ = 1.f) const {
    return finish_row(row_max.top, sum.top, sink);
  }
  __device__ Finish finish_bottom(float sink, float /*o_scale*/ = 1.f) const {
    return finish_row(row_max.bottom, sum.bottom, sink);
  }

  // A softmax of other keys begins: of the next part of rows whose keys are cut into parts.
  __device__ void restart() {
    row_max = {-tile::inf, -tile::inf};
    sum = {0.f, 0.f};
  }

  // What is here of rows whose keys are cut into parts.
  __device__ PartOfRow part_top() const { return {row_max.top, sum.top}; }
  __device__ PartOfRow part_bottom() const { return {row_max.bottom, sum.bottom}; }

 protected:
  static __device__ float of_quad(float my_sum) { return copysignf(quad_sum(fabsf(my_sum)), my_sum); }

  // Rounded by itself: fused into a difference, it would be another value there.
  __device__ float scaled(float score) const { return __fmul_rn(score, scale_log2); }

  // exact_step() for a warp with large rows: corrects what is subtracted after scaling (at), subtracts the rest
  // before.
  template <int Cols>
  __device__ void handle_large_rows(tile::Accum<Cols>& s, RowPair most, RowPair& next, RowPair& at,
                                    RowPair& rescale) const {
    const RowPair before = {
        handle_large_row(row_max.top, sum.top, most.top, next.top, at.top, rescale.top),
        handle_large_row(row_max.bottom, sum.bottom, most.bottom, next.bottom, at.bottom, rescale.bottom)};
#pragma unroll
    for (int i = 0; i < Cols / 2; ++i) s.x[i] -= (i & 2) ? before.bottom : before.top;
  }
  __device__ float handle_large_row(float old, float sum, float most, float& next, float& at, float& rescale) const {
    const bool was_large = is_large(sum);
    const float old_scaled = was_large ? scaled(old) : old, largest_of_large = was_large ? fmaxf(old, most) : most;
    next = fmaxf(old_scaled, scaled(most));
    at = next == -tile::inf ? 0.f : next;
    rescale = ptx::ex2_approx(old_scaled - at);
    if (fabsf(next) <= large_magnitude || largest_of_large == -tile::inf) return 0.f;
    next = largest_of_large;
    at = 0.f;
    if (was_large) rescale = ptx::ex2_approx(scaled(old - next));
    return next;
  }
  // Large rows are those whose row max is not what is subtracted after scaling.
  static __device__ float mark(float sum, float next, float at) {
    return next != at && next != -tile::inf ? -sum : sum;
  }

  __device__ Finish finish_row(float row_max, float sum, float sink) const {
    return finish(is_large(sum) ? scaled(row_max) : row_max, fabsf(sum), sink);
  }

  // s becomes the weights; returns the sums of this thread's. Two partial sums a row halve the chain of dependent
  // adds.
  struct Sums {
    RowPair even, odd;
  };
  template <int Cols>
  __device__ Sums weights(tile::Accum<Cols>& s, RowPair at) const {
    RowPair even = {0.f, 0.f}, odd = {0.f, 0.f};
#pragma unroll
    for (int i = 0; i < Cols / 2; i += 4) {
      even.top += s.x[i] = ptx::ex2_approx(s.x[i] * scale_log2 - at.top);
      odd.top += s.x[i + 1] = ptx::ex2_approx(s.x[i + 1] * scale_log2 - at.top);
      even.bottom += s.x[i + 2] = ptx::ex2_approx(s.x[i + 2] * scale_log2 - at.bottom);
      odd.bottom += s.x[i + 3] = ptx::ex2_approx(s.x[i + 3] * scale_log2 - at.bottom);
    }
    return {even, odd};
  }
};

// s becomes tanh(s scale / softcap), by 1 - 2 / (e^2x + 1); cap_scale turns s into the exponent of two of e^2x. The
// absolute error, 2^-22, is what counts in a score; tanh.approx would have 2^-11.
template <int Cols, class Scale>
__device__ __forceinline__ void cap(tile::Accum<Cols>& s, Scale cap_scale) {
#pragma unroll
  for (int i = 0; i < Cols / 2; ++i) {
    const float half = ptx::rcp_approx(ptx::ex2_approx(s.x[i] * of_row(cap_scale, i & 2)) + 1.f);
    s.x[i] = __fmaf_rn(-2.f, half, 1.f);  // spelled out: of 1 - 2 half the compiler makes two additions
  }
}

// The same, by a polynomial where all scores of the warp are small enough: contract/softcap.h.
template <int Cols>
__device__ __forceinline__ void cap(tile::Accum<Cols>& s, float cap_scale, const SoftcapParams& params) {
  float most = 0.f;
#pragma unroll
  for (int i = 0; i < Cols / 2; ++i) most = fmaxf(most, fabsf(s.x[i]));
  if (!__all_sync(~0u, most <= params.bound)) return cap(s, cap_scale);
#pragma unroll
  for (int i = 0; i < Cols / 2; ++i) s.x[i] = tanh_of(s.x[i], params);
}

// Of 8-bit K and V that were dequantised before and have one scale each: K's is in scale_log2, V's is the scale of O.
struct OneScaleSoftmax : OnlineSoftmax {
  __device__ Finish finish_top(float sink, float o_scale) const {
    return with_scale(o_scale, OnlineSoftmax::finish_top(sink));
  }
  __device__ Finish finish_bottom(float sink, float o_scale) const {
    return with_scale(o_scale, OnlineSoftmax::finish_bottom(sink));
  }

 protected:
  static __device__ Finish with_scale(float o_scale, Finish row) {
    return {row.inverse * o_scale, row.lse, row.sink_weight};
  }
};

}  // namespace froghopper::attn
