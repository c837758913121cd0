// SPDX-License-Identifier: Apache-2.0
// plan: tuned tile shapes of the forward kernel.
#include <algorithm>
#include <array>
#include <numeric>

#include "contract/fwd_smem.h"
#include "src/base/ceil_div.hpp"
#include "src/plan/forward.hpp"
#include "src/plan/time.hpp"
#include "src/plan/tuning.hpp"

namespace froghopper {
namespace {

// Head dims of Q and K, of V and O. They are multiples of 32, because O leaves the registers 32 columns at a time. More
// pairs would only be more code: TMA fills up a smaller head dim with zeros, and it costs the products of the tile.
// Above 256, which 8-bit q does not have, the first pair that holds a problem's head dims is also the one that
// multiplies fewest columns, except for some whose dim_v is above 256 and dim_qk much below.
constexpr std::array<Dims, 11> kernel_dims = {{{64, 64},
                                               {96, 96},
                                               {128, 128},
                                               {192, 128},
                                               {192, 192},
                                               {256, 256},
                                               {256, 512},
                                               {384, 192},
                                               {512, 256},
                                               {384, 384},
                                               {512, 512}}};

// Where there is work for every SM for several rounds, `many_work`: the faster ones at 16k tokens on an H200. Where
// there is less, tiles of 128 rows may use SMs that larger ones leave idle, or larger ones waste less of the last
// round; the model of time says which.
Tiles of_two(const Problem& p, Dims dims, const Device& device, Tiles few_rows, Tiles many_rows, Tiles many_work) {
  if (items_at_most(p, many_rows.q) > int64_t{tuning::rounds_that_count} * usable_sms(p, device)) return many_work;
  const double enough = bounded_below(kernel_mask(p)) ? tuning::clearly_quicker : 1;
  const Candidate candidates[] = {{.variant = plain_variant(p, dims, many_rows)},
                                  {.variant = plain_variant(p, dims, few_rows), .below = enough}};
  return quickest(p, candidates, device).variant.tiles;
}

constexpr Tiles four_m_tiles = {256, 64, 4};  // at head dim 64

// Four consumers at head dim 64 have no registers to spare for a window's second bound together with anything else, nor
// for the largest score: they would spill in the inner loop.
bool four_m_tiles_fit(const Problem& p) {
  const bool more =
      p.ragged() || p.softcap > 0 || p.alibi || p.merges_lse() || p.attention_chunk > 0 || is_8_bit(p.dtype_kv);
  return !p.max_logit && !(bounded_below(kernel_mask(p)) && more);
}

// Rows that tiles of so many have for a head's query rows; 0: lengths lie on the device.
int64_t padded_rows(const Problem& p, int tile_q) { return p.ragged() ? 0 : ceil_div(p.seq_q, tile_q) * tile_q; }

// Whether tiles of 192 rows, which are faster, make so little more of the rows and keys that a problem has that it
// pays also where there are few keys; below 256 it was not measured. Rows of q, k and v that do not begin at a whole
// sector of memory come slower, and 192 rows of q read k and v less often. docs/experiments/0004.
bool rows_192_are_worth_it(const Problem& p, Tiles rows_128, Tiles rows_192) {
  if (bounded_below(kernel_mask(p)) || p.ragged() || p.seq_kv < tuning::padding_keys_least) return false;
  const bool whole_sectors = p.dim_qk * size_of(p.dtype) % tuning::sector_bytes == 0;
  const int64_t percent = whole_sectors ? tuning::padding_percent : tuning::padding_percent_between_sectors;
  const auto padded = [&](Tiles t) { return padded_rows(p, t.q) * (ceil_div(p.seq_kv, t.kv) * t.kv); };
  return 100 * padded(rows_192) <= percent * padded(rows_128);
}

// With tiles of 128 keys there are no registers for both a score modification and the largest score.
bool guards_modified_scores(const Problem& p) { return p.max_logit && (p.softcap > 0 || p.alibi); }

// Head dims 96 and 128 of 8-bit types: tiles of 192 rows with immediate PV (fwd_immediate_pv) where they are faster
// than those of 128 rows: docs/experiments/0027.
Tiles fp8_tiles_of_128(const Problem& p, Dims dims, const Device& device) {
  const Mask mask = kernel_mask(p);
  const Tiles rows_192{192, 128, dims.qk == 96 ? 4 : 3};
  const bool long_tiles = dims.qk == 128 && p.scale_rows == 0 && p.seq_kv >= tuning::fp8_long_keys;
  const Tiles rows_128 = long_tiles ? Tiles{128, 192, 2} : Tiles{128, 128, 3};
  const bool few_keys = (mask == Mask::causal || p.ragged()) && p.seq_kv < tuning::few_keys;
  if (few_keys || 100 * padded_rows(p, 192) > tuning::fp8_padding_percent * padded_rows(p, 128)) return rows_128;
  return of_two(p, dims, device, rows_128, rows_192, rows_192);
}

// 8-bit types: P takes half as many registers, and O is still as large. 128 keys at head dim 256 take all 240 that a
// thread can have; a window, a softcap, slopes, an LSE merge or the largest score would spill in the inner loop, so
// there are 64 keys; nor do slopes or the largest score fit with 192 keys, with 192 rows or at head dim 192. Measured:
// docs/experiments/0025.
Tiles fp8_tiles(const Problem& p, Dims dims, const Device& device) {
  const Mask mask = kernel_mask(p);
  if (dims.qk == 64) {
    const bool many_rows = mask == Mask::none || (mask == Mask::causal && p.seq_kv >= tuning::few_keys);
    return many_rows && !guards_modified_scores(p) && !p.alibi ? Tiles{192, 128, 4} : Tiles{128, 128, 4};
  }
  const bool plain = !bounded_below(mask) && p.softcap == 0 && !p.alibi && !p.merges_lse() && !p.max_logit;
  if (dims.qk <= 128) return plain ? fp8_tiles_of_128(p, dims, device) : Tiles{128, 128, 3};
  if (dims.qk == 192 && !guards_modified_scores(p) && !p.alibi) return {128, 128, 2};
  return plain ? Tiles{128, 128, 2} : Tiles{128, 64, 3};
}

// 8-bit k and v with 16-bit q. A tile is dequantised once for all query rows of a CTA, so these are many; keys are 64
// or 128 for the scales. Shared memory has room for stored tiles too, so rings have one stage less than with 16-bit
// types.
Tiles dequantising_tiles(const Problem& p, Dims dims, const Device& device) {
  const auto of = [&](Tiles few_rows, Tiles many) { return of_two(p, dims, device, few_rows, many, many); };
  const Tiles rows_128 = few_rows_tiles(p, dims);
  if (p.scale_tokens) return rows_128;
  if (dims.qk == 64) return of(rows_128, four_m_tiles_fit(p) ? four_m_tiles : Tiles{192, 64, 5});
  if (dims.qk <= 128) return of(rows_128, {192, 64, 3});
  return rows_128;
}

// 8-bit k and v: 64 or 128 query rows as with 16 bits, if Q has room next to the dequantised tiles; 32 keys are within
// a block of scales, and leave room for more stored tiles than 48 or 64.
Tiles dequantising_tiles_above_256(Dims dims) {
  const int rows = dims.v > 256 || dims.qk > 384 ? m_tile_rows : 2 * m_tile_rows;
  return {rows, scale_block / 4, 2};
}

// Shared memory bounds these: Q and two stages of K and V. docs/3-forward.md, "Head dims above 256".
Tiles tiles_above_256(Dims dims) {
  const int rows = dims.v > 256 ? m_tile_rows : 2 * m_tile_rows;
  return {rows, dims.qk <= 256 ? 64 : dims.qk <= 384 ? 48 : 32, 2};
}

// Registers bound the shapes: a consumer holds S (tile_kv / 2), P (tile_kv / 4) and O (dim_v / 2) at the same
// time, and about 30 registers for addresses and rows, in 232, 160 or 112 registers for 2, 3 or 4 consumers;
// docs/3-forward.md. Of those that fit the fastest on an H200 was taken, at 512 to 16k keys: docs/4-planning.md, "Which
// kernel". Few keys want small tiles, whose remainders waste less; many want 192 query rows, which read K and V less
// often.
Tiles usual_tiles(const Problem& p, Dims dims, const Device& device) {
  const KvPath path = kv_path(p.dtype, kv_of(p), /*pack_gqa=*/false);
  if (path == KvPath::fp8_mma) return fp8_tiles(p, dims, device);
  if (path == KvPath::dequantises_on_load) return dequantising_tiles(p, dims, device);
  if (above_256(dims)) return tiles_above_256(dims);
  const Mask mask = kernel_mask(p);
  const int64_t keys = keys_attended(p);
  const Tiles rows_128 = few_rows_tiles(p, dims);
  if (dims.qk == 64) {
    const Tiles rows_192{192, 64, 5};
    // Measured on both cards: docs/experiments/0005.
    if (bounded_below(mask))
      return keys >= tuning::window_of_four_m_tiles && four_m_tiles_fit(p) ? four_m_tiles : rows_192;
    // By padded rows: docs/experiments/0004.
    const bool fewer_by_192 =
        mask == Mask::none && 100 * padded_rows(p, 192) < tuning::four_m_tiles_percent * padded_rows(p, 256);
    const Tiles many_rows = four_m_tiles_fit(p) && !fewer_by_192 ? four_m_tiles : rows_192;
    return of_two(p, dims, device, rows_128, many_rows, many_rows);
  }
  if (dims.qk == 96) {
    // Of 80 keys the ragged kernel would spill in its inner loop.
    const bool plain = mask == Mask::none && !p.ragged() && !guards_modified_scores(p);
    const Tiles rows_192 = plain ? Tiles{192, 80, 3} : Tiles{192, 64, 3};
    const bool few_keys = keys < tuning::few_keys && !rows_192_are_worth_it(p, rows_128, rows_192);
    return of_two(p, dims, device, rows_128, rows_192, few_keys ? rows_128 : rows_192);
  }
  if (dims.qk == 128) {
    // A window of few keys has its ends in few tiles of 128.
    if (bounded_below(mask) && keys <= tuning::narrow_window_128) return rows_128;
    const Tiles rows_192{192, 64, 4};
    // Of few causal keys much is masked away in tiles of 128.
    const bool few_keys = keys < tuning::few_keys &&
                          (mask == Mask::none || (mask == Mask::causal && keys > tuning::mostly_masked_keys)) &&
                          !rows_192_are_worth_it(p, rows_128, rows_192);
    return of_two(p, dims, device, rows_128, rows_192, few_keys ? rows_128 : rows_192);
  }
  if (dims.qk == 192 && dims.v == 128 && keys < tuning::few_keys) return {128, 64, 3};
  // Faster than 128x64 for narrow windows: docs/experiments/0005.
  if (dims.qk == 256 && mask == Mask::window && keys <= tuning::narrow_window_256) return {64, 64, 2};
  return rows_128;
}

// Batch-invariant kernels have tiles of 64 keys, with as many stages as fit, 4 at most.
Tiles with_batch_invariant_keys(Tiles usual, Dims dims) {
  FwdVariant v = {};
  v.dtype = Dtype::bf16, v.dims = dims, v.tiles = {usual.q, batch_invariant_tile_kv, 4};
  while (v.tiles.stages > 2 && fwd_smem_bytes(v) > smem_bytes_per_cta) --v.tiles.stages;
  return v.tiles;
}

}  // namespace

// A window may be as wide as 64 bits allow, so its sides are cut first.
int64_t keys_attended(const Problem& p) {
  const int64_t of_chunk = p.attention_chunk > 0 ? std::min(p.attention_chunk, p.seq_kv) : p.seq_kv;
  if (p.window_left == all_keys || p.window_right == all_keys) return of_chunk;
  return std::min(of_chunk, std::min(p.window_left, p.seq_kv) + 1 + std::min(p.window_right, p.seq_kv));
}

// The rows of a page that one TMA box has, which stays within its page and within the tile.
int box_of_pages(const Problem& p, const Tiles& tiles) {
  return static_cast<int>(std::gcd(p.page_size, int64_t{tiles.kv}));
}

KvLayout kv_layout(const Problem& p, const Tiles& tiles) {
  if (!p.paged()) return KvLayout::contiguous;
  return box_of_pages(p, tiles) >= tuning::page_box_least ? KvLayout::pages : KvLayout::page_rows;
}

FwdKv kv_of(const Problem& p) {
  return {.dtype = p.dtype_kv,
          .dequantised = false,
          .blocks = false,
          .smooth = p.smooth,
          .layout = KvLayout::contiguous,
          .token_scales = p.scale_tokens};
}

FwdVariant plain_variant(const Problem& p, Dims dims, Tiles tiles) {
  return {.dtype = p.dtype,
          .kv = kv_of(p),
          .dims = dims,
          .tiles = tiles,
          .mask = kernel_mask(p),
          .ragged = p.ragged(),
          .score_mods = {.softcap = p.softcap > 0, .alibi = p.alibi},
          .pack_gqa = false,
          .split_kv = SplitKv::none,
          .merges_lse = p.merges_lse(),
          .batch_invariant = p.invariant,
          .max_logit = p.max_logit,
          .gated = p.gate};
}

Tiles few_rows_tiles(const Problem& p, Dims dims) {
  if (is_8_bit(p.dtype_kv) && above_256(dims)) return dequantising_tiles_above_256(dims);
  if (p.scale_tokens) return dims.qk > 192 ? Tiles{128, 32, 3} : Tiles{128, 64, dims.v <= 128 ? 3 : 2};
  if (is_8_bit(p.dtype_kv)) {  // stored tiles take a stage
    if (dims.qk == 64) return {128, 128, 3};
    if (dims.qk <= 128) return {128, 128, 2};
    return {128, 64, dims.v == 128 ? 3 : 2};
  }
  if (above_256(dims)) return tiles_above_256(dims);
  if (dims.qk == 64) return {128, 128, 4};
  if (dims.qk <= 128) return guards_modified_scores(p) ? Tiles{128, 64, 4} : Tiles{128, 128, 2};
  if (dims.qk == 192) return dims.v == 128 ? Tiles{128, 96, 2} : Tiles{128, 80, 2};
  return {128, 64, 2};
}

// With split-KV they are faster than tiles of 128 rows only at head dim 64: docs/experiments/0031.
std::optional<Tiles> many_rows_tiles(const Problem& p, Dims dims) {
  if (dims.qk != 64 || is_8_bit(p.dtype_kv) || !four_m_tiles_fit(p)) return std::nullopt;
  return four_m_tiles;
}

std::optional<Dims> tile_dims(int64_t dim_qk, int64_t dim_v) {
  for (const Dims& dims : kernel_dims)
    if (dim_qk <= dims.qk && dim_v <= dims.v) return dims;
  return std::nullopt;
}

// Small boxes take long to issue, and a ring of two stages is then filled too late. Larger tiles are for problems
// that have enough of them.
std::optional<Tiles> tiles_of_small_pages(const Problem& p, Dims dims, const Tiles& usual, int sms) {
  constexpr Tiles larger = {192, 80, 3};
  const bool measured = dims.qk == 128 && dims.v == 128 && !is_8_bit(p.dtype_kv) && !p.invariant;
  if (!p.paged() || !measured || p.seq_q <= 2 * m_tile_rows || box_of_pages(p, usual) >= tuning::page_box_enough)
    return {};
  const auto rows_of_sm = [&](int tile_q) {
    return std::max(1.0, static_cast<double>(items_at_most(p, tile_q)) / sms) * tile_q;
  };
  if (rows_of_sm(larger.q) > tuning::page_rows_most * rows_of_sm(usual.q)) return {};
  return larger;
}

Tiles tuned_tiles(const Problem& p, Dims dims, const Device& device) {
  const Tiles usual = usual_tiles(p, dims, device);
  if (p.invariant) return with_batch_invariant_keys(usual, dims);
  return tiles_of_small_pages(p, dims, usual, usable_sms(p, device)).value_or(usual);
}

}  // namespace froghopper
