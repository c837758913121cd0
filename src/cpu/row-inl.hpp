// SPDX-License-Identifier: Apache-2.0
// cpu: a single query row that shares its keys with no other, as in decoding without GQA. As lanes of a vector it
// would be multiplied 16 times. Here vectors run along the head dim, and k and v are read once, in place and by rows,
// so that memory is the limit. In the softmax keys are lanes.
#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#if defined(FROGHOPPER_CPU_ROW_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FROGHOPPER_CPU_ROW_INL
#undef FROGHOPPER_CPU_ROW_INL
#else
#define FROGHOPPER_CPU_ROW_INL
#endif
#include "hwy/highway.h"
#include "src/cpu/convert-inl.hpp"
#include "src/cpu/multiply-inl.hpp"
#include "src/cpu/softmax-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace froghopper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <Dtype type>
struct EightBits {
  uint8_t bits;
};
// The types of rows: float, Highway's 16-bit types, EightBits.
template <class T>
inline constexpr Dtype type_of = Dtype::f32;
template <>
inline constexpr Dtype type_of<hwy::float16_t> = Dtype::f16;
template <>
inline constexpr Dtype type_of<hwy::bfloat16_t> = Dtype::bf16;
template <Dtype type>
inline constexpr Dtype type_of<EightBits<type>> = type;

template <class T, class D>
HWY_INLINE hn::Vec<D> load_floats(D d, const T* row) {
  if constexpr (std::is_same_v<T, float>) {
    return hn::LoadU(d, row);
  } else if constexpr (one_by_one) {
    float values[hn::MaxLanes(D())];
    for (size_t i = 0; i < hn::MaxLanes(d); ++i) values[i] = froghopper::load(row, i, element_of(type_of<T>));
    return hn::LoadU(d, values);
  } else if constexpr (is_8_bit(type_of<T>)) {
    return load_8_bits<type_of<T>>(d, &row->bits);
  } else {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<T, D>(), row));
  }
}
// The next columns of a row, of which `left` are left; zeros beyond.
template <class T>
HWY_INLINE Vector load_columns(const T* row, [[maybe_unused]] int left) {
  const Floats d;
#if HWY_TARGET == HWY_AVX3  // dims are multiples of 8
  if (left < vector_lanes) return hn::ZeroExtendVector(d, load_floats(hn::Half<Floats>(), row));
#endif
  return load_floats(d, row);
}

// s[key] = q . k
template <int Keys, class T>
HWY_INLINE void score_keys(const float* q, const T* k, int64_t k_row, int dim, float* s) {
  const Floats d;
  Vector sums[Keys];
  for (Vector& sum : sums) sum = hn::Zero(d);
  for (int c = 0; c < dim; c += vector_lanes) {
    const Vector of_q = load_columns(q + c, dim - c);
    for (int j = 0; j < Keys; ++j) sums[j] = hn::MulAdd(of_q, load_columns(k + j * k_row + c, dim - c), sums[j]);
  }
  for (int j = 0; j < Keys; ++j) s[j] = hn::GetLane(hn::SumOfLanes(d, sums[j]));
}
// Eight keys at a time: a sum can be added to only every 4 cycles, and two additions begin in each.
template <class T>
void score_row(const float* q, const T* k, int64_t k_row, int keys, int dim, float* s) {
  int j = 0;
  for (; j + 8 <= keys; j += 8) score_keys<8>(q, k + j * k_row, k_row, dim, s + j);
  for (; j < keys; ++j) score_keys<1>(q, k + j * k_row, k_row, dim, s + j);
}

// As descale (softmax-inl.hpp). s and of_keys have memory for whole vectors.
inline void descale_row(float* s, int keys, const float* of_keys, float of_q, float mean_score) {
  const Floats d;
  for (int j = 0; j < keys; j += vector_lanes) {
    const Vector of_k = hn::Mul(hn::LoadU(d, s + j), hn::LoadU(d, of_keys + j));
    hn::StoreU(hn::MulAdd(of_k, hn::Set(d, of_q), hn::Set(d, mean_score)), d, s + j);
  }
}
inline void times_row(float* s, int keys, const float* factors) {  // likewise
  const Floats d;
  for (int j = 0; j < keys; j += vector_lanes)
    hn::StoreU(hn::Mul(hn::LoadU(d, s + j), hn::LoadU(d, factors + j)), d, s + j);
}

// s [keys], with memory for whole vectors, holds q.k on entry, and weights on exit. All lanes of `state` are the row.
// slope and diagonal: as in LaneSlopes; 0 without ALiBi. Scores go through memory as in weigh_vectors. scale and
// slope: as for softmax().
inline void weigh_row(float* s, int keys, float scale, float softcap, float slope, float diagonal,
                      const SoftmaxState& state) {
  const Floats d;
  const int padded = (keys + vector_lanes - 1) / vector_lanes * vector_lanes;
  std::fill(s + keys, s + padded, 0.0f);
  if (softcap != 0) cap(s, padded, std::exchange(scale, 1.0f), softcap);
  const Vector old[1] = {hn::Load(d, state.row_max)};
  Vector most = old[0], sums = hn::Zero(d);
  for (int j = 0; j < padded; j += vector_lanes) {
    Vector score = hn::Mul(hn::LoadU(d, s + j), hn::Set(d, scale));
    if (slope != 0)
      score = with_alibi(score, hn::Set(d, slope), hn::Set(d, diagonal), hn::Iota(d, static_cast<float>(j)));
    score = hn::IfThenElse(hn::FirstN(d, keys - j), score, hn::Set(d, minus_infinity));
    hn::StoreU(score, d, s + j);
    most = hn::Max(score, most);  // in this order a NaN score does not change it
  }
  const Vector largest[1] = {hn::MaxOfLanes(d, most)}, base[1] = {base_of(largest[0])};
  for (int j = 0; j < padded; j += vector_lanes) {
    const Vector below = hn::Mul(hn::Sub(hn::LoadU(d, s + j), base[0]), hn::Set(d, state.score_unit));
    const Vector weight = exponential(below, state.weight_shift);
    hn::StoreU(weight, d, s + j);
    sums = hn::Add(sums, weight);
  }
  const Vector sum[1] = {hn::SumOfLanes(d, sums)};
  update_state<1>(state, old, base, largest, sum);
}

// o[column] = rescale o + sum over keys of weight v, for some vectors of columns. rescale 0: o is uninitialised. o has
// memory for whole vectors. As in other products, the sum begins at 0.
template <int Vectors, class T>
HWY_INLINE void output_columns(const float* weights, const T* v, int64_t v_row, int keys, int left, float rescale,
                               float* o) {
  const Floats d;
  Vector sums[Vectors];
  for (Vector& sum : sums) sum = hn::Zero(d);
  for (int j = 0; j < keys; ++j) {
    const Vector weight = hn::Set(d, weights[j]);
    for (int i = 0; i < Vectors; ++i)
      sums[i] = hn::MulAdd(weight, load_columns(v + j * v_row + i * vector_lanes, left - i * vector_lanes), sums[i]);
  }
  for (int i = 0; i < Vectors; ++i) {
    float* const to = o + i * vector_lanes;
    hn::StoreU(rescale == 0 ? sums[i] : hn::MulAdd(hn::LoadU(d, to), hn::Set(d, rescale), sums[i]), d, to);
  }
}
// As many columns at a time as registers hold sums of, so that v is read by rows.
template <class T>
void output_row(const float* weights, const T* v, int64_t v_row, int keys, int dim, float rescale, float* o) {
  int c = 0;
  for (; c + 8 * vector_lanes <= dim; c += 8 * vector_lanes)
    output_columns<8>(weights, v + c, v_row, keys, /*left=*/8 * vector_lanes, rescale, o + c);
  for (; c + 4 * vector_lanes <= dim; c += 4 * vector_lanes)
    output_columns<4>(weights, v + c, v_row, keys, /*left=*/4 * vector_lanes, rescale, o + c);
  for (; c < dim; c += vector_lanes) output_columns<1>(weights, v + c, v_row, keys, dim - c, rescale, o + c);
}

}  // namespace froghopper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
