// SPDX-License-Identifier: Apache-2.0
// check: the kinds of inputs. Most bugs of attention kernels pass a test on normally distributed values, whose scores
// are within a few units of one another and whose log-sum-exp is positive. In the kinds below the running maximum
// jumps, falls, rises late or is far below 0.
#include "check/data.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace froghopper::check {

namespace {

// 2^16 normally distributed values, drawn once: a large tensor is filled faster than by a logarithm and a cosine an
// entry.
const std::array<float, 65536>& normal_table() {
  static const auto table = [] {
    std::array<float, 65536> t;
    for (size_t i = 0; i < t.size(); ++i) {
      const double u = (random_bits(1, i) >> 11) * 0x1p-53, w = (random_bits(2, i) >> 11) * 0x1p-53;
      t[i] = static_cast<float>(std::sqrt(-2 * std::log1p(-u)) * std::cos(2 * M_PI * w));
    }
    return t;
  }();
  return table;
}

bool within(int64_t key, int64_t keys, double from, double to) { return key > from * keys && key < to * keys; }
float of_key(int64_t key) { return random_normal(3, static_cast<uint64_t>(key)); }

// Kernels walk the keys from the last to the first, so what is "late" below has small key numbers.
constexpr float small = 0.5f;
constexpr Data kinds[] = {
    {"normal", 1, 1},
    // Queries as large as trained models have them: weights from nearly equal to nearly all on one key.
    {"times2", 2, 1},
    {"times4", 4, 1},
    {"times10", 10, 1},
    {"times30", 30, 1},
    {"qk_times4", 4, 4},
    // The numerical error table of the FlashAttention-3 paper: rows with one entry of k far above the others.
    {"outliers", 1, 1, nullptr, 0, 0, random_with_outliers},
    {"huge", 0, 0, nullptr, 133120},  // the largest scores asked about: 133120^2 dim scale, all equal
    {"zero_v_one", 1, 1, nullptr, 0, 1},
    {"antialigned", small, small, [](int64_t, int64_t) { return -120.0f; }},  // exp(lse) is 0 in fp32
    // A maximum that moves by more than fp16 holds at every tile of 128 keys, in either direction.
    {"rising_100_a_tile", small, small,
     [](int64_t j, int64_t n) { return static_cast<float>((n - 1 - j) / 128 * 100); }},
    {"falling_100_a_tile", small, small, [](int64_t j, int64_t) { return static_cast<float>(j / 128 * 100); }},
    {"rising_20_a_key", small, small, [](int64_t j, int64_t n) { return static_cast<float>(n - j) * 20; }},
    // A maximum far above the rest, which comes last, in the middle, or rather early.
    {"late_200", small, small, [](int64_t j, int64_t) { return j < 3 ? 200.0f : 0.0f; }},
    {"middle_200", small, small, [](int64_t j, int64_t n) { return within(j, n, 0.5, 0.502) ? 200.0f : 0.0f; }},
    {"middle_90", small, small, [](int64_t j, int64_t n) { return within(j, n, 0.5, 0.502) ? 90.0f : 0.0f; }},
    {"middle_20", small, small, [](int64_t j, int64_t n) { return within(j, n, 0.35, 0.502) ? 20.0f : 0.0f; }},
    // Neighbours, tiles and halves that have nothing in common.
    {"alternating_1e4", small, small, [](int64_t j, int64_t) { return j % 2 == 0 ? 1e4f : -1e4f; }},
    {"random_300", small, small, [](int64_t j, int64_t) { return 300 * of_key(j); }},
    {"random_3000_a_tile", small, small, [](int64_t j, int64_t) { return 3000 * of_key(j / 64); }},
    {"half_minus_1e4", small, small, [](int64_t j, int64_t n) { return j > n / 2 ? -1e4f : 0.0f; }},
    {"one_key_3e8", small, small, [](int64_t j, int64_t) { return j == 17 ? 3e8f : 0.0f; }},
    {"rows_differ", 15, 15},  // every row has a maximum of its own, hundreds above the mean
    // Neighbouring rows of q as far apart as values of bf16 are.
    {"rows_apart", 1, 1, nullptr, 0, 0, random_normal,
     [](int64_t row) { return row % 2 == 0 ? 4.0f : std::ldexp(1.0f, -static_cast<int>(row % 120)); }},
    // Neighbouring blocks of rows of v as far apart as values of fp16 are.
    {"v_apart", 1, 1, nullptr, 0, 0, random_normal, nullptr,
     [](int64_t row) {
       return std::ldexp(1.5f, std::array{-20, 0, 13}[static_cast<size_t>(row / scale_block % 3)]);
     }},
    {"ends", 1, 1, nullptr, 0, 0, random_normal, nullptr, nullptr, true},
};

}  // namespace

// splitmix64 of a counter.
uint64_t random_bits(uint64_t stream, uint64_t i) {
  uint64_t x = (stream * 0xd1342543de82ef95 + i + 1) * 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

float random_normal(uint64_t stream, uint64_t i) {
  static const std::array<float, 65536>& table = normal_table();
  return table[random_bits(stream, i) >> 48];
}

float random_with_outliers(uint64_t stream, uint64_t i) {
  // Streams of make_inputs are small numbers; these two are far from all of them.
  constexpr uint64_t which = uint64_t{1} << 40, size = uint64_t{1} << 41;
  const float usual = random_normal(stream, i);
  return random_bits(stream + which, i) % 1000 == 0 ? usual + 10 * random_normal(stream + size, i) : usual;
}

std::span<const Data> all_data() { return kinds; }

const Data* find_data(const std::string& name) {
  const auto found = std::ranges::find_if(kinds, [&](const Data& d) { return name == d.name; });
  return found == std::end(kinds) ? nullptr : found;
}

float end_of_range(uint64_t i) {
  using Float = std::numeric_limits<float>;
  constexpr float largest = Float::max(), infinity = Float::infinity();
  // 2.4e38 and more is infinite in base 2. The ordinary number is small: a GPU takes the difference of two products for
  // slope times distance, whose rounding grows with the slope, and next to these ends lse is judged strictly.
  constexpr std::array ends = {largest,  0.015625f,           -infinity, 2.4e38f,
                               infinity, Float::denorm_min(), -largest,  Float::min()};
  return ends[i % ends.size()];
}

float largest_entry(Dtype t) {
  switch (t) {
    case Dtype::f16: return 57344.0f;
    case Dtype::bf16:
    case Dtype::f32:
    case Dtype::e4m3:  // their scales reach as far
    case Dtype::e5m2: return 133120 * 1e6f;
  }
  return 0;
}

float key_column_0(const Data& data, const Problem& p, int64_t key, int64_t keys) {
  if (p.scale == 0) return 0;  // then no number gives another score
  const float wanted = data.score(key, keys) / (p.scale * query_column_0);
  return std::clamp(wanted, -largest_entry(p.dtype_kv), largest_entry(p.dtype_kv));
}

}  // namespace froghopper::check
