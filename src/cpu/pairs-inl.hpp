// SPDX-License-Identifier: Apache-2.0
// cpu: the layouts of matrices for products in floats, in pairs of bf16 values, and in AMX tiles. Pairs have two
// layouts:
//
//   along    two neighbours of a row, as bf16 lies in memory. [row][column / 2]
//   across   the same column of two neighbouring rows, which Intel calls VNNI. [row / 2][column]
//
// A product sums over pairs, so its first factor has pairs along its rows, and its second factor across them.
#include <algorithm>
#include <cstring>
#include <utility>

#include "src/cpu/factors.hpp"
#include "src/cpu/work.hpp"

#if defined(FROGHOPPER_CPU_PAIRS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FROGHOPPER_CPU_PAIRS_INL
#undef FROGHOPPER_CPU_PAIRS_INL
#else
#define FROGHOPPER_CPU_PAIRS_INL
#endif
#include "hwy/highway.h"
#include "src/cpu/convert-inl.hpp"
#include "src/cpu/multiply-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace froghopper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct InFloats {
  using Element = float;
  static constexpr int per_element = 1;
  static constexpr bool tiles = false, rounds_by_instruction = false;
  static void product(const Factors<float>& f, int rows, int columns) { multiply(f, rows, columns); }
};

struct InPairs {
  using Element = Pair;
  static constexpr int per_element = 2;
  static constexpr bool tiles = false, rounds_by_instruction = true;  // with AVX-512
  static void product(const Factors<Pair>& f, int rows, int columns) { multiply(f, rows, columns); }
};

// out [rows][columns] = rescale out. In most KV tiles no row max rises, and every rescale factor is 1.
inline void rescale_columns(const float* rescale, float* out, int rows, int columns, size_t row) {
  const Floats d;
  if (std::all_of(rescale, rescale + columns, [](float x) { return x == 1; })) return;
  for (int r = 0; r < rows; ++r, out += row) {
    for (int c = 0; c < columns; c += vector_lanes)
      hn::Store(hn::Mul(hn::Load(d, rescale + c), hn::Load(d, out + c)), d, out + c);
  }
}

// AMX needs the pairs of the first factor along its rows in memory.
template <auto multiply_pairs, bool with_instructions>
struct InTiles {
  using Element = Pair;
  static constexpr int per_element = 2;
  static constexpr bool tiles = true, rounds_by_instruction = with_instructions;
  static void product(Factors<Pair> f, int rows, int columns) {
    if (f.rescale) rescale_columns(std::exchange(f.rescale, nullptr), f.out, rows, columns, f.out_row);
    multiply_pairs(f, rows, columns);
  }
};

constexpr int elements(int values, int per_element) { return (values + per_element - 1) / per_element; }

// A row as it lies in memory.
inline void to_elements(const void* from, Dtype type, int count, float* to) { to_floats(from, type, count, to); }
inline void to_elements(const void* from, Dtype type, int count, Pair* to) {
  auto* const values = reinterpret_cast<uint16_t*>(to);
  if (const uint16_t* const row = as_bf16(from, type, count, values); row != values)
    std::memcpy(values, row, count * sizeof(uint16_t));
}

// A pair is transposed as a float is: both have 32 bits.
inline void transpose(const Pair* from, size_t from_row, int rows, int columns, Pair* to, size_t to_row) {
  transpose(reinterpret_cast<const float*>(from), from_row, rows, columns, reinterpret_cast<float*>(to), to_row);
}

#if HWY_TARGET == HWY_AVX3
// The lower and the upper 16 values become 16 pairs: the first of both, the second of both, ...
HWY_INLINE __m512i interleaved(__m512i values) {
  alignas(64) static constexpr uint16_t places[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(places), values);
}

// 16 values of a row and 16 of the next row, as bf16.
template <Dtype type>
HWY_INLINE __m512i load_two_rows(const char* row, int64_t row_bytes) {
  if constexpr (is_8_bit(type)) {
    const auto load = [](const char* at) HWY_ATTR { return _mm_loadu_si128((const __m128i*)at); };
    return bytes_as_bf16<type>(_mm256_set_m128i(load(row + row_bytes), load(row)));
  } else {
    const auto load = [](const char* at) HWY_ATTR { return _mm256_loadu_si256((const __m256i*)at); };
    return _mm512_inserti64x4(_mm512_castsi256_si512(load(row)), load(row + row_bytes), 1);
  }
}

// 32 rows of 16 values, transposed: to [16 columns][16 pairs of rows].
template <Dtype type>
HWY_NOINLINE void pairs_of_columns(const char* rows, int64_t row_bytes, Pair* to, size_t to_row) {
  __m512i x[16], y[16];
#pragma GCC unroll 16
  for (int p = 0; p < 16; ++p) x[p] = interleaved(load_two_rows<type>(rows + 2 * p * row_bytes, row_bytes));
    // 16 x 16 values of 32 bits: two at a time, four at a time, then 128 bits at a time.
#pragma GCC unroll 8
  for (int p = 0; p < 16; p += 2)
    y[p] = _mm512_unpacklo_epi32(x[p], x[p + 1]), y[p + 1] = _mm512_unpackhi_epi32(x[p], x[p + 1]);
#pragma GCC unroll 4
  for (int p = 0; p < 16; p += 4) {
    x[p] = _mm512_unpacklo_epi64(y[p], y[p + 2]), x[p + 1] = _mm512_unpackhi_epi64(y[p], y[p + 2]);
    x[p + 2] = _mm512_unpacklo_epi64(y[p + 1], y[p + 3]), x[p + 3] = _mm512_unpackhi_epi64(y[p + 1], y[p + 3]);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    constexpr int even = 0x88, odd = 0xdd;
    const __m512i low_even = _mm512_shuffle_i32x4(x[c], x[c + 4], even),
                  low_odd = _mm512_shuffle_i32x4(x[c], x[c + 4], odd);
    const __m512i high_even = _mm512_shuffle_i32x4(x[c + 8], x[c + 12], even),
                  high_odd = _mm512_shuffle_i32x4(x[c + 8], x[c + 12], odd);
    _mm512_storeu_si512(to + c * to_row, _mm512_shuffle_i32x4(low_even, high_even, even));
    _mm512_storeu_si512(to + (c + 4) * to_row, _mm512_shuffle_i32x4(low_odd, high_odd, even));
    _mm512_storeu_si512(to + (c + 8) * to_row, _mm512_shuffle_i32x4(low_even, high_even, odd));
    _mm512_storeu_si512(to + (c + 12) * to_row, _mm512_shuffle_i32x4(low_odd, high_odd, odd));
  }
}
#endif

// Two rows of bf16 become one row of pairs across. count: values of a row, a multiple of 8.
inline void across(const void* first, const void* second, int count, Pair* to) {
  const auto* const a = static_cast<const uint16_t*>(first);
  const auto* const b = static_cast<const uint16_t*>(second);
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < count; ++i) to[i] = {a[i], b[i]};
#else
  const hn::CappedTag<uint16_t, 8> d;
  auto* const out = reinterpret_cast<uint16_t*>(to);
  for (int i = 0; i < count; i += 8) {
    const auto x = hn::LoadU(d, a + i), y = hn::LoadU(d, b + i);
    hn::StoreU(hn::InterleaveLower(d, x, y), d, out + 2 * i);
    hn::StoreU(hn::InterleaveUpper(d, x, y), d, out + 2 * i + 8);
  }
#endif
}

// Pairs along rows become [count / 2][dim] across; for tiles transposed, [dim][count / 2]. four: memory for four rows
// of dim_max.
template <bool tiles>
void lay_across(const Pair* rows, int row, int count, int dim, Pair* to, int to_row, Pair* four) {
  for (int i = 0; i < count / 2; ++i) {
    Pair* const pair_row = tiles ? four + i % 4 * dim_max : to + i * to_row;
    across(rows + 2 * i * row, rows + (2 * i + 1) * row, dim, pair_row);
    if (tiles && i % 4 == 3) transpose(four, dim_max, 4, dim, to + i - 3, count / 2);
  }
}

// Rounds two vectors of floats to one of pairs. by_instruction: with AVX-512, by an instruction of all processors that
// multiply pairs, with those that have AMX. It flushes subnormal values to 0, but no weight is subnormal.
template <bool by_instruction = false>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<Floats>> round_two(Vector first, Vector second) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (by_instruction) {
    __m512i both;  // all of first, then all of second; by asm, for this file is compiled without the instruction
    asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(both) : "v"(first.raw), "v"(second.raw));
    return {interleaved(both)};
  }
#endif
  const Floats d;
  const hn::RebindToUnsigned<Floats> bits;
  const auto low = hn::ShiftRight<16>(hn::BitCast(bits, ready_to_cut(d, first)));
  return hn::Or(low, hn::And(hn::BitCast(bits, ready_to_cut(d, second)), hn::Set(bits, 0xffff0000u)));
}

// Rounds two rows of floats to one row of pairs across. second: null for zeros. count: a multiple of vector_lanes.
inline void round_across(const float* first, const float* second, int count, Pair* to) {
  const Floats d;
  const hn::RebindToUnsigned<Floats> bits;
  for (int i = 0; i < count; i += vector_lanes)
    hn::Store(round_two(hn::Load(d, first + i), second ? hn::Load(d, second + i) : hn::Zero(d)), bits,
              reinterpret_cast<uint32_t*>(to + i));
}
// rows [count][width]. A last row without a partner is paired with zeros.
inline void round_rows_across(const float* rows, int count, int width, Pair* to) {
  for (int r = 0; r < count; r += 2)
    round_across(rows + r * width, r + 1 < count ? rows + (r + 1) * width : nullptr, width, to + r / 2 * width);
}

}  // namespace froghopper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
