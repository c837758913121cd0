// SPDX-License-Identifier: Apache-2.0
// device/attn: softmax.cuh for weights that become e4m3, or f16; tile_softmax.cuh is for weights that become bf16.
// In both, K and V of every kv tile have scales of their own.
//
// e4m3 reaches 448, and rounds to 2^-4 of a value down to 2^-6, below that to 2^-10. So a row's largest weight is kept
// between 16 and 448: a row starts at 16, so that few tiles pass 448. (FlashAttention-3, which finds the maximum of
// every tile, has 256: its Max_offset lowers the row max by 8.) A tile whose weights would pass 448 moves the row max
// so that its largest weight becomes 64, not 16: the row is unlikely to grow by as much again, and the larger its
// weights are, the fewer of the small ones are lost.
// V's scale goes into the weights: w = 2^(s - row_max + log2_v_scale) with log2_v_scale = log2(16 x scale of V of this
// tile / scale of O). The scale of O is that of V of the item's first tile; O is multiplied by it in the end. The sum
// is of unrounded weights without that factor: rounded small ones would be missing there. A weight that has a row to
// itself should not be rounded, so exact_step() adds the fraction of log2_v_scale to the row max: then the largest
// weight is a power of two.
//
// f16 weights need no such care, but their range serves as well: f16 is precise to 2^-18 of a row's largest weight,
// times the scale of O over that of V.
#pragma once
#include "contract/fields.h"
#include "contract/split.h"
#include "device/attn/softmax.cuh"
#include "device/attn/tile_scales.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/registers.cuh"
#include "device/tile/accum.cuh"
#include "device/tile/constants.cuh"

namespace froghopper::attn {

// What scores are multiplied by, where it is the same for all rows and where each of a thread's two has its own.
__device__ __forceinline__ float of_all_rows(float scale) {
  return __shfl_sync(~0u, scale, 0);  // into a uniform register, which an FFMA reads together with two others
}
__device__ __forceinline__ RowPair of_all_rows(RowPair scale) { return scale; }
// Not 0, however small both are, since 2^-149 is added: a masked score, -inf, stays -inf.
__device__ __forceinline__ float positive_product(float scale, float by) { return __fmaf_rn(scale, by, tile::least); }
__device__ __forceinline__ RowPair positive_product(RowPair scale, float by) {
  return {positive_product(scale.top, by), positive_product(scale.bottom, by)};
}

// Fp8Weights: weights become e4m3. Scale: float, or RowPair where rows have scales of their own.
template <bool Fp8Weights, class Scale = float>
struct ScaledSoftmax {
  static constexpr float first_weight = TileScales::first_weight, first_log2_v_scale = TileScales::first_log2_v_scale;
  static constexpr float largest_weight = 448.f;
  // Log2 of the largest weight, and that weight, once a row has outgrown its row max: then the row max is lower in
  // relation to the maximum than at the beginning.
  static constexpr float moved_log2_v_scale = Fp8Weights ? 6.f : first_log2_v_scale,
                         moved_weight = Fp8Weights ? 64.f : first_weight;
  static constexpr float headroom_again = first_log2_v_scale - moved_log2_v_scale;
  static constexpr float headroom = OnlineSoftmax::headroom;
  static constexpr int few_keys = OnlineSoftmax::few_keys;
  static constexpr float rescale_limit = OnlineSoftmax::rescale_limit;
  // A row max beyond this is subtracted after the scores are scaled and rounded: in s scale + (log2_v_scale - row_max)
  // its own rounding, 2^-12 here, would be another one in every tile.
  static constexpr float large_magnitude = Fp8Weights ? 4096.f : OnlineSoftmax::large_magnitude;

  Scale scale_q;  // log2(e) x softmax scale x scale of Q
  // The row max of each row, as OnlineSoftmax has it, but in base 2 in large rows too.
  RowPair row_max = {-tile::inf, -tile::inf};
  RowPair sum = {0.f, 0.f};  // this thread's columns only, until complete()
  // Of this tile.
  Scale scale;
  float log2_v_scale, inverse_v_scale;  // inverse_v_scale = 2^-log2_v_scale
  // By how many powers of two the scale of O has grown since the item's first tile, for tiles of larger values. Not in
  // the row max: a large one swallows what is added to it.
  float grown = 0.f;

  __device__ ScaledSoftmax(Scale scale_q, TileScales first) : scale_q(scale_q) { set_scales(first); }

  __device__ __forceinline__ void set_scales(TileScales tile) {
    scale = of_all_rows(positive_product(scale_q, tile.k));
    log2_v_scale = tile.log2_v_scale - grown;
    inverse_v_scale = ptx::ex2_approx(-log2_v_scale);
  }
  // What this tile's scores are multiplied by; and instead of that, once a score modification has changed them.
  __device__ __forceinline__ Scale scale_of_scores() const { return scale; }
  __device__ __forceinline__ void set_scale_of_scores(float of_all) {
    if constexpr (same<Scale, float>)
      scale = of_all;
    else
      scale = {of_all, of_all};
  }

  // As OnlineSoftmax::exact_step(). observe() gets the largest scores of the tile in base 2.
  template <int Cols, class Observer = NoObserver>
  __device__ RowPair exact_step(tile::Accum<Cols>& s, RowPair above = {0.f, 0.f}, Observer observe = {}) {
#pragma unroll
    for (int i = 0; i < Cols / 2; ++i) s.x[i] = __fmul_rn(s.x[i], of_row(scale, i & 2));
    const RowPair most = quad_most(s, {-tile::inf, -tile::inf});
    observe(most);
    const float growth = grow();
    // e4m3: where a row has few keys. In the others no key has the row to itself, and its error is that of all weights.
    const bool some_few = __any_sync(~0u, above.top + above.bottom > 0.f);
    if (!Fp8Weights || some_few) {
      const float fraction = log2_v_scale - floorf(log2_v_scale);
      above = {above.top + fraction, above.bottom + fraction};
    }
    // A large maximum swallows what is above it: then the row's next larger score moves the row max.
    const RowPair next = {fmaxf(row_max.top, most.top + above.top),
                          fmaxf(row_max.bottom, most.bottom + above.bottom)};
    // A row without a key so far: -inf - -inf would be NaN, -inf - 0 gives weights of 0.
    const RowPair at = {next.top == -tile::inf ? 0.f : next.top, next.bottom == -tile::inf ? 0.f : next.bottom};
    const RowPair rescale = {ptx::ex2_approx(row_max.top - at.top), ptx::ex2_approx(row_max.bottom - at.bottom)};
    RowPair tile_sum = {0.f, 0.f};
#pragma unroll
    for (int i = 0; i < Cols / 2; ++i) {
      const bool low = i & 2;
      s.x[i] = ptx::ex2_approx((s.x[i] - (low ? at.bottom : at.top)) + log2_v_scale);
      (low ? tile_sum.bottom : tile_sum.top) += s.x[i];
    }
    sum = {sum.top * rescale.top + tile_sum.top * inverse_v_scale,
           sum.bottom * rescale.bottom + tile_sum.bottom * inverse_v_scale};
    row_max = next;
    return {rescale.top * growth, rescale.bottom * growth};
  }

  // Guarded, in steps, so that no branch lies between the exponentials and the rounding: guess() computes the weights
  // by the old row max; once they are rounded, holds() tests whether they are in range, and if not, correct() repairs
  // them, to be rounded again. If the sum of four weights is at most 448, so is each of them; four of the largest
  // weight that a row begins with pass, so rows of equal scores do.
  struct Guess {
    RowPair sum;
    float largest;
  };
  template <int Cols>
  __device__ __forceinline__ Guess guess(tile::Accum<Cols>& s) const {
    const RowPair at = {log2_v_scale - row_max.top, log2_v_scale - row_max.bottom};
    Guess g{{0.f, 0.f}, 0.f};
    int largest = 0;  // as integers positive floats have the same order, and the largest of three is one instruction
#pragma unroll
    for (int i = 0; i < Cols / 2; i += 8) {
      float four[2];
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float* x = s.x + i + 2 * row;
#pragma unroll
        for (int j : {0, 1, 4, 5}) x[j] = ptx::ex2_approx(x[j] * of_row(scale, row) + (row ? at.bottom : at.top));
        four[row] = (x[0] + x[1]) + (x[4] + x[5]);
        (row ? g.sum.bottom : g.sum.top) += four[row];
      }
      largest = max(max(__float_as_int(four[0]), __float_as_int(four[1])), largest);
    }
    ptx::force(g.sum.top);  // not behind the vote, where all warps would wait for it
    ptx::force(g.sum.bottom);
    g.largest = __int_as_float(largest);
    return g;
  }
  static __device__ __forceinline__ Guess merged(const Guess& a, const Guess& b) {
    // As integers, as above: a NaN of one half must fail the guard, and fmaxf would drop it.
    const int largest = max(__float_as_int(a.largest), __float_as_int(b.largest));
    return {{a.sum.top + b.sum.top, a.sum.bottom + b.sum.bottom}, __int_as_float(largest)};
  }
  // The whole warp's.
  __device__ __forceinline__ bool holds(const Guess& g) const {
    return __all_sync(~0u, g.largest <= largest_weight && is_moderate());
  }
  // The same in fewer steps behind the exponentials, for who has a register for the limit until then.
  __device__ __forceinline__ float limit() const { return is_moderate() ? largest_weight : -1.f; }
  __device__ __forceinline__ bool holds(const Guess& g, float limit) const {
    return __all_sync(~0u, g.largest <= limit);
  }
  __device__ __forceinline__ void keep(const Guess& g) {
    sum = {sum.top + g.sum.top * inverse_v_scale, sum.bottom + g.sum.bottom * inverse_v_scale};
  }
  // Of a guess that does not hold: moves the row max and divides the weights, or finds them lost, as
  // OnlineSoftmax::guarded_step() does.
  template <int Cols>
  __device__ GuardResult correct(tile::Accum<Cols>& s, const Guess& g, RowPair& rescale) {
    const RowPair most = quad_most(s, {moved_weight, moved_weight});
    const RowPair next = {row_max.top + (ptx::lg2_approx(most.top) - moved_log2_v_scale),
                          row_max.bottom + (ptx::lg2_approx(most.bottom) - moved_log2_v_scale)};
    const bool stays_moderate = is_moderate() && fmaxf(fabsf(next.top), fabsf(next.bottom)) <= large_magnitude;
    if (!__all_sync(~0u, g.largest <= rescale_limit && stays_moderate)) return GuardResult::recompute;
    rescale = {ptx::ex2_approx(row_max.top - next.top), ptx::ex2_approx(row_max.bottom - next.bottom)};
    s.scale_rows(rescale.top, rescale.bottom);
    sum = {(sum.top + g.sum.top * inverse_v_scale) * rescale.top,
           (sum.bottom + g.sum.bottom * inverse_v_scale) * rescale.bottom};
    row_max = next;
    return GuardResult::rescaled;
  }

  // As OnlineSoftmax.
  __device__ void complete() { sum = {quad_sum(sum.top), quad_sum(sum.bottom)}; }

  // As OnlineSoftmax; O is too large by first_weight. o_scale: its scale, before it grew.
  __device__ Finish finish_top(float sink, float o_scale) const {
    return lowered(finish(row_max.top, sum.top, sink), o_scale);
  }
  __device__ Finish finish_bottom(float sink, float o_scale) const {
    return lowered(finish(row_max.bottom, sum.bottom, sink), o_scale);
  }

  // What the present O is relative to, the row maxima and the scale of O; and what an O that was promoted when they
  // were `then` is to be multiplied by, to be relative to the present ones. Equal row maxima may be infinite: a row
  // that attended to no key yet.
  __device__ float4 row_maxima() const { return {row_max.top, row_max.bottom, grown}; }
  __device__ RowPair factors_since(float4 then) const {
    const float growth = ptx::ex2_approx(then.z - grown);
    const auto of_row = [&](float old, float present) {
      return old == present ? growth : ptx::ex2_approx(old - present) * growth;
    };
    return {of_row(then.x, row_max.top), of_row(then.y, row_max.bottom)};
  }

  // What is here of rows whose keys are cut into parts; and what O is multiplied by for all that the weights had in
  // addition: first_weight, and the scale of O, which has grown.
  __device__ PartOfRow part_top() const { return {row_max.top, sum.top}; }
  __device__ PartOfRow part_bottom() const { return {row_max.bottom, sum.bottom}; }
  __device__ float o_factor(float o_scale) const { return o_scale * ptx::ex2_approx(grown) / first_weight; }

  // Once O has been multiplied by that, this is its o_scale.
  __device__ float become_plain() {
    grown = 0.f;
    return first_weight;
  }
  // The scores of all keys are larger by so much, in base 2, than those that were weighed.
  __device__ void shift_scores(RowPair by) { row_max = {row_max.top + by.top, row_max.bottom + by.bottom}; }

  // To memory and back, by a warp that needs the registers.
  __device__ void save(volatile float (&aside)[4]) const {
    aside[0] = sum.top, aside[1] = sum.bottom, aside[2] = row_max.top, aside[3] = row_max.bottom;
  }
  __device__ void restore(const volatile float (&aside)[4]) {
    sum = {aside[0], aside[1]};
    row_max = {aside[2], aside[3]};
  }

 private:
  // Lets a tile's weights begin at first_weight at most; returns what O is to be multiplied by.
  __device__ float grow() {
    const float by = ceilf(fmaxf(log2_v_scale - first_log2_v_scale, 0.f));
    grown += by;
    log2_v_scale -= by;
    inverse_v_scale = ptx::ex2_approx(-log2_v_scale);
    return ptx::ex2_approx(-by);
  }
  __device__ bool is_moderate() const { return fmaxf(fabsf(row_max.top), fabsf(row_max.bottom)) <= large_magnitude; }
  __device__ Finish lowered(Finish row, float o_scale) const {
    return {row.inverse * o_factor(o_scale), row.lse, row.sink_weight};
  }
};

using E4m3Softmax = ScaledSoftmax<true>;

}  // namespace froghopper::attn
