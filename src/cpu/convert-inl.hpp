// SPDX-License-Identifier: Apache-2.0
// cpu: converts between the types of tensors and the floats that kernels compute with, and transposes rows to lanes.
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "contract/types.h"
#include "src/base/storage.hpp"

#if defined(FROGHOPPER_CPU_CONVERT_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FROGHOPPER_CPU_CONVERT_INL
#undef FROGHOPPER_CPU_CONVERT_INL
#else
#define FROGHOPPER_CPU_CONVERT_INL
#endif
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace froghopper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Head dims are multiples of 8, so vectors of at most 8 floats leave no remainder.
using Eight = hn::CappedTag<float, 8>;
inline constexpr int eight = HWY_LANES(float) < 8 ? HWY_LANES(float) : 8;

template <class Half>
HWY_INLINE void halves_to_floats(const Half* from, int count, float* to) {
  const hn::ScalableTag<float> whole;
  const hn::Rebind<Half, hn::ScalableTag<float>> stored_whole;
  constexpr int lanes = HWY_LANES(float);
  int i = 0;
  for (; i + lanes <= count; i += lanes)
    hn::StoreU(hn::PromoteTo(whole, hn::LoadU(stored_whole, from + i)), whole, to + i);
  const Eight d;
  const hn::Rebind<Half, Eight> stored;
  for (; i < count; i += eight) hn::StoreU(hn::PromoteTo(d, hn::LoadU(stored, from + i)), d, to + i);
}

// The bf16 value of each 8-bit value without its sign. Both 8-bit types are subsets of bf16.
template <Dtype type>
inline constexpr auto bf16_of_8_bits = [] {
  std::array<uint16_t, 128> table{};
  for (int bits = 0; bits < 128; ++bits) {
    const auto byte = static_cast<uint8_t>(bits);
    const float x = type == Dtype::e4m3 ? e4m3_to_float(byte) : e5m2_to_float(byte);
    table[bits] = static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16);
  }
  return table;
}();

#if HWY_TARGET == HWY_AVX3
// 32 of them.
template <Dtype type>
HWY_INLINE __m512i bytes_as_bf16(__m256i bytes) {
  alignas(64) static constexpr auto table = bf16_of_8_bits<type>;
  const auto quarter = [](int i) HWY_ATTR { return _mm512_load_si512(table.data() + 32 * i); };
  const __m512i wide = _mm512_cvtepu8_epi16(bytes);
  const __m512i small = _mm512_permutex2var_epi16(quarter(0), wide, quarter(1)),  // by the lower 6 bits
      large = _mm512_permutex2var_epi16(quarter(2), wide, quarter(3));
  const __m512i size = _mm512_mask_mov_epi16(small, _mm512_test_epi16_mask(wide, _mm512_set1_epi16(0x40)), large);
  constexpr int first_or_both_others = 0xf8;
  return _mm512_ternarylogic_epi32(size, _mm512_slli_epi16(wide, 8), _mm512_set1_epi16(int16_t(0x8000)),
                                   first_or_both_others);
}
#endif

// count: a multiple of 8.
template <Dtype type>
inline void bytes_to_bf16(const uint8_t* from, int count, uint16_t* to) {
  int i = 0;
#if HWY_TARGET == HWY_AVX3
  for (; i + 32 <= count; i += 32)
    _mm512_storeu_si512(to + i, bytes_as_bf16<type>(_mm256_loadu_si256((const __m256i*)(from + i))));
#endif
  for (; i < count; ++i) to[i] = static_cast<uint16_t>((from[i] & 0x80) << 8 | bf16_of_8_bits<type>[from[i] & 0x7f]);
}

// A row as bf16 values: the row itself, or `room`, to which 8-bit values are converted.
inline const uint16_t* as_bf16(const void* row, Dtype type, int count, uint16_t* room) {
  const auto* const bytes = static_cast<const uint8_t*>(row);
  switch (type) {
    case Dtype::e4m3: bytes_to_bf16<Dtype::e4m3>(bytes, count, room); return room;
    case Dtype::e5m2: bytes_to_bf16<Dtype::e5m2>(bytes, count, room); return room;
    default: return static_cast<const uint16_t*>(row);
  }
}

// e5m2 is the upper half of an f16. e4m3 has the exponents of an f16 that is 2^8 smaller, where its NaN becomes 480 and
// no other value does.
template <Dtype type, class D>
HWY_INLINE hn::Vec<D> load_8_bits(D d, const uint8_t* from) {
  const hn::Rebind<uint8_t, D> stored;
  const hn::Rebind<uint16_t, D> bits;
  const hn::Rebind<hwy::float16_t, D> half;
  const auto wide = hn::PromoteTo(bits, hn::LoadU(stored, from));
  if constexpr (type == Dtype::e5m2) {
    return hn::PromoteTo(d, hn::BitCast(half, hn::ShiftLeft<8>(wide)));
  } else {
    const auto sign = hn::ShiftLeft<8>(hn::And(wide, hn::Set(bits, 0x80)));
    const auto rest = hn::ShiftLeft<7>(hn::And(wide, hn::Set(bits, 0x7f)));
    const auto x = hn::Mul(hn::PromoteTo(d, hn::BitCast(half, hn::Or(sign, rest))), hn::Set(d, 256.0f));
    const auto is_nan = hn::Eq(hn::Abs(x), hn::Set(d, 480.0f));
    return hn::IfThenElse(is_nan, hn::Set(d, __builtin_nanf("")), x);
  }
}
template <Dtype type>
HWY_INLINE void bytes_to_floats(const uint8_t* from, int count, float* to) {
  const Eight d;
  for (int i = 0; i < count; i += eight) hn::StoreU(load_8_bits<type>(d, from + i), d, to + i);
}

// Values are converted one by one where no instruction converts f16; on x86 the targets here have one from AVX2 on.
// Highway's emulation truncates where it should round, and makes infinity finite. The target of the "generic" kernels
// depends on the compiler: HWY_SCALAR with GCC up to 12.2, else HWY_EMU128; in newer versions of Highway HWY_SSE2.
inline constexpr bool one_by_one =
    HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || (HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2);

// count: a multiple of 8.
inline void to_floats(const void* from, Dtype type, int count, float* to) {
  if (one_by_one) {
    for (int i = 0; i < count; ++i) to[i] = froghopper::load(from, i, element_of(type));
    return;
  }
  switch (type) {
    case Dtype::f16: halves_to_floats(static_cast<const hwy::float16_t*>(from), count, to); return;
    case Dtype::bf16: halves_to_floats(static_cast<const hwy::bfloat16_t*>(from), count, to); return;
    case Dtype::f32: std::memcpy(to, from, count * sizeof(float)); return;
    case Dtype::e4m3: bytes_to_floats<Dtype::e4m3>(static_cast<const uint8_t*>(from), count, to); return;
    case Dtype::e5m2: bytes_to_floats<Dtype::e5m2>(static_cast<const uint8_t*>(from), count, to); return;
  }
}

// Prepares floats for truncation to their upper 16 bits, such that it rounds to nearest, ties to even. NaN stays NaN.
template <class D>
HWY_INLINE hn::Vec<D> ready_to_cut(D d, hn::Vec<D> x) {
  const hn::Rebind<uint32_t, D> bits;
  const auto raw = hn::BitCast(bits, x);
  const auto odd = hn::And(hn::ShiftRight<16>(raw), hn::Set(bits, 1u));
  const auto rounded = hn::BitCast(d, hn::Add(raw, hn::Add(odd, hn::Set(bits, 0x7fffu))));
  return hn::IfThenElse(hn::IsNaN(x), hn::BitCast(d, hn::Or(raw, hn::Set(bits, 0x400000u))), rounded);
}

inline void floats_to_f16(const float* from, int count, hwy::float16_t* to) {
  const Eight d;
  const hn::Rebind<hwy::float16_t, Eight> stored;
  for (int i = 0; i < count; i += eight) hn::StoreU(hn::DemoteTo(stored, hn::LoadU(d, from + i)), stored, to + i);
}

inline void floats_to_bf16(const float* from, int count, hwy::bfloat16_t* to) {
  const Eight d;
  const hn::Rebind<hwy::bfloat16_t, Eight> stored;
  for (int i = 0; i < count; i += eight)
    hn::StoreU(hn::DemoteTo(stored, ready_to_cut(d, hn::LoadU(d, from + i))), stored, to + i);
}

// The bits of an 8-bit type with `fraction_bits`, the smallest normal value 2^least and the largest value `largest`, to
// which larger values are clamped. NaN becomes 0x7f.
template <int fraction_bits, int least>
HWY_INLINE hn::Vec<hn::Rebind<uint32_t, Eight>> to_8_bits(hn::Vec<Eight> x, float largest) {
  const Eight d;
  const hn::Rebind<uint32_t, Eight> bits;
  constexpr int dropped = 23 - fraction_bits;  // bits of a float's fraction that are dropped
  const auto size = hn::Min(hn::Abs(x), hn::Set(d, largest));
  const auto raw = hn::BitCast(bits, size);
  const auto half =
      hn::Add(hn::And(hn::ShiftRight<dropped>(raw), hn::Set(bits, 1u)), hn::Set(bits, (1u << (dropped - 1)) - 1));
  const auto normal = hn::Sub(hn::ShiftRight<dropped>(hn::Add(raw, half)),
                              hn::Set(bits, static_cast<uint32_t>(127 + least - 1) << fraction_bits));
  // Subnormal values have equal steps. Adding a float whose last bit is one step rounds to them.
  const auto step = hn::Set(d, std::bit_cast<float>(static_cast<uint32_t>(127 + least - fraction_bits + 23) << 23));
  const auto small = hn::Sub(hn::BitCast(bits, hn::Add(size, step)), hn::BitCast(bits, step));
  const auto is_small =
      hn::RebindMask(bits, hn::Lt(size, hn::Set(d, std::bit_cast<float>(static_cast<uint32_t>(127 + least) << 23))));
  const auto is_nan = hn::RebindMask(bits, hn::IsNaN(x));
  const auto stored = hn::IfThenElse(is_nan, hn::Set(bits, 0x7fu), hn::IfThenElse(is_small, small, normal));
  return hn::Or(stored, hn::And(hn::ShiftRight<24>(hn::BitCast(bits, x)), hn::Set(bits, 0x80u)));
}

HWY_INLINE void store_8_bits(Dtype type, hn::Vec<Eight> x, uint8_t* to) {
  const hn::Rebind<uint8_t, Eight> stored;
  const auto bits = type == Dtype::e5m2 ? to_8_bits<2, -14>(x, 57344.0f) : to_8_bits<3, -6>(x, 448.0f);
  hn::StoreU(hn::TruncateTo(stored, bits), stored, to);
}

// count: a multiple of 8. Rounds to nearest, ties to even.
inline void from_floats(const float* from, Dtype type, int count, void* to) {
  if (one_by_one) {
    for (int i = 0; i < count; ++i) froghopper::store(to, i, element_of(type), from[i]);
    return;
  }
  switch (type) {
    case Dtype::f16: floats_to_f16(from, count, static_cast<hwy::float16_t*>(to)); return;
    case Dtype::bf16: floats_to_bf16(from, count, static_cast<hwy::bfloat16_t*>(to)); return;
    case Dtype::f32: std::memcpy(to, from, count * sizeof(float)); return;
    case Dtype::e4m3:
    case Dtype::e5m2:
      for (int i = 0; i < count; i += eight)
        store_8_bits(type, hn::LoadU(Eight(), from + i), static_cast<uint8_t*>(to) + i);
      return;
  }
}

// row *= scale. count: a multiple of 8.
inline void times(float scale, int count, float* row) {
  const Eight d;
  for (int i = 0; i < count; i += eight) hn::StoreU(hn::Mul(hn::LoadU(d, row + i), hn::Set(d, scale)), d, row + i);
}
inline void times(const float* scales, int count, float* row) {  // one scale a value
  const Eight d;
  for (int i = 0; i < count; i += eight)
    hn::StoreU(hn::Mul(hn::LoadU(d, row + i), hn::LoadU(d, scales + i)), d, row + i);
}
// row += factor values
inline void plus(const float* values, float factor, int count, float* row) {
  const Eight d;
  for (int i = 0; i < count; i += eight)
    hn::StoreU(hn::MulAdd(hn::LoadU(d, values + i), hn::Set(d, factor), hn::LoadU(d, row + i)), d, row + i);
}
// count: a multiple of 8.
inline float dot(const float* x, const float* y, int count) {
  const Eight d;
  auto sum = hn::Zero(d);
  for (int i = 0; i < count; i += eight) sum = hn::MulAdd(hn::LoadU(d, x + i), hn::LoadU(d, y + i), sum);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// count: a multiple of 8. x 0 is +0, -0 or NaN, and zeros or-ed together are no NaN.
inline bool all_finite(const float* x, int count) {
  const Eight d;
  auto any = hn::Zero(d);
  for (int i = 0; i < count; i += eight) any = hn::Or(any, hn::Mul(hn::LoadU(d, x + i), hn::Zero(d)));
  return hn::AllFalse(d, hn::IsNaN(any));
}

// The same for bf16. The exponent of a value that is not finite is all ones.
inline bool all_finite_bf16(const void* from, int count) {
  const auto* const x = static_cast<const uint16_t*>(from);
#if HWY_TARGET == HWY_SCALAR
  return std::all_of(x, x + count, [](uint16_t bits) { return (bits & 0x7f80) != 0x7f80; });
#else
  const hn::CappedTag<uint16_t, 8> d;
  auto largest = hn::Zero(d);
  for (int i = 0; i < count; i += 8)
    largest = hn::Max(largest, hn::And(hn::LoadU(d, x + i), hn::Set(d, uint16_t{0x7fff})));
  return hn::AllTrue(d, hn::Lt(largest, hn::Set(d, uint16_t{0x7f80})));
#endif
}

// to[c][r] = from[r][c] for 4 x 4 values.
HWY_INLINE void transpose_4x4(const float* from, size_t from_row, float* to, size_t to_row) {
#if HWY_TARGET == HWY_SCALAR
  for (int r = 0; r < 4; ++r) {
    for (int c = 0; c < 4; ++c) to[c * to_row + r] = from[r * from_row + c];
  }
#else
  const hn::CappedTag<float, 4> d;
  const auto a = hn::LoadU(d, from), b = hn::LoadU(d, from + from_row);
  const auto c = hn::LoadU(d, from + 2 * from_row), e = hn::LoadU(d, from + 3 * from_row);
  const auto ac_low = hn::InterleaveLower(d, a, c),
             be_low = hn::InterleaveLower(d, b, e);  // a0 c0 a1 c1, b0 e0 b1 e1
  const auto ac_high = hn::InterleaveUpper(d, a, c),
             be_high = hn::InterleaveUpper(d, b, e);  // a2 c2 a3 c3, b2 e2 b3 e3
  hn::StoreU(hn::InterleaveLower(d, ac_low, be_low), d, to);
  hn::StoreU(hn::InterleaveUpper(d, ac_low, be_low), d, to + to_row);
  hn::StoreU(hn::InterleaveLower(d, ac_high, be_high), d, to + 2 * to_row);
  hn::StoreU(hn::InterleaveUpper(d, ac_high, be_high), d, to + 3 * to_row);
#endif
}

// rows and columns: multiples of 4.
inline void transpose(const float* from, size_t from_row, int rows, int columns, float* to, size_t to_row) {
  for (int r = 0; r < rows; r += 4) {
    for (int c = 0; c < columns; c += 4)
      transpose_4x4(from + r * from_row + c, from_row, to + c * to_row + r, to_row);
  }
}

}  // namespace froghopper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
