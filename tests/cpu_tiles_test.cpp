// SPDX-License-Identifier: Apache-2.0
// tests: products in tiles, emulated, and in the tiles of AMX where the processor has them, against plain loops.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "src/base/storage.hpp"
#include "src/cpu/factors.hpp"

namespace froghopper {
namespace {

using cpu::Factors;
using cpu::Pair;

using Multiply = void (*)(const Factors<Pair>&, int, int);

// Whole numbers up to 8, so that sums are exact. What lies around the matrices is NaN and is neither read nor written.
void expect_right_product(Multiply multiply, int rows, int columns, int count, bool adds) {
  constexpr int gap = 5;
  const size_t a_row = count + gap, b_row = columns + gap, out_row = columns + gap;
  constexpr Pair none{0x7fc0, 0x7fc0};
  std::vector<Pair> a(rows * a_row, none), b((count + 1) * b_row, none);
  std::vector<float> out((rows + 1) * out_row, 7);
  std::mt19937 random(1);
  const auto number = [&] { return float_to_bf16(static_cast<float>(random() % 17) - 8); };
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < count; ++i) a[r * a_row + i] = {number(), number()};
  for (int i = 0; i < count; ++i)
    for (int c = 0; c < columns; ++c) b[i * b_row + c] = {number(), number()};
  multiply({.a = a.data(),
            .a_row = a_row,
            .a_step = 1,
            .b = b.data(),
            .b_step = b_row,
            .count = static_cast<size_t>(count),
            .adds = adds,
            .rescale = nullptr,
            .out = out.data(),
            .out_row = out_row},
           rows, columns);
  for (int r = 0; r <= rows; ++r) {
    for (size_t c = 0; c < out_row; ++c) {
      float expected = 7;
      if (r < rows && c < static_cast<size_t>(columns)) {
        if (!adds) expected = 0;
        for (int i = 0; i < count; ++i) {
          const Pair x = a[r * a_row + i], y = b[i * b_row + c];
          expected +=
              bf16_to_float(x.first) * bf16_to_float(y.first) + bf16_to_float(x.second) * bf16_to_float(y.second);
        }
      }
      ASSERT_EQ(out[r * out_row + c], expected) << rows << ' ' << columns << ' ' << count << ": " << r << ' ' << c;
    }
  }
}

void expect_right_products(Multiply multiply) {
  for (int rows : {1, 8, 15, 16, 17, 31, 32, 33, 70}) {
    for (int columns : {16, 32, 48, 64}) {
      for (int count : {1, 4, 15, 16, 17, 32, 36, 64}) {
        expect_right_product(multiply, rows, columns, count, false);
        expect_right_product(multiply, rows, columns, count, true);
      }
    }
  }
}

TEST(CpuTiles, Emulated) { expect_right_products(cpu::multiply_emulated_tiles); }

TEST(CpuTiles, Amx) {
  if (!cpu::has_amx()) GTEST_SKIP() << "this processor has no AMX for bf16, or the system does not give it";
  expect_right_products(cpu::multiply_tiles);
}

}  // namespace
}  // namespace froghopper
