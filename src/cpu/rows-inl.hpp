// SPDX-License-Identifier: Apache-2.0
// cpu: operations of the backward pass on single rows of the user's tensors.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "src/cpu/gradient_work.hpp"
#include "src/cpu/work.hpp"

#if defined(FROGHOPPER_CPU_ROWS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FROGHOPPER_CPU_ROWS_INL
#undef FROGHOPPER_CPU_ROWS_INL
#else
#define FROGHOPPER_CPU_ROWS_INL
#endif
#include "hwy/highway.h"
#include "src/cpu/convert-inl.hpp"
#include "src/cpu/gate-inl.hpp"
#include "src/cpu/weigh-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace froghopper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Lanes are loaded and stored four at a time, and in whole vectors.
inline int padded(int keys) {
  constexpr int lane_group = std::max(4, vector_lanes);
  return (keys + lane_group - 1) / lane_group * lane_group;
}

template <class Void>  // void or const void
Void* row_at(Void* first, Dtype type, int64_t stride, int64_t index) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  return static_cast<Byte*>(first) + index * stride * size_of(type);
}

// adds: to the floats at `to`; `from` holds the sum then.
inline void store_row(float* from, int dim, Dtype type, bool adds, void* to) {
  if (adds) {
    const Eight d;
    const float* const before = static_cast<const float*>(to);
    for (int i = 0; i < dim; i += eight)
      hn::StoreU(hn::Add(hn::LoadU(d, before + i), hn::LoadU(d, from + i)), d, from + i);
  }
  from_floats(from, type, dim, to);
}

inline float dot_rows(const void* a, const void* b, Dtype type, int dim) {
  float x[dim_max], y[dim_max];
  to_floats(a, type, dim, x);
  to_floats(b, type, dim, y);
  return dot(x, y, dim);
}

inline bool row_is_finite(const void* row, Dtype type, int dim) {
  float x[dim_max];
  to_floats(row, type, dim, x);
  return all_finite(x, dim);
}

// The gradient of row i's output before the gate, rounded to the type of grad_o, in `room` of dim_max floats. Without a
// gate it is grad_o.
inline const void* gated_grad_o(const QTile& t, int i, Dtype type, int dim, float* room) {
  const void* const grad_o = row_at(t.grad_o, type, t.stride_grad_o, i);
  if (!t.gate) return grad_o;
  float x[dim_max];
  to_floats(grad_o, type, dim, x);
  apply_gate(row_at(t.gate, type, t.stride_gate, i), type, dim, x);
  from_floats(x, type, dim, room);
  return room;
}

// grad_o o (1 - sigmoid), for o has the factor sigmoid already; 0 for a row that attends to no key.
inline void store_grad_gate(const QTile& t, int i, Dtype type, int dim) {
  float x[dim_max] = {}, y[dim_max];
  if (!t.fully_masked[i]) {
    sigmoids(row_at(t.gate, type, t.stride_gate, i), type, -1, dim, x);
    to_floats(row_at(t.o, type, t.stride_o, i), type, dim, y);
    times(y, dim, x);
    to_floats(row_at(t.grad_o, type, t.stride_grad_o, i), type, dim, y);
    times(y, dim, x);
  }
  from_floats(x, type, dim, row_at(t.grad_gate, type, t.stride_grad_gate, i));
}

// total += sum, and sum = 0. adds: false where total is uninitialised.
inline void move_to_total(float* sum, int count, float* total, bool adds) {
  if (adds) {
    plus(sum, 1, count, total);
  } else {
    std::copy_n(sum, count, total);
  }
  std::fill_n(sum, count, 0.0f);
}

// a b + c with one rounding, as in the products.
inline float fused(float a, float b, float c) {
  const hn::CappedTag<float, 1> d;
  return hn::GetLane(hn::MulAdd(hn::Set(d, a), hn::Set(d, b), hn::Set(d, c)));
}

// sum [dim][width] += x weights, for the keys that a row attends to.
inline void add_attended(const float* weights, RowMaskRange mask, const void* row, Dtype type, int dim, float* sum,
                         int width) {
  if (mask.begin >= mask.end) return;  // the row may hold anything then
  float x[dim_max];
  to_floats(row, type, dim, x);
  for (int c = 0; c < dim; ++c) {
    for (int j = mask.begin; j < mask.end; ++j) sum[c * width + j] = fused(weights[j], x[c], sum[c * width + j]);
  }
}

// sum [dim] += the sum of weights k over the keys that a row attends to.
inline void add_attended_keys(const float* weights, RowMaskRange mask, const void* k, int64_t stride, Dtype type,
                              int dim, float* sum) {
  float x[dim_max], more[dim_max] = {};
  for (int j = mask.begin; j < mask.end; ++j) {
    to_floats(row_at(k, type, stride, j), type, dim, x);
    for (int c = 0; c < dim; ++c) more[c] = fused(weights[j], x[c], more[c]);
  }
  plus(more, 1, dim, sum);
}

}  // namespace froghopper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
