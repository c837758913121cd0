// SPDX-License-Identifier: Apache-2.0
// device/fwd: softmax over the two rows a thread owns, in base 2. Scores arrive unscaled.
//
// step() is the exact online softmax (Milakov and Gimelshein 2018): the reference that is subtracted before exp2 is
// the running maximum. later() is the guarded one: the reference need not be the maximum, it only has to keep every
// weight and every sum in range, so the maximum leaves the inner loop and the row sum, needed anyway, tells when the
// reference must move. docs/1-math.md shows that both give the same result for every input.
#pragma once
#include "contract/dtype.h"
#include "device/tile/accum.cuh"
#include "device/tile/numbers.cuh"

namespace froghopper::fwd {

struct RowPair {
  float top, bottom;
};

// A row lies in the four lanes of a quad.
__device__ __forceinline__ float quad_max(float v) {
  v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
  return fmaxf(v, __shfl_xor_sync(~0u, v, 2));
}
__device__ __forceinline__ float quad_sum(float v) {
  v += __shfl_xor_sync(~0u, v, 1);
  return v + __shfl_xor_sync(~0u, v, 2);
}

template <Dtype Stored>
struct OnlineSoftmax {
  // The largest row sum a thread's share of a tile may have before the reference moves. Weights are rounded to the
  // stored type, so they must stay below its largest value: 65504 in f16, no bound in bf16. 2^24 leaves 2^103 to sums
  // and to V.
  static constexpr float guard = Stored == Dtype::f16 ? 16384.f : 16777216.f;

  float scale_log2;
  RowPair ref = {-tile::inf, -tile::inf};  // what is subtracted from scale_log2 * s; -inf: no key seen yet
  RowPair sum = {0.f, 0.f};                // of 2^(scale_log2 * s - ref), this thread's columns only

  // Exact: the reference becomes the maximum so far. Returns the factor for what was accumulated before.
  template <int Cols>
  __device__ RowPair step(tile::Accum<Cols>& s) {
    RowPair m = {-tile::inf, -tile::inf};
#pragma unroll
    for (int i = 0; i < Cols / 2; ++i) ((i & 2) ? m.bottom : m.top) = fmaxf((i & 2) ? m.bottom : m.top, s.x[i]);
    m = {fmaxf(ref.top, quad_max(m.top) * scale_log2), fmaxf(ref.bottom, quad_max(m.bottom) * scale_log2)};
    // A row without a key so far: -inf - -inf would be NaN, -inf - 0 gives weights of 0.
    const RowPair at = {m.top == -tile::inf ? 0.f : m.top, m.bottom == -tile::inf ? 0.f : m.bottom};
    const RowPair age = {ptx::ex2_approx(ref.top - at.top), ptx::ex2_approx(ref.bottom - at.bottom)};
    const RowPair t = weights(s, at);
    ref = m;
    sum = {sum.top * age.top + t.top, sum.bottom * age.bottom + t.bottom};
    return age;
  }

  // Guarded, for tiles without a mask. The answer is the same for a whole warp.
  //   kept     the reference stands
  //   moved    the reference moved by powers of two; O still lacks the factor age
  //   outgrew  a weight left the range of fp32; s is lost, everything else is as before
  enum class Fit { kept, moved, outgrew };
  template <int Cols>
  __device__ Fit later(tile::Accum<Cols>& s, RowPair& age) {
    const RowPair t = weights(s, ref);
    const float most = fmaxf(t.top, t.bottom);
    if (__all_sync(~0u, most <= guard)) {
      sum = {sum.top + t.top, sum.bottom + t.bottom};
      return Fit::kept;
    }
    if (!__all_sync(~0u, t.top < tile::inf && t.bottom < tile::inf)) return Fit::outgrew;
    const RowPair most_of_row = {quad_max(t.top), quad_max(t.bottom)};
    const RowPair up = {most_of_row.top > guard ? ceilf(log2f(most_of_row.top)) : 0.f,
                        most_of_row.bottom > guard ? ceilf(log2f(most_of_row.bottom)) : 0.f};
    age = {exp2f(-up.top), exp2f(-up.bottom)};
    ref = {ref.top + up.top, ref.bottom + up.bottom};
    sum = {(sum.top + t.top) * age.top, (sum.bottom + t.bottom) * age.bottom};
    s.scale_rows(age.top, age.bottom);
    return Fit::moved;
  }

  // What O is multiplied by and the log of the denominator in natural units, once all tiles are in. sink_log2: one
  // more logit of the row, in base 2; -inf: none. A row that saw no key: 0 and -inf.
  struct Finish {
    float inverse, lse;
  };
  __device__ Finish finish_top(float sink_log2) const { return finish(ref.top, quad_sum(sum.top), sink_log2); }
  __device__ Finish finish_bottom(float sink_log2) const {
    return finish(ref.bottom, quad_sum(sum.bottom), sink_log2);
  }

 private:
  static __device__ Finish finish(float ref, float sum, float sink_log2) {
    if (sum == 0.f) return {0.f, -tile::inf};
    const float top = fmaxf(ref, sink_log2);  // the sink may lie far above every key, or far below
    const float age = ptx::ex2_approx(ref - top);
    const float all = sum * age + ptx::ex2_approx(sink_log2 - top);
    return {age * ptx::rcp_approx(all), (top + ptx::lg2_approx(all)) * tile::ln2};
  }

  // s becomes the weights; returns the sums of this thread's. Two partial sums a row halve the chain of dependent
  // adds.
  template <int Cols>
  __device__ RowPair weights(tile::Accum<Cols>& s, RowPair at) const {
    RowPair even = {0.f, 0.f}, odd = {0.f, 0.f};
#pragma unroll
    for (int i = 0; i < Cols / 2; i += 4) {
      even.top += s.x[i] = ptx::ex2_approx(s.x[i] * scale_log2 - at.top);
      odd.top += s.x[i + 1] = ptx::ex2_approx(s.x[i + 1] * scale_log2 - at.top);
      even.bottom += s.x[i + 2] = ptx::ex2_approx(s.x[i + 2] * scale_log2 - at.bottom);
      odd.bottom += s.x[i + 3] = ptx::ex2_approx(s.x[i + 3] * scale_log2 - at.bottom);
    }
    return {even.top + odd.top, even.bottom + odd.bottom};
  }
};

// s becomes tanh(s scale / softcap), by 1 - 2 / (e^2x + 1); cap_scale turns s into the exponent of two of e^2x. The
// absolute error, 2^-22, is what counts in a score; tanh.approx would have 2^-11.
template <int Cols>
__device__ __forceinline__ void cap(tile::Accum<Cols>& s, float cap_scale) {
#pragma unroll
  for (float& x : s.x) x = 1.f - 2.f * ptx::rcp_approx(ptx::ex2_approx(x * cap_scale) + 1.f);
}

}  // namespace froghopper::fwd
