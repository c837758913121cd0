// SPDX-License-Identifier: Apache-2.0
// cpu: the weights and the gradients of scores, of query rows and a block of keys, with keys as lanes.
#include <cstdint>
#include <limits>

#if defined(FROGHOPPER_CPU_WEIGH_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FROGHOPPER_CPU_WEIGH_INL
#undef FROGHOPPER_CPU_WEIGH_INL
#else
#define FROGHOPPER_CPU_WEIGH_INL
#endif
#include "hwy/highway.h"
#include "src/cpu/softmax-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace froghopper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Keys of a block that a row attends to, counted from the first key of the block.
struct RowMaskRange {
  int32_t begin, end;
};

struct Weights {
  float* s;       // [rows][width]: q.k on entry, weights on exit
  float* grad_s;  // [rows][width]: grad_o.v on entry, the gradient of q.k on exit
  int rows, width;
  float scale, softcap;
  const float *lse, *delta;  // by row
  const RowMaskRange* mask;  // by row; null: every row attends to all of the keys
  float slope;               // of ALiBi, else 0
  int64_t diagonal;          // of the first row, counted from the first key of the block
};

inline constexpr float largest_float = std::numeric_limits<float>::max();

// A weight is at most 1, and in exact arithmetic score - lse at most 0. Where scores are large, the rounding of lse
// may be hundreds, and lse less than the largest score. The smaller of the two, less lse, gives a weight of 1 then. It
// also separates the product with the scale, which is rounded as in the forward pass, from the difference: fused, they
// would not give the scores of the forward pass. A NaN score stays NaN.
template <bool capped, bool sloped>
HWY_NOINLINE void weigh_rows(const Weights& w) {
  const Floats d;
  const Vector scale = hn::Set(d, w.scale), in = hn::Set(d, capped ? 1.0f : w.scale);
  // 1 / softcap by way of a power of two: 1 / a tiny softcap is infinite.
  const float power = capped && w.softcap < 0x1p-64f ? 0x1p64f : 1.0f;
  const Vector scale_up = hn::Set(d, power), per_cap = hn::Set(d, capped ? 1 / (w.softcap * power) : 0.0f);
  float *s = w.s, *grad_s = w.grad_s;
  for (int i = 0; i < w.rows; ++i, s += w.width, grad_s += w.width) {
    // An infinite lse is replaced by the largest float, which an infinite score exceeds.
    const float its_lse = w.lse[i] > largest_float ? largest_float : w.lse[i];
    const Vector lse = hn::Set(d, its_lse), delta = hn::Set(d, w.delta[i]);
    const Vector diagonal = hn::Set(d, sloped ? static_cast<float>(w.diagonal + i) : 0.0f);
    for (int lane = 0; lane < w.width; lane += vector_lanes) {
      const Vector plain = hn::Mul(hn::Load(d, s + lane), in);
      Vector score = plain;
      if constexpr (sloped)
        score = with_alibi(plain, hn::Set(d, w.slope), diagonal, hn::Iota(d, static_cast<float>(lane)));
      const Vector least = hn::IfThenElse(hn::Lt(lse, score), lse, score);
      const Vector weight = exponential(hn::Sub(least, lse));
      Vector gradient = hn::Mul(weight, hn::Sub(hn::Load(d, grad_s + lane), delta));
      if constexpr (capped) {  // the derivative of tanh
        const Vector height = hn::Mul(hn::Mul(plain, scale_up), per_cap);
        gradient = hn::Mul(gradient, hn::NegMulAdd(height, height, hn::Set(d, 1.0f)));
      }
      hn::Store(weight, d, s + lane);
      hn::Store(hn::Mul(gradient, scale), d, grad_s + lane);
    }
  }
}

// A masked key has weight 0, whatever its score is.
inline void mask_out(const Weights& w, int row) {
  const Floats d;
  const Ints ints;
  const auto begin = hn::Set(ints, w.mask[row].begin), end = hn::Set(ints, w.mask[row].end);
  for (int lane = 0; lane < w.width; lane += vector_lanes) {
    const auto j = hn::Iota(ints, lane);
    const auto attended = hn::RebindMask(d, hn::AndNot(hn::Lt(j, begin), hn::Lt(j, end)));
    for (float* const x : {w.s + row * w.width + lane, w.grad_s + row * w.width + lane})
      hn::Store(hn::IfThenElseZero(attended, hn::Load(d, x)), d, x);
  }
}

inline void weigh(const Weights& w) {
  if (w.softcap != 0) {
    cap(w.s, w.rows * w.width, w.scale, w.softcap);
    w.slope != 0 ? weigh_rows<true, true>(w) : weigh_rows<true, false>(w);
  } else {
    w.slope != 0 ? weigh_rows<false, true>(w) : weigh_rows<false, false>(w);
  }
  for (int i = 0; w.mask && i < w.rows; ++i)
    if (w.mask[i].begin > 0 || w.mask[i].end < w.width) mask_out(w, i);
}

}  // namespace froghopper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
