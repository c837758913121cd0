// SPDX-License-Identifier: Apache-2.0
// cpu: the matrix product of attention, with lanes as columns (see work.hpp).
//
//   out[row][lane] = rescale[lane] out[row][lane] + sum over i of a(row, i) b[i][lane]
//
//   scores    out = s [keys][lanes],    a = k(key, column),  b = q transposed [columns][lanes]
//   output    out = o [columns][lanes], a = v(key, column),  b = weights [keys][lanes]
//
// Each value of a is broadcast to a vector, so a may have any layout in memory: k and v are never transposed. Every sum
// begins at 0, runs in the order of i for any block of rows and vectors, and is then added to out. So the error of a
// sum over many tiles grows with the number of tiles, not of their rows.
//
// An element is a float, or a pair of bf16 values; one instruction adds the product of two pairs to a sum. The loops
// are the same for both. pairs-inl.hpp has the layouts of pairs.
#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "src/cpu/factors.hpp"

// Highway includes this file once for every kind of vector unit, see kernel.cpp.
#if defined(FROGHOPPER_CPU_MULTIPLY_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FROGHOPPER_CPU_MULTIPLY_INL
#undef FROGHOPPER_CPU_MULTIPLY_INL
#else
#define FROGHOPPER_CPU_MULTIPLY_INL
#endif
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace froghopper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;
inline constexpr int vector_lanes = HWY_LANES(float);

// Sums stay in registers. AVX-512 has 32 registers: 6 rows x 4 vectors of sums, 4 for a row of b, the rest for values
// of a. Others have 16: 6 x 2 and 2. A step has 24 multiply-adds, 12 cycles on the two multipliers of a core, and
// loads 4 vectors and 6 values, 5 cycles on its two load ports. Blocks of fewer vectors have more rows, because a sum
// can be added to only every 4 cycles.
inline constexpr int vectors_at_once = HWY_MAX_BYTES == 64 ? 4 : vector_lanes == 1 ? 4 : 2;
inline constexpr int rows_at_once(int vectors) { return std::min(12, 6 * vectors_at_once / vectors); }
inline constexpr int block_lanes = vectors_at_once * vector_lanes;  // 64, 16, 8; 4 without a vector unit

// The product of pairs. Of all vector units only AVX-512 has an instruction, vdpbf16ps, on some processors; kernels
// that multiply pairs on others are for tests. Clang uses the outer of nested attributes, so the outer one ends here.
#if HWY_TARGET == HWY_AVX3
HWY_POP_ATTRIBUTES
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16")
#endif

HWY_INLINE Vector spread(const float* x) { return hn::Set(Floats(), *x); }
HWY_INLINE Vector spread(const Pair* x) { return spread(reinterpret_cast<const float*>(x)); }  // its 32 bits

HWY_INLINE Vector add_product(const float*, Vector a, Vector b, Vector sum) { return hn::MulAdd(a, b, sum); }

HWY_INLINE Vector add_product(const Pair*, Vector a, Vector b, Vector sum) {
#if HWY_TARGET == HWY_AVX3
  return Vector{_mm512_dpbf16_ps(sum.raw, (__m512bh)a.raw, (__m512bh)b.raw)};
#else
  const Floats d;
  const hn::RebindToUnsigned<Floats> bits;
  const auto first = [&](Vector x) { return hn::BitCast(d, hn::ShiftLeft<16>(hn::BitCast(bits, x))); };
  const auto second = [&](Vector x) {
    return hn::BitCast(d, hn::And(hn::BitCast(bits, x), hn::Set(bits, 0xffff0000u)));
  };
  return hn::MulAdd(second(a), second(b), hn::MulAdd(first(a), first(b), sum));
#endif
}

template <class Element, int rows, int vectors>
HWY_NOINLINE void multiply_rows(const Factors<Element>& f) {
  const Floats d;
  Vector sum[rows][vectors];
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < vectors; ++c) sum[r][c] = hn::Zero(d);
  }

  const Element *a = f.a, *b = f.b;
  for (size_t i = 0; i < f.count; ++i, a += f.a_step, b += f.b_step) {
    Vector b_row[vectors];
#pragma GCC unroll 8
    for (int c = 0; c < vectors; ++c) b_row[c] = hn::Load(d, reinterpret_cast<const float*>(b + c * vector_lanes));
#pragma GCC unroll 12
    for (int r = 0; r < rows; ++r) {
      const Vector value = spread(a + r * f.a_row);
#pragma GCC unroll 8
      for (int c = 0; c < vectors; ++c) sum[r][c] = add_product(a, value, b_row[c], sum[r][c]);
    }
  }

  // The fields of f are read before the first store, which for the compiler may change f.
  float* const out = f.out;
  const size_t out_row = f.out_row;
  const auto store = [&](auto with_before) HWY_ATTR {
#pragma GCC unroll 12
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < vectors; ++c) {
        float* const to = out + r * out_row + c * vector_lanes;
        hn::Store(with_before(to, c, sum[r][c]), d, to);
      }
    }
  };
  if (const float* const rescale = f.rescale) {
    Vector factors[vectors];
#pragma GCC unroll 8
    for (int c = 0; c < vectors; ++c) factors[c] = hn::Load(d, rescale + c * vector_lanes);
    store([&](const float* to, int c, Vector x) HWY_ATTR { return hn::MulAdd(factors[c], hn::Load(d, to), x); });
  } else if (f.adds) {
    store([&](const float* to, int, Vector x) HWY_ATTR { return hn::Add(hn::Load(d, to), x); });
  } else {
    store([](const float*, int, Vector x) HWY_ATTR { return x; });
  }
}

#if HWY_TARGET == HWY_AVX3
HWY_POP_ATTRIBUTES
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR)
#endif

template <class Element>
using Multiply = void (*)(const Factors<Element>&);

template <class Element, int vectors, int... i>
constexpr std::array<Multiply<Element>, sizeof...(i)> multiply_by_rows(std::integer_sequence<int, i...>) {
  return {multiply_rows<Element, i + 1, vectors>...};
}

template <class Element, int vectors>
Multiply<Element> multiply_with(int rows) {
  static constexpr auto by_rows =
      multiply_by_rows<Element, vectors>(std::make_integer_sequence<int, rows_at_once(vectors)>());
  return by_rows[rows - 1];
}

// vectors: 1 to vectors_at_once; rows: 1 to rows_at_once(vectors).
template <class Element>
Multiply<Element> multiply_with(int rows, int vectors) {
  if constexpr (vectors_at_once == 4) {
    if (vectors == 4) return multiply_with<Element, 4>(rows);
    if (vectors == 3) return multiply_with<Element, 3>(rows);
  }
  return vectors == 2 ? multiply_with<Element, 2>(rows) : multiply_with<Element, 1>(rows);
}

// Of any size; columns: a multiple of vector_lanes.
template <class Element>
void multiply(const Factors<Element>& all, int rows, int columns) {
  for (int c = 0; c < columns; c += block_lanes) {
    Factors<Element> f = all;
    f.b += c;
    f.out += c;
    if (f.rescale) f.rescale += c;
    const int vectors = std::min(block_lanes, columns - c) / vector_lanes, most = rows_at_once(vectors);
    for (int r = 0; r < rows; r += most) {
      const int here = std::min(most, rows - r);
      multiply_with<Element>(here, vectors)(f);
      f.a += here * f.a_row;
      f.out += here * f.out_row;
    }
  }
}

}  // namespace froghopper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
