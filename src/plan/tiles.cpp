// SPDX-License-Identifier: Apache-2.0
#include "src/plan/tiles.hpp"

#include <array>
#include <cstdio>

namespace froghopper {
namespace {

// Columns of Q and K, columns of V and O. Multiples of 32, because O leaves the registers 32 columns at a time. More
// pairs would only be more code: a narrower tensor loads as zeros beyond its columns and costs the tile's products.
constexpr std::array<TileDims, 6> kernel_dims = {
    {{64, 64}, {96, 96}, {128, 128}, {192, 128}, {192, 192}, {256, 256}}};

}  // namespace

std::optional<TileDims> tile_dims(int64_t dim_qk, int64_t dim_v) {
  for (const TileDims& dims : kernel_dims)
    if (dim_qk <= dims.qk && dim_v <= dims.v) return dims;
  return std::nullopt;
}

// Registers bound the shapes: a consumer holds S (tile_kv / 2), P (tile_kv / 4) and O (dim_v / 2) at once, beside
// about 30 for addresses and rows, in 232, 160 or 112 registers for 2, 3 or 4 consumers; docs/3-forward.md. Of those
// that fit the fastest on an H200 was taken, at 512 to 16k keys. Few keys want small tiles, whose remainders waste
// less; many want 192 query rows, which read K and V less often.
Tiles tuned_tiles(TileDims dims, Mask mask, int64_t keys) {
  // Four consumers have no registers to spare for a window's second bound: they would spill in the inner loop.
  if (dims.qk == 64) return mask == Mask::window ? Tiles{192, 64, 5} : Tiles{256, 64, 4};
  if (dims.qk == 96)
    return keys < 2048 ? Tiles{128, 128, 2} : mask == Mask::none ? Tiles{192, 80, 3} : Tiles{192, 64, 3};
  if (dims.qk == 128) {
    const bool small =
        keys < 2048 && (mask == Mask::none || keys > 512);  // few causal rows: what is masked away counts
    return small ? Tiles{128, 128, 2} : Tiles{192, 64, 4};
  }
  if (dims.qk == 192 && dims.v == 128) return keys < 2048 ? Tiles{128, 64, 3} : Tiles{128, 96, 2};
  if (dims.qk == 192) return {128, 80, 2};
  return {128, 64, 2};
}

std::optional<Tiles> parse_tiles(const std::string& text) {
  Tiles tiles{};
  int end = 0;
  const int got = std::sscanf(text.c_str(), "%dx%ds%d%n", &tiles.q, &tiles.kv, &tiles.stages, &end);
  if (got != 3 || text[end] != '\0') return std::nullopt;
  return tiles;
}

}  // namespace froghopper
