// SPDX-License-Identifier: Apache-2.0
// plan: the row of the table of measured rates that a kernel has, or that of the kernel most like it.
#include "src/plan/rates.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "contract/fwd_smem.h"
#include "src/plan/forward.hpp"
#include "src/plan/time.hpp"

namespace froghopper {
namespace {

// The card that was measured and has the most similar memory: what an H100 and an H200 differ in.
std::string_view nearest(const Device& device) {
  const auto off = [&](const MeasuredRate& m) {
    return std::abs(std::log(1.0 * known_device(m.card).memory_gbps / device.memory_gbps));
  };
  return std::ranges::min_element(measured_rates, {}, off)->card;
}

// A row with the key of an earlier one would never be found.
constexpr bool keys_are_unique() {
  for (const MeasuredRate& m : measured_rates)
    for (const MeasuredRate* other = measured_rates; other != &m; ++other)
      if (other->of == m.of && std::string_view(other->card) == m.card) return false;
  return true;
}
static_assert(keys_are_unique());

// Of the kernel that is most like this one among those that were measured with the same head dims. Work is as fast; a
// tile of another size has more or less of it. For a window a causal kernel with the same tiles counts before a window
// with other tiles: as measured, its iterations take 0 to 5 % longer than causal ones. Among equals the first row
// counts.
Rate rate_of(const MeasuredKernel& like, const Device& device) {
  const std::string_view card = nearest(device);
  const MeasuredRate* best = nullptr;
  const auto unlike = [&](const MeasuredRate& m) {
    const bool tiles = m.of.q != like.q || m.of.kv != like.kv;
    const bool masked = (m.of.mask == Mask::none) != (like.mask == Mask::none);
    return 16 * int{m.of.det != like.det} + 8 * int{masked} + 4 * int{tiles} + 2 * int{m.of.mask != like.mask} +
           int{m.card != card};
  };
  for (const MeasuredRate& m : measured_rates)
    if (m.of.backward == like.backward && m.of.fp8_mma == like.fp8_mma && m.of.dims == like.dims &&
        (!best || unlike(m) < unlike(*best)))
      best = &m;
  if (!best) return {};
  const double area = 1.0 * like.q * like.kv / (best->of.q * best->of.kv);
  const double slower = 1.0 * known_device(best->card).clock_mhz / device.clock_mhz;
  return {best->iteration_us * area * slower, best->item_us * slower};
}

}  // namespace

Rate rate_of(const FwdVariant& v, const Device& device) {
  // PackGQA: one consumer, and K and V are read once. Measured on an H200 and an H100, 1 to 8 sequences of 1k to 16k
  // keys: a tile of 128 keys at head dim 128, or, at smaller head dims, what a key and an element of K or V take;
  // dequantised by two warps of each of two CTAs, and by four.
  constexpr Rate read = {1.0, 1.8}, dequantised_by_two = {1.6, 4.0}, dequantised_by_four = {1.05, 4.0};
  constexpr double key_us = 3.75e-3, element_us = 1.7e-5;
  // What a CTA that copies K and V row by row takes for a byte of them, nearly the same whether it has its SM alone or
  // shares it. docs/experiments/0057.
  constexpr double copied_byte_us = 6.4e-5;
  if (v.pack_gqa && !above_256(v.dims)) {
    const int dims = v.dims.qk + v.dims.v;
    if (v.kv.layout == KvLayout::page_rows)
      return {copied_byte_us * v.tiles.kv * dims * size_of(v.kv.dtype), read.item_us};
    const Rate& m_tile_rows = !fwd_dequantises_on_load(v)        ? read
                              : fwd_dequantises_in_four_warps(v) ? dequantised_by_four
                                                                 : dequantised_by_two;
    const double iteration_us = m_tile_rows.iteration_us * v.tiles.kv * dims / (128 * 256);
    return {std::max(iteration_us, v.tiles.kv * (key_us + element_us * dims)), m_tile_rows.item_us};
  }
  const Rate rate = rate_of({.backward = false,
                             .det = false,
                             .fp8_mma = fwd_fp8_mma(v),
                             .dims = v.dims,
                             .q = v.tiles.q,
                             .kv = v.tiles.kv,
                             .mask = v.mask},
                            device);
  // Measured on an H200: a softcap at head dim 128, dequantising at 4k keys.
  constexpr double softcap_takes = 1.38;
  const double dequantising_takes = v.dims.qk < 128 ? 1.2 : v.dims.qk == 128 ? 1.27 : v.dims.qk == 192 ? 1.36 : 1.45;
  return {rate.iteration_us * (v.score_mods.softcap ? softcap_takes : 1) *
              (fwd_dequantises_on_load(v) ? dequantising_takes : 1),
          rate.item_us};
}

Rate rate_of(const BwdVariant& v, const Device& device) {
  if (v.score_mods.softcap || v.score_mods.alibi) return {};  // not measured
  return rate_of({.backward = true,
                  .det = v.deterministic,
                  .fp8_mma = false,
                  .dims = v.dims,
                  .q = v.tiles.q,
                  .kv = v.tiles.kv,
                  .mask = v.mask},
                 device);
}

}  // namespace froghopper
