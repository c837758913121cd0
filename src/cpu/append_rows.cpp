// SPDX-License-Identifier: Apache-2.0
// cpu: the heads of a new row, normed, rotated, divided by their scale and rounded, with vectors.
#include <cmath>

#include "contract/quantise.h"
#include "src/cpu/append_work.hpp"

#define HWY_IS_DEBUG_BUILD 0
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/cpu/append_rows.cpp"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
#include "src/cpu/convert-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace froghopper::cpu::HWY_NAMESPACE {

inline void rotate(const HeadsToAppend& row, float* x) {
  const int half = row.rotary_dim / 2;
  if (row.interleaved) {
    for (int i = 0; i < half; ++i) {
      const float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = a * row.cos[i] - b * row.sin[i];
      x[2 * i + 1] = b * row.cos[i] + a * row.sin[i];
    }
    return;
  }
  for (int i = 0; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    x[i] = a * row.cos[i] - b * row.sin[i];
    x[half + i] = b * row.cos[i] + a * row.sin[i];
  }
}

inline float largest_of(const float* x, int count) {
  const Eight d;
  auto largest = hn::Zero(d);
  for (int c = 0; c < count; c += eight) {
    const auto size = hn::Abs(hn::LoadU(d, x + c));
    largest = hn::IfThenElse(hn::Gt(size, largest), size, largest);
  }
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

inline void divide(float* x, int count, float divisor) {
  const Eight d;
  for (int c = 0; c < count; c += eight) hn::StoreU(hn::Div(hn::LoadU(d, x + c), hn::Set(d, divisor)), d, x + c);
}

void append_heads(const HeadsToAppend& row) {
  const bool copies = row.from == row.to && !row.norm && row.rotary_dim == 0;
  for (int head = 0; head < row.heads; ++head) {
    const char* const from = static_cast<const char*>(row.source) + head * row.stride_from * size_of(row.from);
    char* const to = static_cast<char*>(row.destination) + head * row.stride_to * size_of(row.to);
    if (copies) {
      std::memmove(to, from, static_cast<size_t>(row.dim) * size_of(row.from));
      continue;
    }
    float* const x = row.scratch;
    to_floats(from, row.from, row.dim, x);
    if (row.norm) {
      times(1 / std::sqrt(dot(x, x, row.dim) / static_cast<float>(row.dim) + row.epsilon), row.dim, x);
      if (row.weights) times(row.weights, row.dim, x);
    }
    if (row.rotary_dim > 0) rotate(row, x);
    if (row.scales) {
      float& scale = row.scales[head * row.stride_scales];
      if (row.own_scales) {
        const float largest = largest_of(x, row.dim);
        scale = largest > 0 ? std::max(largest / froghopper::largest_of(row.to), smallest_scale) : 1;
      }
      divide(x, row.dim, scale);
    }
    from_floats(x, row.to, row.dim, to);
  }
}

}  // namespace froghopper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
