// SPDX-License-Identifier: Apache-2.0
// base: numbers as tensors store them. Reading is exact, writing rounds to nearest, ties to even.
// Bits only, no vector unit: for the oracle and the checks, where clarity counts and speed does not.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "src/base/element.hpp"

namespace froghopper {

// Half the distance between 1 and the next number: the largest relative error of one rounding.
constexpr double unit_roundoff(Element e) {
  switch (e) {
    case Element::f16: return 0x1p-11;
    case Element::bf16: return 0x1p-8;
    case Element::f32: return 0x1p-24;
    case Element::i32:
    case Element::i64: return 0;  // not rounded at all
  }
  return 0;
}

inline float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

inline uint16_t float_to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return static_cast<uint16_t>(bits >> 16 | 0x40);  // stays a NaN, whatever is cut off
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// fp16 has 5 bits of exponent around 15 and 10 of fraction, fp32 has 8 around 127 and 23.
inline float f16_to_float(uint16_t bits) {
  const uint32_t sign = bits >> 15, exponent = bits >> 10 & 31, fraction = bits & 1023;
  if (exponent == 0) return (sign ? -0x1p-24f : 0x1p-24f) * static_cast<float>(fraction);  // steps of 2^-24 around 0
  const uint32_t wide = exponent == 31 ? 255 : exponent + 127 - 15;                        // infinity and NaN
  return std::bit_cast<float>(sign << 31 | wide << 23 | fraction << 13);
}

inline uint16_t float_to_f16(float x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const float size = std::fabs(x);
  if (std::isnan(x)) return sign | 0x7e00;
  if (size >= 65520.0f) return sign | 0x7c00;  // 65504 is the largest number; from half a step above it: infinity
  // nearbyint rounds ties to even. Below 2^-14 the step is 2^-24; above, 2^-10 of the power of two below the number.
  // A fraction that rounds up to the next power of two carries into the exponent, which is the right number.
  if (size < 0x1p-14f) return sign | static_cast<uint16_t>(std::nearbyint(size * 0x1p24f));
  const int exponent = std::ilogb(size);
  const int fraction = static_cast<int>(std::nearbyint(std::ldexp(size, 10 - exponent)));  // 1024 to 2048
  return sign | static_cast<uint16_t>(((exponent + 15) << 10) + fraction - 1024);
}

inline float rounded(float x, Dtype t) {
  switch (t) {
    case Dtype::f16: return f16_to_float(float_to_f16(x));
    case Dtype::bf16: return bf16_to_float(float_to_bf16(x));
    case Dtype::f32: return x;
  }
  return x;
}

// One element of a tensor of numbers; integers are read as such.
inline float load(const void* tensor, int64_t i, Element e) {
  switch (e) {
    case Element::f16: return f16_to_float(static_cast<const uint16_t*>(tensor)[i]);
    case Element::bf16: return bf16_to_float(static_cast<const uint16_t*>(tensor)[i]);
    case Element::f32: return static_cast<const float*>(tensor)[i];
    case Element::i32: return static_cast<float>(static_cast<const int32_t*>(tensor)[i]);
    case Element::i64: return static_cast<float>(static_cast<const int64_t*>(tensor)[i]);
  }
  return 0;
}

inline void store(void* tensor, int64_t i, Element e, float x) {
  switch (e) {
    case Element::f16: static_cast<uint16_t*>(tensor)[i] = float_to_f16(x); return;
    case Element::bf16: static_cast<uint16_t*>(tensor)[i] = float_to_bf16(x); return;
    case Element::f32: static_cast<float*>(tensor)[i] = x; return;
    case Element::i32: static_cast<int32_t*>(tensor)[i] = static_cast<int32_t>(x); return;
    case Element::i64: static_cast<int64_t*>(tensor)[i] = static_cast<int64_t>(x); return;
  }
}

}  // namespace froghopper
