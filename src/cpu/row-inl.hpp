// SPDX-License-Identifier: Apache-2.0
// cpu: the two products of a query row that is alone with its keys: one query without a group, as in decoding. Filled
// up to a vector of lanes it would be multiplied 16 times; so here vectors run along the columns, and k and v are read
// once, row by row, which takes as long as memory does.
#include <cstdint>

#if defined(FROGHOPPER_CPU_ROW_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FROGHOPPER_CPU_ROW_INL
#undef FROGHOPPER_CPU_ROW_INL
#else
#define FROGHOPPER_CPU_ROW_INL
#endif
#include "hwy/highway.h"
#include "src/cpu/multiply-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace froghopper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The next columns of a row of which so many are left; zeros beyond.
HWY_INLINE Vector load_columns(const float* row, int left) {
  const Floats d;
  return left >= vector_lanes ? hn::LoadU(d, row) : hn::MaskedLoad(hn::FirstN(d, left), d, row);
}

// s[key][each of width] = q . k: the same score in all lanes of a vector, which the softmax takes as lanes alike.
template <int Keys>
HWY_INLINE void score_keys(const float* q, const float* k, int64_t k_row, int dim, float* s, int width) {
  const Floats d;
  Vector sums[Keys];
  for (Vector& sum : sums) sum = hn::Zero(d);
  for (int c = 0; c < dim; c += vector_lanes) {
    const Vector of_q = load_columns(q + c, dim - c);
    for (int j = 0; j < Keys; ++j) sums[j] = hn::MulAdd(of_q, load_columns(k + j * k_row + c, dim - c), sums[j]);
  }
  for (int j = 0; j < Keys; ++j) {
    const Vector score = hn::SumOfLanes(d, sums[j]);
    for (int lane = 0; lane < width; lane += vector_lanes) hn::Store(score, d, s + j * width + lane);
  }
}
// Eight keys at once: a sum can be added to every 4 cycles only, and two adds begin in each.
inline void score_row(const float* q, const float* k, int64_t k_row, int keys, int dim, float* s, int width) {
  int j = 0;
  for (; j + 8 <= keys; j += 8) score_keys<8>(q, k + j * k_row, k_row, dim, s + j * width, width);
  for (; j < keys; ++j) score_keys<1>(q, k + j * k_row, k_row, dim, s + j * width, width);
}

// o[column] = age o + sum over keys of weights[key][0] v, for some vectors of columns; age 0: o holds nothing yet. o
// has room for whole vectors.
template <int Vectors>
HWY_INLINE void output_columns(const float* weights, int width, const float* v, int64_t v_row, int keys, int left,
                               float age, float* o) {
  const Floats d;
  Vector sums[Vectors];
  for (int i = 0; i < Vectors; ++i)
    sums[i] = age == 0 ? hn::Zero(d) : hn::Mul(hn::LoadU(d, o + i * vector_lanes), hn::Set(d, age));
  for (int j = 0; j < keys; ++j) {
    const Vector weight = hn::Set(d, weights[j * width]);
    for (int i = 0; i < Vectors; ++i)
      sums[i] = hn::MulAdd(weight, load_columns(v + j * v_row + i * vector_lanes, left - i * vector_lanes), sums[i]);
  }
  for (int i = 0; i < Vectors; ++i) hn::StoreU(sums[i], d, o + i * vector_lanes);
}
// As many columns at once as registers hold sums of, so that v is read along its rows.
inline void output_row(const float* weights, int width, const float* v, int64_t v_row, int keys, int dim, float age,
                       float* o) {
  int c = 0;
  for (; c + 8 * vector_lanes <= dim; c += 8 * vector_lanes)
    output_columns<8>(weights, width, v + c, v_row, keys, /*left=*/8 * vector_lanes, age, o + c);
  for (; c < dim; c += vector_lanes) output_columns<1>(weights, width, v + c, v_row, keys, dim - c, age, o + c);
}

}  // namespace froghopper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
