// SPDX-License-Identifier: Apache-2.0
// cpu: the one matrix product that attention needs, on matrices whose columns are lanes (see work.hpp).
//
//   out[row][lane] = rescale[lane] out[row][lane] + sum over i of a(row, i) b[i][lane]
//
//   scores    out = s [keys][lanes],    a = k(key, column),  b = q transposed [columns][lanes]
//   output    out = o [columns][lanes], a = v(key, column),  b = weights [keys][lanes]
//
// Numbers of a are taken one by one and spread over a vector, so a may lie in memory in any way: k and v are never
// transposed. Every sum begins at 0 and is made in the order of i, whatever the numbers of rows and vectors that are
// computed together; then it meets what out holds. So the error of a sum over many tiles grows with their number, and
// not with that of their rows: each step is rounded to the last digit of the sum so far.
//
// A unit is a float, or a pair of bf16 numbers that meets another pair in one instruction: the sum of two products. The
// loops are the same; how matrices are laid out in pairs is in pairs-inl.hpp.
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

// Sums stay in registers. AVX-512 has 32: 6 rows x 4 vectors of sums, 4 for a row of b, the rest for numbers of a;
// others have 16: 6 x 2 and 2. A step loads 4 vectors and 6 numbers for its 24 multiply-adds, so that the two
// multipliers of a core, with 12 cycles, are the limit and not its two load ports, with 5. Blocks of fewer vectors take
// more rows, because a sum can only be added to every 4 cycles.
inline constexpr int vectors_at_once = HWY_MAX_BYTES == 64 ? 4 : vector_lanes == 1 ? 4 : 2;
inline constexpr int rows_at_once(int vectors) { return std::min(12, 6 * vectors_at_once / vectors); }
inline constexpr int block_lanes = vectors_at_once * vector_lanes;  // 64, 16, 8; 4 without a vector unit

// What pairs are multiplied with. Of all units only AVX-512 has an instruction, vdpbf16ps, on some processors; kernels
// that multiply pairs on others are for tests.
// Of attributes one inside the other Clang takes the outer one, so that has to end.
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

template <class Unit, int rows, int vectors>
HWY_NOINLINE void multiply_rows(const Factors<Unit>& f) {
  const Floats d;
  Vector sum[rows][vectors];
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < vectors; ++c) sum[r][c] = hn::Zero(d);
  }

  const Unit *a = f.a, *b = f.b;
  for (size_t i = 0; i < f.count; ++i, a += f.a_step, b += f.b_step) {
    Vector b_row[vectors];
#pragma GCC unroll 8
    for (int c = 0; c < vectors; ++c) b_row[c] = hn::Load(d, reinterpret_cast<const float*>(b + c * vector_lanes));
#pragma GCC unroll 12
    for (int r = 0; r < rows; ++r) {
      const Vector number = spread(a + r * f.a_row);
#pragma GCC unroll 8
      for (int c = 0; c < vectors; ++c) sum[r][c] = add_product(a, number, b_row[c], sum[r][c]);
    }
  }

  // What is read of f is read before the first store, which may be one to f as far as the compiler knows.
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

template <class Unit>
using Multiply = void (*)(const Factors<Unit>&);

template <class Unit, int vectors, int... i>
constexpr std::array<Multiply<Unit>, sizeof...(i)> multiply_by_rows(std::integer_sequence<int, i...>) {
  return {multiply_rows<Unit, i + 1, vectors>...};
}

template <class Unit, int vectors>
Multiply<Unit> multiply_with(int rows) {
  static constexpr auto by_rows =
      multiply_by_rows<Unit, vectors>(std::make_integer_sequence<int, rows_at_once(vectors)>());
  return by_rows[rows - 1];
}

// vectors: 1 to vectors_at_once; rows: 1 to rows_at_once(vectors).
template <class Unit>
Multiply<Unit> multiply_with(int rows, int vectors) {
  if constexpr (vectors_at_once == 4) {
    if (vectors == 4) return multiply_with<Unit, 4>(rows);
    if (vectors == 3) return multiply_with<Unit, 3>(rows);
  }
  return vectors == 2 ? multiply_with<Unit, 2>(rows) : multiply_with<Unit, 1>(rows);
}

// Of any size; columns: a multiple of vector_lanes.
template <class Unit>
void multiply(const Factors<Unit>& all, int rows, int columns) {
  for (int c = 0; c < columns; c += block_lanes) {
    Factors<Unit> f = all;
    f.b += c;
    f.out += c;
    if (f.rescale) f.rescale += c;
    const int vectors = std::min(block_lanes, columns - c) / vector_lanes, most = rows_at_once(vectors);
    for (int r = 0; r < rows; r += most) {
      const int here = std::min(most, rows - r);
      multiply_with<Unit>(here, vectors)(f);
      f.a += here * f.a_row;
      f.out += here * f.out_row;
    }
  }
}

}  // namespace froghopper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
