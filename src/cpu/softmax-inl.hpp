// SPDX-License-Identifier: Apache-2.0
// cpu: the online softmax of one tile, lane by lane. A lane keeps the largest score so far and the sum of its weights,
// e^(score - largest); when a tile brings a larger score, what was summed before shrinks by the lane's age.
#include <cmath>
#include <cstdint>

#if defined(FROGHOPPER_CPU_SOFTMAX_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FROGHOPPER_CPU_SOFTMAX_INL
#undef FROGHOPPER_CPU_SOFTMAX_INL
#else
#define FROGHOPPER_CPU_SOFTMAX_INL
#endif
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "src/cpu/multiply-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace froghopper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Ints = hn::RebindToSigned<Floats>;
inline constexpr float minus_infinity = -__builtin_inff();

// e^x for x <= 0, within 0.7 units in the last place; 0 below 2^-126; NaN for NaN.
// x log2(e) = n + r with n whole and |r| <= 1/2; 2^r is a polynomial of degree 6 (minimax, 1.9e-9), 2^n an exponent.
// Adding 1.5 x 2^23 rounds to n and leaves it in the sum's lowest bits; adding 127, the exponent of 1, with it saves an
// addition. Below -126 that exponent would not be one, and the result is taken as 0.
HWY_INLINE Vector exponential(Vector x) {
  const Floats d;
  const Ints ints;
  const Vector log2e = hn::Set(d, 1.44269504f);
  const Vector rounder = hn::Set(d, 12582912.0f + 127.0f);
  const Vector shifted = hn::MulAdd(x, log2e, rounder);
  const Vector r = hn::MulSub(x, log2e, hn::Sub(shifted, rounder));
  Vector y = hn::Set(d, 1.53458120e-4f);
  y = hn::MulAdd(y, r, hn::Set(d, 1.33999314e-3f));
  y = hn::MulAdd(y, r, hn::Set(d, 9.61848896e-3f));
  y = hn::MulAdd(y, r, hn::Set(d, 5.55032878e-2f));
  y = hn::MulAdd(y, r, hn::Set(d, 2.40226469e-1f));
  y = hn::MulAdd(y, r, hn::Set(d, 6.93147206e-1f));
  y = hn::MulAdd(y, r, hn::Set(d, 1.0f));
  const Vector power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(ints, shifted)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -126 * 0.693147181f)), hn::Mul(y, power));
}

// From q.k to the score.
struct Scoring {
  float scale, softcap;
  HWY_INLINE Vector operator()(Vector q_dot_k) const {
    const Floats d;
    const Vector scaled = hn::Mul(q_dot_k, hn::Set(d, scale));
    if (softcap == 0) return scaled;
    return hn::Mul(hn::Set(d, softcap), hn::Tanh(d, hn::Div(scaled, hn::Set(d, softcap))));
  }
};

// Keys of a tile that each lane sees, counted from the tile's first.
struct Sight {
  HWY_ALIGN int32_t begin[block_lanes], end[block_lanes];
};

HWY_INLINE Vector hide(Vector score, const Sight& sight, int key, int lane, Vector hidden) {
  const Ints ints;
  const auto j = hn::Set(ints, key);
  const auto before = hn::Lt(j, hn::Load(ints, sight.begin + lane)),
             seen = hn::Lt(j, hn::Load(ints, sight.end + lane));
  const Floats d;
  return hn::IfThenElse(hn::RebindMask(d, hn::AndNot(before, seen)), score, hidden);
}

// What the lanes of a block know about the keys so far.
struct Statistics {
  float* largest;  // score; -inf before the first key
  float* sum;      // of weights
  float* age;      // what this tile multiplied earlier sums with
};

// s [keys][width], q.k on entry, weights on exit. sight: null where every lane sees all of them.
inline void softmax(float* s, int keys, int width, const Scoring& scoring, const Sight* sight,
                    const Statistics& known) {
  const Floats d;
  for (int lane = 0; lane < width; lane += vector_lanes) {
    const Vector old = hn::Load(d, known.largest + lane);
    Vector largest = old;
    for (int j = 0; j < keys; ++j) {
      float* const at = s + j * width + lane;
      Vector score = scoring(hn::Load(d, at));
      if (sight) score = hide(score, *sight, j, lane, hn::Set(d, minus_infinity));
      hn::Store(score, d, at);
      largest = hn::Max(score, largest);  // in this order a NaN score leaves it as it is
    }
    hn::Store(largest, d, known.largest + lane);

    // A lane that has seen no key yet has no largest score; any number will do for its weights to become 0.
    const Vector base = hn::IfThenElse(hn::Eq(largest, hn::Set(d, minus_infinity)), hn::Zero(d), largest);
    const Vector age = exponential(hn::Sub(old, base));
    Vector sum = hn::Zero(d);
    for (int j = 0; j < keys; ++j) {
      float* const at = s + j * width + lane;
      const Vector weight = exponential(hn::Sub(hn::Load(d, at), base));
      hn::Store(weight, d, at);
      sum = hn::Add(sum, weight);
    }
    hn::Store(age, d, known.age + lane);
    hn::Store(hn::MulAdd(hn::Load(d, known.sum + lane), age, sum), d, known.sum + lane);
  }
}

}  // namespace froghopper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
