// SPDX-License-Identifier: Apache-2.0
// base: values as tensors store them. Reading is exact, writing rounds to nearest, ties to even.
// Bits only, no vector unit: for the oracle and the checks, where clarity counts and speed does not.
#pragma once
#include <algorithm>
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
    case Element::e4m3: return 0x1p-4;
    case Element::e5m2: return 0x1p-3;
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
constexpr float f16_to_float(uint16_t bits) {
  const uint32_t sign = bits >> 15, exponent = bits >> 10 & 31, fraction = bits & 1023;
  if (exponent == 0) return (sign ? -0x1p-24f : 0x1p-24f) * static_cast<float>(fraction);  // steps of 2^-24 around 0
  const uint32_t wide = exponent == 31 ? 255 : exponent + 127 - 15;                        // infinity and NaN
  return std::bit_cast<float>(sign << 31 | wide << 23 | fraction << 13);
}

inline uint16_t float_to_f16(float x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const float size = std::fabs(x);
  if (std::isnan(x)) return sign | 0x7e00;
  if (size >= 65520.0f) return sign | 0x7c00;  // 65504 is the largest value; from half a step above it: infinity
  // nearbyint rounds ties to even. Below 2^-14 the step is 2^-24; above, 2^-10 of the power of two below the number.
  // A fraction that rounds up to the next power of two carries into the exponent, which is the right number.
  if (size < 0x1p-14f) return sign | static_cast<uint16_t>(std::nearbyint(size * 0x1p24f));
  const int exponent = std::ilogb(size);
  const int fraction = static_cast<int>(std::nearbyint(std::ldexp(size, 10 - exponent)));  // 1024 to 2048
  return sign | static_cast<uint16_t>(((exponent + 15) << 10) + fraction - 1024);
}

// e4m3: 4 bits of exponent around 7 and 3 of fraction. No infinity, and one NaN of either sign: the largest value is
// 1.75 2^8 = 448.
constexpr float e4m3_to_float(uint8_t bits) {
  const uint32_t sign = bits >> 7, exponent = bits >> 3 & 15, fraction = bits & 7;
  if (exponent == 0) return (sign ? -0x1p-9f : 0x1p-9f) * static_cast<float>(fraction);  // steps of 2^-9 around 0
  if (exponent == 15 && fraction == 7) return std::bit_cast<float>(sign << 31 | 0x7fc00000u);
  return std::bit_cast<float>(sign << 31 | (exponent + 127 - 7) << 23 | fraction << 20);
}

// e5m2 is the upper half of fp16, infinities and NaN as well.
constexpr float e5m2_to_float(uint8_t bits) { return f16_to_float(static_cast<uint16_t>(bits << 8)); }

// What is larger than the largest value becomes it, infinity too, as in the instructions that make these values
// (cvt.rn.satfinite). least: the exponent of the smallest normal number, 1 - bias.
inline uint8_t float_to_8_bits(float x, int fraction_bits, int least, float largest) {
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  if (std::isnan(x)) return sign | 0x7f;
  const float size = std::fmin(std::fabs(x), largest);
  const int exponent = size > 0 ? std::max(std::ilogb(size), least) : least;
  // In steps of the number's last bit, ties to even; less than 2^fraction_bits of them where it is not normal. One that
  // rounds up to the next power of two carries into the exponent, which is the right number.
  const int steps = static_cast<int>(std::nearbyint(std::ldexp(size, fraction_bits - exponent)));
  return sign | static_cast<uint8_t>(((exponent - least) << fraction_bits) + steps);
}
inline uint8_t float_to_e4m3(float x) { return float_to_8_bits(x, 3, -6, 448); }
inline uint8_t float_to_e5m2(float x) { return float_to_8_bits(x, 2, -14, 57344); }

inline float rounded(float x, Dtype t) {
  switch (t) {
    case Dtype::f16: return f16_to_float(float_to_f16(x));
    case Dtype::bf16: return bf16_to_float(float_to_bf16(x));
    case Dtype::f32: return x;
    case Dtype::e4m3: return e4m3_to_float(float_to_e4m3(x));
    case Dtype::e5m2: return e5m2_to_float(float_to_e5m2(x));
  }
  return x;
}

// One element of a tensor of values; integers are read as such.
inline float load(const void* tensor, int64_t i, Element e) {
  switch (e) {
    case Element::f16: return f16_to_float(static_cast<const uint16_t*>(tensor)[i]);
    case Element::bf16: return bf16_to_float(static_cast<const uint16_t*>(tensor)[i]);
    case Element::f32: return static_cast<const float*>(tensor)[i];
    case Element::e4m3: return e4m3_to_float(static_cast<const uint8_t*>(tensor)[i]);
    case Element::e5m2: return e5m2_to_float(static_cast<const uint8_t*>(tensor)[i]);
    case Element::i32: return static_cast<float>(static_cast<const int32_t*>(tensor)[i]);
    case Element::i64: return static_cast<float>(static_cast<const int64_t*>(tensor)[i]);
  }
  return 0;
}

// `count` elements that lie side by side. The type is asked for once and not for each of them.
template <class Real>
void load_row(const void* tensor, int64_t first, int64_t count, Element e, Real* to) {
  const auto all = [&](auto element) {
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<Real>(load(tensor, first + i, element()));
  };
  switch (e) {
    case Element::f16: return all([] { return Element::f16; });
    case Element::bf16: return all([] { return Element::bf16; });
    case Element::f32: return all([] { return Element::f32; });
    case Element::e4m3: return all([] { return Element::e4m3; });
    case Element::e5m2: return all([] { return Element::e5m2; });
    case Element::i32: return all([] { return Element::i32; });
    case Element::i64: return all([] { return Element::i64; });
  }
}

inline void store(void* tensor, int64_t i, Element e, float x) {
  switch (e) {
    case Element::f16: static_cast<uint16_t*>(tensor)[i] = float_to_f16(x); return;
    case Element::bf16: static_cast<uint16_t*>(tensor)[i] = float_to_bf16(x); return;
    case Element::f32: static_cast<float*>(tensor)[i] = x; return;
    case Element::e4m3: static_cast<uint8_t*>(tensor)[i] = float_to_e4m3(x); return;
    case Element::e5m2: static_cast<uint8_t*>(tensor)[i] = float_to_e5m2(x); return;
    case Element::i32: static_cast<int32_t*>(tensor)[i] = static_cast<int32_t>(x); return;
    case Element::i64: static_cast<int64_t*>(tensor)[i] = static_cast<int64_t>(x); return;
  }
}

}  // namespace froghopper
