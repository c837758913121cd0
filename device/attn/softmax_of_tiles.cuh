// SPDX-License-Identifier: Apache-2.0
// device/attn: softmax.cuh for scores and values that have a scale of their own in every kv tile, and weights that
// become bf16.
//
// A reference is the largest scaled score, whatever tile it is of, so tiles of other scales agree with it. But a far
// one cannot be a score itself, as in OnlineSoftmax: scores of such a tile are scaled and rounded first, as plain loops
// do, and the reference is subtracted from them then. V's scale goes into the weights, as in ScaledSoftmax; bf16 has
// the range of fp32 and the same precision in all of it, so the guard asks what weights are without that.
#pragma once
#include "device/attn/softmax_e4m3.cuh"

namespace froghopper::attn {

struct TileSoftmax : UnitSoftmax {
  float lift, unlift;  // log2 of V's scale over its unit, 0 or below; unlift = 2^-lift

  // A tile's k is all that its scores are multiplied by, in base 2.
  __device__ explicit TileSoftmax(TileScales first) : UnitSoftmax{{0.f}} { take(first); }
  __device__ __forceinline__ void take(TileScales tile) {
    scale_log2 = of_all_rows(tile.k);
    lift = tile.lift;
    unlift = ptx::ex2_approx(-lift);
  }

  // As OnlineSoftmax. The sums of far rows are negated here too, so that later() leaves them to step(). The largest
  // weight is a power of two, so the fraction of the lift is in the reference.
  template <int Cols>
  __device__ RowPair step(tile::Accum<Cols>& s, RowPair above = {0.f, 0.f}) {
    const RowPair most = quad_most(s, {-tile::inf, -tile::inf});
    const float fraction = lift - floorf(lift);
    const RowPair next = {fmaxf(ref.top, scaled(most.top) + (above.top + fraction)),
                          fmaxf(ref.bottom, scaled(most.bottom) + (above.bottom + fraction))};
    // A row without a key so far: -inf - -inf would be NaN, -inf - 0 gives weights of 0.
    const RowPair at = {next.top == -tile::inf ? 0.f : next.top, next.bottom == -tile::inf ? 0.f : next.bottom};
    const RowPair age = {ptx::ex2_approx(ref.top - at.top), ptx::ex2_approx(ref.bottom - at.bottom)};
    const bool some_far = __any_sync(~0u, fmaxf(fabsf(at.top), fabsf(at.bottom)) > far);
    const auto [even, odd] = some_far ? weights_of_far(s, at) : weights(s, {at.top - lift, at.bottom - lift});
    sum = {fabsf(sum.top) * age.top + (even.top + odd.top) * unlift,
           fabsf(sum.bottom) * age.bottom + (even.bottom + odd.bottom) * unlift};
    if (fabsf(at.top) > far) sum.top = -sum.top;
    if (fabsf(at.bottom) > far) sum.bottom = -sum.bottom;
    ref = next;
    return age;
  }

  template <int Cols>
  __device__ Fate later(tile::Accum<Cols>& s, RowPair& age) {
    const auto [even, odd] = weights(s, {ref.top - lift, ref.bottom - lift});
    const RowPair t = {(even.top + odd.top) * unlift, (even.bottom + odd.bottom) * unlift};
    const float largest = fmaxf(fmaxf(even.top, odd.top), fmaxf(even.bottom, odd.bottom)) * unlift;
    const bool near = !is_far(sum.top) && !is_far(sum.bottom);
    if (__all_sync(~0u, largest <= guard<Cols> && near)) {
      sum = {sum.top + t.top, sum.bottom + t.bottom};
      return Fate::kept;
    }
    // The largest weight becomes a power of two, of a lift without its fraction; rows that are not above it stay.
    const float whole = floorf(lift), base = ptx::ex2_approx(whole);
    const RowPair most = quad_most(s, {base, base});
    const RowPair next = {ref.top + (ptx::lg2_approx(most.top) - whole),
                          ref.bottom + (ptx::lg2_approx(most.bottom) - whole)};
    const bool stays_near = near && fmaxf(fabsf(next.top), fabsf(next.bottom)) <= far;
    if (!__all_sync(~0u, largest <= movable && stays_near)) return Fate::lost;
    age = {ptx::ex2_approx(ref.top - next.top), ptx::ex2_approx(ref.bottom - next.bottom)};
    s.scale_rows(age.top, age.bottom);
    sum = {(sum.top + t.top) * age.top, (sum.bottom + t.bottom) * age.bottom};
    ref = next;
    return Fate::moved;
  }

  __device__ Finish finish_top(float sink, float unit) const {
    return in(unit, finish(ref.top, fabsf(sum.top), sink));
  }
  __device__ Finish finish_bottom(float sink, float unit) const {
    return in(unit, finish(ref.bottom, fabsf(sum.bottom), sink));
  }
  __device__ PartOfRow part_top() const = delete;
  __device__ PartOfRow part_bottom() const = delete;

 private:
  // Rounded before: as a fused difference, each weight of a far row would have another error.
  template <int Cols>
  __device__ Sums weights_of_far(tile::Accum<Cols>& s, RowPair at) const {
#pragma unroll
    for (int i = 0; i < Cols / 2; ++i) s.x[i] = scaled(s.x[i]) - ((i & 2) ? at.bottom : at.top);
    TileSoftmax differences = *this;
    differences.scale_log2 = 1.f;
    return differences.weights(s, {-lift, -lift});
  }
};

}  // namespace froghopper::attn
