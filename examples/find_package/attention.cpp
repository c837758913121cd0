// SPDX-License-Identifier: Apache-2.0
// Two sequences of different length lie end to end, without padding, and attend each to itself: one call. Then each is
// computed alone, which must give the same. bf16 on the CPU; tensors in GPU memory need no "cpu", but a workspace and a
// stream, as examples/gpu has them.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <froghopper/froghopper.hpp>
#include <random>
#include <vector>

using Bf16 = std::uint16_t;  // the upper half of a float

float to_float(Bf16 x) { return std::bit_cast<float>(std::uint32_t{x} << 16); }

std::vector<Bf16> random_tensor(std::int64_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<Bf16> tensor(static_cast<std::size_t>(size));
  for (Bf16& x : tensor) x = static_cast<Bf16>(std::bit_cast<std::uint32_t>(normal(random)) >> 16);
  return tensor;
}

int main() try {
  constexpr std::int64_t heads = 4, dim = 128, row = heads * dim;
  const std::vector<std::int32_t> cu_seqlens = {0, 70, 300};  // rows 0..69 and rows 70..299
  const std::int64_t total = cu_seqlens.back();

  const auto q = random_tensor(total * row, 1), k = random_tensor(total * row, 2), v = random_tensor(total * row, 3);
  std::vector<Bf16> together(q.size()), alone(q.size());

  const froghopper::Problem packed = {.batch = 2,
                                      .heads_q = heads,
                                      .heads_kv = heads,
                                      .seq_q = total,
                                      .seq_kv = total,
                                      .dim_qk = dim,
                                      .varlen = true,
                                      .total_q = total,
                                      .total_kv = total,
                                      .causal = true};
  froghopper::attention(packed,
                        {.q = froghopper::dense(q.data(), total, heads, dim),
                         .k = froghopper::dense(k.data(), total, heads, dim),
                         .v = froghopper::dense(v.data(), total, heads, dim),
                         .o = froghopper::dense(together.data(), total, heads, dim),
                         .cu_seqlens_q = cu_seqlens.data(),
                         .cu_seqlens_kv = cu_seqlens.data()},
                        "cpu");

  for (std::size_t i = 0; i + 1 < cu_seqlens.size(); ++i) {
    const std::int64_t begin = cu_seqlens[i] * row, rows = cu_seqlens[i + 1] - cu_seqlens[i];
    const froghopper::Problem one = {
        .heads_q = heads, .heads_kv = heads, .seq_q = rows, .seq_kv = rows, .dim_qk = dim, .causal = true};
    const froghopper::Plan plan(one, "cpu");
    plan.run({.q = froghopper::dense(q.data() + begin, rows, heads, dim),
              .k = froghopper::dense(k.data() + begin, rows, heads, dim),
              .v = froghopper::dense(v.data() + begin, rows, heads, dim),
              .o = froghopper::dense(alone.data() + begin, rows, heads, dim)});
    std::printf("%s\n", plan.line().c_str());
  }

  float worst = 0;
  for (std::size_t i = 0; i < together.size(); ++i) {
    const float off = std::abs(to_float(together[i]) - to_float(alone[i]));
    if (!(off <= worst)) worst = off;  // also where it is no number
  }
  std::printf("largest difference %.1e\n", worst);
  return worst < 0.02f ? 0 : 1;  // one bf16 step of values up to 4
} catch (const froghopper::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
