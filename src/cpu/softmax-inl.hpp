// SPDX-License-Identifier: Apache-2.0
// cpu: the online softmax of one tile, lane by lane. A lane keeps its row max and its row sum, the sum of its weights
// e^(score - row_max). When a tile has a larger score, the earlier sums are multiplied by the rescale factor of the
// lane.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>

#if defined(FROGHOPPER_CPU_SOFTMAX_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FROGHOPPER_CPU_SOFTMAX_INL
#undef FROGHOPPER_CPU_SOFTMAX_INL
#else
#define FROGHOPPER_CPU_SOFTMAX_INL
#endif
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "src/cpu/multiply-inl.hpp"
#include "src/cpu/pairs-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace froghopper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Ints = hn::RebindToSigned<Floats>;
inline constexpr float minus_infinity = -__builtin_inff();

// 2^-weight_shift e^x for x <= 0, within 0.7 units in the last place; 0 below 2^-126; NaN for NaN. x log2(e) = n + r
// with an integer n and |r| <= 1/2; 2^r is a polynomial of degree 6 (minimax, 1.9e-9). Adding 1.5 x 2^23 rounds to n
// and leaves it in the lowest bits of the sum; 127, the exponent of 1, is added in the same step. Below -126 the
// exponent would be invalid, and the result is 0. `weight_shift` is part of the exponent, so it costs nothing and
// rounds nothing.
HWY_INLINE Vector exponential(Vector x, int weight_shift = 0) {
  const Floats d;
  const Ints ints;
  const Vector log2e = hn::Set(d, 1.44269504f);
  const Vector rounder = hn::Set(d, 12582912.0f + static_cast<float>(127 - weight_shift));
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
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, static_cast<float>(weight_shift - 126) * 0.693147181f)),
                            hn::Mul(y, power));
}

// Keys of a tile that each lane attends to, counted from the first key of the tile.
struct LaneMaskRange {
  HWY_ALIGN int32_t begin[block_lanes], end[block_lanes];
};

// `value` where the lane attends to the key, else `masked`.
HWY_INLINE Vector where_attended(const LaneMaskRange& mask, int key, int lane, Vector value, Vector masked) {
  const Floats d;
  const Ints ints;
  const auto j = hn::Set(ints, key);
  const auto before = hn::Lt(j, hn::Load(ints, mask.begin + lane)),
             ahead = hn::Lt(j, hn::Load(ints, mask.end + lane));
  return hn::IfThenElse(hn::RebindMask(d, hn::AndNot(before, ahead)), value, masked);
}

// s [keys][width]: masked scores become -inf.
inline void mask_out(float* s, int keys, int width, const LaneMaskRange& mask) {
  const Floats d;
  for (int j = 0; j < keys; ++j, s += width) {
    for (int lane = 0; lane < width; lane += vector_lanes) {
      hn::Store(where_attended(mask, j, lane, hn::Load(d, s + lane), hn::Set(d, minus_infinity)), d, s + lane);
    }
  }
}

// For 8-bit q and k: s [keys][width] holds products without scales on entry, and with them on exit. of_keys: the
// scales of k; of_lanes: the scales of q; mean_scores: q times the mean of k. The scales are multiplied one after the
// other, since the product of two large ones may exceed the largest float.
inline void descale(float* s, int keys, int width, const float* of_keys, const float* of_lanes,
                    const float* mean_scores) {
  const Floats d;
  for (int j = 0; j < keys; ++j, s += width) {
    const Vector of_key = hn::Set(d, of_keys[j]);
    for (int lane = 0; lane < width; lane += vector_lanes) {
      const Vector of_k = hn::Mul(hn::Load(d, s + lane), of_key);
      hn::Store(hn::MulAdd(of_k, hn::Load(d, of_lanes + lane), hn::Load(d, mean_scores + lane)), d, s + lane);
    }
  }
}

// rows [count][width], each times its factor.
inline void scale_rows(float* rows, int count, int width, const float* factors) {
  const Floats d;
  for (int j = 0; j < count; ++j, rows += width) {
    for (int lane = 0; lane < width; lane += vector_lanes)
      hn::Store(hn::Mul(hn::Load(d, rows + lane), hn::Set(d, factors[j])), d, rows + lane);
  }
}

// out [rows][width] = rescale out + scale product. adds: false where out is uninitialised; rescale: null for 1.
inline void add_scaled(const float* product, float scale, int rows, int width, bool adds, const float* rescale,
                       float* out) {
  const Floats d;
  for (int r = 0; r < rows; ++r, product += width, out += width) {
    for (int lane = 0; lane < width; lane += vector_lanes) {
      Vector sum = adds ? hn::Load(d, out + lane) : hn::Zero(d);
      if (rescale) sum = hn::Mul(sum, hn::Load(d, rescale + lane));
      hn::Store(hn::MulAdd(hn::Load(d, product + lane), hn::Set(d, scale), sum), d, out + lane);
    }
  }
}

inline void multiply(float* s, int count, float factor) {
  const Floats d;
  for (int i = 0; i < count; i += vector_lanes) hn::Store(hn::Mul(hn::Load(d, s + i), hn::Set(d, factor)), d, s + i);
}

// rows [count][width] holds weights times the scale of their key. They are rounded as parts of the largest scale, which
// is returned: where all scales are equal, a weight of 1 is not rounded.
inline float round_scaled(float* rows, int count, int width, const float* scales, Pair* to) {
  const float largest = *std::max_element(scales, scales + count);
  multiply(rows, count * width, 1 / largest);
  round_rows_across(rows, count, width, to);
  return largest;
}

// s [count], q.k on entry: softcap tanh(scale q.k / softcap) on exit.
inline void cap(float* s, int count, float scale, float softcap) {
  const Floats d;
  for (int i = 0; i < count; i += vector_lanes) {
    const Vector scaled = hn::Mul(hn::Load(d, s + i), hn::Set(d, scale));
    hn::Store(hn::Mul(hn::Tanh(d, hn::Div(scaled, hn::Set(d, softcap))), hn::Set(d, softcap)), d, s + i);
  }
}

// ALiBi: the slope of each lane, and the key at distance 0, counted from the first key of the tile. Integers below
// 2^24 are exact as floats; above, a distance is as exact as any float.
struct LaneSlopes {
  HWY_ALIGN float slope[block_lanes], diagonal[block_lanes];
};

// score - slope |diagonal - key|. The score is rounded first, so that the backward pass finds the same.
HWY_INLINE Vector with_alibi(Vector score, Vector slope, Vector diagonal, Vector key) {
  return hn::NegMulAdd(slope, hn::Abs(hn::Sub(diagonal, key)), score);
}

// s [keys][width] holds q.k on entry, and scores on exit.
inline void add_alibi(float* s, int keys, int width, float scale, const LaneSlopes& lanes) {
  const Floats d;
  for (int j = 0; j < keys; ++j, s += width) {
    for (int lane = 0; lane < width; lane += vector_lanes) {
      const Vector score = hn::Mul(hn::Load(d, s + lane), hn::Set(d, scale));
      hn::Store(with_alibi(score, hn::Load(d, lanes.slope + lane), hn::Load(d, lanes.diagonal + lane),
                           hn::Set(d, static_cast<float>(j))),
                d, s + lane);
    }
  }
}

// The state of the online softmax for the lanes of a block.
struct SoftmaxState {
  float* row_max;        // in score units; -inf before the first key
  float* row_sum;        // of weights
  float* rescale;        // the factor of earlier sums in this tile
  int weight_shift;      // weights are 2^-weight_shift e^(score - row_max)
  float score_unit = 1;  // a power of two; not 1 where scores may exceed the largest float, see score_unit_for
};

// In score units a finite product times a scale is finite, with any slope (contract/alibi.h). A scale is at most
// 2^127.
inline float score_unit_for(float scale, bool alibi) {
  int exponent = 0;
  std::frexp(scale, &exponent);  // scale < 2^exponent
  return std::ldexp(1.0f, std::clamp(exponent + (alibi ? 1 : 0), 0, 127));
}

// The score of weight 1. A lane without scores has a row max of -inf; with any finite base its weights are 0.
HWY_INLINE Vector base_of(Vector largest) {
  const Floats d;
  return hn::IfThenElse(hn::Eq(largest, hn::Set(d, minus_infinity)), hn::Zero(d), largest);
}

// old: the row max before this tile; largest: after it; sum: of the weights of this tile.
template <int vectors>
HWY_INLINE void update_state(const SoftmaxState& state, const Vector (&old)[vectors], const Vector (&base)[vectors],
                             const Vector (&largest)[vectors], const Vector (&sum)[vectors]) {
  const Floats d;
#pragma GCC unroll 8
  for (int c = 0; c < vectors; ++c) {
    const int lane = c * vector_lanes;
    const Vector rescale = exponential(hn::Mul(hn::Sub(old[c], base[c]), hn::Set(d, state.score_unit)));
    hn::Store(rescale, d, state.rescale + lane);
    hn::Store(largest[c], d, state.row_max + lane);
    hn::Store(hn::MulAdd(hn::Load(d, state.row_sum + lane), rescale, sum[c]), d, state.row_sum + lane);
  }
}

// s [keys][vectors] holds scores in score units on entry, and their differences from the base on exit.
template <int vectors>
HWY_NOINLINE void differences(float* s, int keys, const Vector (&base)[vectors], float score_unit) {
  const Floats d;
  for (int j = 0; j < keys; ++j) {
    for (int c = 0; c < vectors; ++c, s += vector_lanes)
      hn::Store(hn::Mul(hn::Sub(hn::Load(d, s), base[c]), hn::Set(d, score_unit)), d, s);
  }
}

// s [keys][vectors] holds q.k on entry, and weights on exit. Scaled scores go through memory and not through
// registers: a compiler that fused the product with the difference would subtract a rounded row max from a product
// that is not rounded, and with scores of 10^12 a weight could be e^10000. All vectors of a key are computed side by
// side, so that one's additions run while another's wait.
template <int vectors>
HWY_NOINLINE void weigh_vectors(float* s, int keys, float scale, const SoftmaxState& state) {
  const Floats d;
  Vector old[vectors], largest[vectors], base[vectors], sum[vectors];
#pragma GCC unroll 8
  for (int c = 0; c < vectors; ++c) largest[c] = old[c] = hn::Load(d, state.row_max + c * vector_lanes);
  float* at = s;
  for (int j = 0; j < keys; ++j) {
#pragma GCC unroll 8
    for (int c = 0; c < vectors; ++c, at += vector_lanes) {
      const Vector score = hn::Mul(hn::Load(d, at), hn::Set(d, scale));
      hn::Store(score, d, at);
      largest[c] = hn::Max(score, largest[c]);  // in this order a NaN score does not change it
    }
  }
#pragma GCC unroll 8
  for (int c = 0; c < vectors; ++c) {
    base[c] = base_of(largest[c]);
    sum[c] = hn::Zero(d);
  }
  Vector from[vectors];
#pragma GCC unroll 8
  for (int c = 0; c < vectors; ++c) from[c] = state.score_unit == 1 ? base[c] : hn::Zero(d);
  if (state.score_unit != 1) differences<vectors>(s, keys, base, state.score_unit);
  at = s;
  for (int j = 0; j < keys; ++j) {
#pragma GCC unroll 8
    for (int c = 0; c < vectors; ++c, at += vector_lanes) {
      const Vector weight = exponential(hn::Sub(hn::Load(d, at), from[c]), state.weight_shift);
      hn::Store(weight, d, at);
      sum[c] = hn::Add(sum[c], weight);
    }
  }
  update_state<vectors>(state, old, base, largest, sum);
}

#if HWY_TARGET == HWY_AVX3
// As weigh_vectors, where only pairs of bf16 are needed: `to` [keys / 2][vectors] holds the weights of two keys, and
// zeros for a missing last key. scale is positive, so the row max is the scaled maximum. Scores are scaled again
// instead of stored; the empty asm keeps the compiler from fusing that with the difference.
template <int vectors, bool by_instruction>
HWY_NOINLINE void weigh_pairs(const float* s, int keys, float scale, const SoftmaxState& state, Pair* to) {
  const Floats d;
  const hn::RebindToUnsigned<Floats> bits;
  Vector old[vectors], largest[vectors], base[vectors], sum[vectors];
#pragma GCC unroll 8
  for (int c = 0; c < vectors; ++c) largest[c] = hn::Set(d, minus_infinity);
  const float* at = s;
  for (int j = 0; j < keys; ++j) {
#pragma GCC unroll 8
    for (int c = 0; c < vectors; ++c, at += vector_lanes) largest[c] = hn::Max(hn::Load(d, at), largest[c]);
  }
#pragma GCC unroll 8
  for (int c = 0; c < vectors; ++c) {
    old[c] = hn::Load(d, state.row_max + c * vector_lanes);
    largest[c] = hn::Max(hn::Mul(largest[c], hn::Set(d, scale)), old[c]);
    base[c] = base_of(largest[c]);
    sum[c] = hn::Zero(d);
  }
  const auto weigh = [&](const float* score, int c) HWY_ATTR {
    Vector scaled = hn::Mul(hn::Load(d, score), hn::Set(d, scale));
    asm("" : "+v"(scaled.raw));
    const Vector weight = exponential(hn::Sub(scaled, base[c]), state.weight_shift);
    sum[c] = hn::Add(sum[c], weight);
    return weight;
  };
  at = s;
  for (int j = 0; j < keys; j += 2) {
#pragma GCC unroll 8
    for (int c = 0; c < vectors; ++c, at += vector_lanes, to += vector_lanes) {
      const Vector first = weigh(at, c), second = j + 1 < keys ? weigh(at + vectors * vector_lanes, c) : hn::Zero(d);
      hn::Store(round_two<by_instruction>(first, second), bits, reinterpret_cast<uint32_t*>(to));
    }
    at += vectors * vector_lanes;
  }
  update_state<vectors>(state, old, base, largest, sum);
}
#endif

using Weigh = void (*)(float*, int, float, const SoftmaxState&);

inline Weigh weigh_with(int vectors) {
  if constexpr (vectors_at_once == 4) {
    if (vectors == 4) return weigh_vectors<4>;
    if (vectors == 3) return weigh_vectors<3>;
  }
  return vectors == 2 ? weigh_vectors<2> : weigh_vectors<1>;
}

// s [keys][width] holds q.k on entry, and weights on exit. pairs: null, or memory for weights rounded to pairs; s is
// undefined then. mask: null where every lane attends to all of the keys; slopes: null without ALiBi. scale and slopes
// are divided by the score unit, which is 1 with softcap.
template <bool by_instruction>
void softmax(float* s, int keys, int width, float scale, float softcap, const LaneMaskRange* mask,
             const LaneSlopes* slopes, const SoftmaxState& state, Pair* pairs) {
  if (softcap != 0) cap(s, keys * width, std::exchange(scale, 1.0f), softcap);
  if (slopes) add_alibi(s, keys, width, std::exchange(scale, 1.0f), *slopes);
  if (scale == 0) multiply(s, keys * width, std::exchange(scale, 1.0f));  // before masking: 0 x -inf is NaN
  if (mask) mask_out(s, keys, width, *mask);
#if HWY_TARGET == HWY_AVX3
  if (pairs && state.score_unit == 1) {
    constexpr std::array with = {weigh_pairs<1, by_instruction>, weigh_pairs<2, by_instruction>,
                                 weigh_pairs<3, by_instruction>, weigh_pairs<4, by_instruction>};
    return with[width / vector_lanes - 1](s, keys, scale, state, pairs);
  }
#endif
  weigh_with(width / vector_lanes)(s, keys, scale, state);
  if (pairs) round_rows_across(s, keys, width, pairs);
}

}  // namespace froghopper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
