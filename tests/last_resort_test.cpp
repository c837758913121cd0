// SPDX-License-Identifier: Apache-2.0
// Claim: rows are converted exactly, and rounded to nearest, also by what Highway has for processors without vector
// units, whichever compiler made it. GCC 12.2 takes HWY_SCALAR, other compilers HWY_EMU128; this file takes the latter
// with all of them.
#define HWY_BROKEN_EMU128 0
#define HWY_COMPILE_ONLY_EMU128
#define HWY_IS_DEBUG_BUILD 0
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "src/cpu/convert-inl.hpp"
#include "src/cpu/row-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace froghopper::cpu::HWY_NAMESPACE {

// Every number of a type, in the order of its bits.
template <class Bits>
std::vector<Bits> all_bits() {
  std::vector<Bits> all(size_t{1} << (8 * sizeof(Bits)));
  std::iota(all.begin(), all.end(), Bits{0});
  return all;
}

void expect_all_of(const std::vector<float>& read, const void* stored, Dtype type) {
  for (size_t i = 0; i < read.size(); ++i) {
    const float wanted = load(stored, static_cast<int64_t>(i), element_of(type));
    ASSERT_TRUE(read[i] == wanted || (std::isnan(read[i]) && std::isnan(wanted)))
        << name_of(type) << " with the bits " << i << " is " << wanted << ", not " << read[i];
  }
}

template <class T, class Bits>
void read_all(Dtype type) {
  const std::vector<Bits> stored = all_bits<Bits>();
  std::vector<float> read(stored.size());
  to_floats(stored.data(), type, static_cast<int>(stored.size()), read.data());
  expect_all_of(read, stored.data(), type);

  const Floats d;
  const auto* const row = reinterpret_cast<const T*>(stored.data());
  for (size_t i = 0; i < stored.size(); i += hn::Lanes(d)) hn::StoreU(load_floats(d, row + i), d, &read[i]);
  expect_all_of(read, stored.data(), type);
}

void expect_exact_reading() {
  read_all<hwy::float16_t, uint16_t>(Dtype::f16);
  read_all<hwy::bfloat16_t, uint16_t>(Dtype::bf16);
  read_all<EightBits<Dtype::e4m3>, uint8_t>(Dtype::e4m3);
  read_all<EightBits<Dtype::e5m2>, uint8_t>(Dtype::e5m2);
}

// A quarter, a half and three quarters of the way from every f16 to the next, of either sign, and beyond the largest.
void expect_rounding() {
  std::vector<float> numbers = {INFINITY, -INFINITY, 65519, 65520, -65520, 1e30f, 0, -0.0f};
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const float here = f16_to_float(static_cast<uint16_t>(bits)),
                next = f16_to_float(static_cast<uint16_t>(bits + 1));
    for (const float part : {0.0f, 0.25f, 0.5f, 0.75f})
      for (const float sign : {1.0f, -1.0f}) numbers.push_back(sign * (here + part * (next - here)));
  }
  ASSERT_EQ(numbers.size() % 8, 0u);
  std::vector<uint16_t> rounded(numbers.size());
  from_floats(numbers.data(), Dtype::f16, static_cast<int>(numbers.size()), rounded.data());
  for (size_t i = 0; i < numbers.size(); ++i) ASSERT_EQ(rounded[i], float_to_f16(numbers[i])) << numbers[i];
}

}  // namespace froghopper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace froghopper::cpu {

TEST(last_resort, is_what_this_file_asks_for) { EXPECT_EQ(HWY_TARGET, HWY_EMU128); }
TEST(last_resort, reads_every_number_of_every_type) { HWY_STATIC_DISPATCH(expect_exact_reading)(); }
TEST(last_resort, rounds_f16_to_nearest) { HWY_STATIC_DISPATCH(expect_rounding)(); }

}  // namespace froghopper::cpu
