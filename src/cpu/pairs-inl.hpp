// SPDX-License-Identifier: Apache-2.0
// cpu: how matrices are laid out for products in floats, in pairs of bf16 numbers, and in tiles. Two layouts of pairs:
//
//   along    two neighbours of a row: what lies in memory anyway. [row][column / 2]
//   across   the same column of two neighbouring rows. [row / 2][column]
//
// A product sums over pairs, so its first factor has them along its rows, its second one across them.
#include <algorithm>
#include <cstring>
#include <utility>

#include "src/cpu/factors.hpp"

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
  using Unit = float;
  static constexpr int per_unit = 1;
  static constexpr bool tiles = false;
  static void product(const Factors<float>& f, int rows, int columns) { multiply(f, rows, columns); }
};

struct InPairs {
  using Unit = Pair;
  static constexpr int per_unit = 2;
  static constexpr bool tiles = false;
  static void product(const Factors<Pair>& f, int rows, int columns) { multiply(f, rows, columns); }
};

// out [rows][columns] = age out; most tiles of keys bring no larger score, and every age is 1.
inline void make_older(const float* age, float* out, int rows, int columns, size_t row) {
  const Floats d;
  if (std::all_of(age, age + columns, [](float x) { return x == 1; })) return;
  for (int r = 0; r < rows; ++r, out += row) {
    for (int c = 0; c < columns; c += vector_lanes)
      hn::Store(hn::Mul(hn::Load(d, age + c), hn::Load(d, out + c)), d, out + c);
  }
}

// In tiles the first factor's pairs lie along its rows in memory too.
template <auto multiply_pairs>
struct InTiles {
  using Unit = Pair;
  static constexpr int per_unit = 2;
  static constexpr bool tiles = true;
  static void product(Factors<Pair> f, int rows, int columns) {
    if (f.age) make_older(std::exchange(f.age, nullptr), f.out, rows, columns, f.out_row);
    multiply_pairs(f, rows, columns);
  }
};

constexpr int units(int numbers, int per_unit) { return (numbers + per_unit - 1) / per_unit; }

// A row as it lies in memory.
inline void to_units(const void* from, Dtype type, int count, float* to) { to_floats(from, type, count, to); }
inline void to_units(const void* from, Dtype, int count, Pair* to) {
  std::memcpy(to, from, count * sizeof(uint16_t));
}

// Transposing moves 32 bits at a time, whatever they are.
inline void transpose(const Pair* from, size_t from_row, int rows, int columns, Pair* to, size_t to_row) {
  transpose(reinterpret_cast<const float*>(from), from_row, rows, columns, reinterpret_cast<float*>(to), to_row);
}

// Two rows of bf16 become one across. count: numbers of a row, a multiple of 8.
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

// Two rows of floats, rounded, become one across. second: null for zeros. count: a multiple of vector_lanes.
inline void round_across(const float* first, const float* second, int count, Pair* to) {
  const Floats d;
  const hn::RebindToUnsigned<Floats> bits;
  const auto high = hn::Set(bits, 0xffff0000u);
  for (int i = 0; i < count; i += vector_lanes) {
    const auto x = hn::ShiftRight<16>(hn::BitCast(bits, ready_to_cut(d, hn::Load(d, first + i))));
    auto y = hn::Zero(bits);
    if (second) y = hn::And(hn::BitCast(bits, ready_to_cut(d, hn::Load(d, second + i))), high);
    hn::Store(hn::Or(x, y), bits, reinterpret_cast<uint32_t*>(to + i));
  }
}

}  // namespace froghopper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
