// SPDX-License-Identifier: Apache-2.0
// plan: whether query heads share tiles, and into how many parts the keys of a tile are cut (contract/split.h).
// docs/4-planning.md, "Few query rows, few tiles".
#include <algorithm>

#include "contract/fwd_smem.h"
#include "src/base/ceil_div.hpp"
#include "src/base/text.hpp"
#include "src/plan/forward.hpp"
#include "src/plan/time.hpp"
#include "src/plan/tuning.hpp"
#include "src/problem/mask.hpp"

namespace froghopper {
namespace {

// ---- PackGQA ----

// The most heads that share a key head, divide them evenly and fit an M tile.
PackGqaParams pack_gqa_of(const Problem& p) {
  const int64_t group = p.heads_q / p.heads_kv;
  int64_t heads = std::min<int64_t>(group, m_tile_rows);
  while (group % heads != 0) --heads;
  return {static_cast<int>(heads), static_cast<int>(m_tile_rows / heads)};
}

// PackGQA tiles cost half a tile of 128 rows, and where there are as few rows as that, keys are read once a tile.
bool pack_gqa_is_faster(const Problem& p, PackGqaParams pack) {
  const int64_t with_pack_gqa = ceil_div(p.seq_q, pack.rows) * m_tile_rows * (p.heads_q / pack.heads);
  const int64_t plain = ceil_div(p.seq_q, 2 * m_tile_rows) * 2 * m_tile_rows * p.heads_q;
  return 2 * with_pack_gqa <= plain;
}

// With 8-bit k and v what is on its way from memory are stored tiles, so two stages of dequantised ones are enough.
// Measured: docs/experiments/0031.
Tiles dequantising_pack_gqa_tiles(Dims dims, bool token_scales) {
  if (above_256(dims)) return {m_tile_rows, scale_block / 4, 2};
  if (dims.qk == 64 || dims.qk > 128 || token_scales) return {m_tile_rows, 64, 2};
  return {m_tile_rows, 128, 2};
}

// One consumer, K and V read once: what counts is that enough bytes are on their way from memory. Measured:
// docs/experiments/0031.
Tiles pack_gqa_tiles(const Problem& p, Dims dims, bool exact) {
  if (kv_path(p.dtype, kv_of(p), /*pack_gqa=*/true) == KvPath::dequantises_on_load)
    return dequantising_pack_gqa_tiles(dims, p.scale_tokens);
  if (dims.qk == 64 && exact) return {m_tile_rows, batch_invariant_tile_kv, 5};
  // Copied row by row, with a stage less: two CTAs share an SM, so that twice as many warps copy.
  constexpr Tiles usual_64{m_tile_rows, 128, 4}, two_ctas_64{m_tile_rows, 128, 3};
  if (dims.qk == 64) return kv_layout(p, usual_64) == KvLayout::page_rows ? two_ctas_64 : usual_64;
  if (dims.qk <= 128) return {m_tile_rows, 64, 3};
  if (dims.qk == 192) return {m_tile_rows, 64, 3};
  if (dims.qk == 512) return {m_tile_rows, dims.v > 256 ? 32 : 48, 2};  // as many keys as fit
  if (dims.qk == 384 && dims.v > 256) return {m_tile_rows, 48, 2};
  return {m_tile_rows, 64, 2};
}

// A single row that ends with the keys attends to all of them. Other masks take one kernel: what it compares beyond a
// causal one is little compared with the time of memory.
Mask pack_gqa_mask(const Problem& p) {
  if (!p.masked()) return Mask::none;
  const bool attends_to_all = p.seq_q <= 1 && p.align != FH_TOP_LEFT && p.window_left == all_keys;
  return attends_to_all ? Mask::none : Mask::window;
}

// ---- Split ----

int64_t batch_invariant_parts_of(const Problem& p) {
  return std::max<int64_t>(1, ceil_div(p.seq_kv, batch_invariant_part_tiles * batch_invariant_tile_kv));
}

// What the time of a launch follows from.
struct Work {
  int64_t tiles;    // q tiles of all heads
  int64_t longest;  // kv tiles of the longest one
  double all;       // kv tiles of all
  bool equal;       // all are as long
  Rate rate;        // of one SM; an iteration is a kv tile
  double least_us;  // only of memory
  int sms;
};

double kv_tiles_of_all(const Problem& p, int64_t q_tiles, int64_t rows_of_tile, int tile_kv, int64_t heads) {
  const int64_t keys = p.seq_kv;
  if (p.varlen)
    return 1.0 * heads * q_tiles * (static_cast<double>(p.rows_kv()) / tile_kv + 0.5 * static_cast<double>(p.batch));
  if (!p.masked())
    return 1.0 * p.batch * heads * q_tiles * static_cast<double>(ceil_div(std::max<int64_t>(keys, 1), tile_kv));
  const auto rule = mask_rule(p, p.seq_q, keys);
  const int64_t step = std::max<int64_t>(1, q_tiles / tuning::tiles_sampled);
  double sum = 0, count = 0;
  for (int64_t tile = 0; tile < q_tiles; tile += step, ++count) {
    const int64_t first = tile * rows_of_tile, last = std::min(first + rows_of_tile, p.seq_q) - 1;
    const auto attended = rule.tiles(first, last, tile_kv);
    sum += static_cast<double>(attended.end - attended.begin);
  }
  return 1.0 * p.batch * heads * q_tiles * sum / std::max(count, 1.0);
}

double time_us(const Problem& p, const Work& work, int64_t parts) {
  const int64_t of_part = ceil_div(work.longest, parts);
  const double extra = parts > 1 ? combine_us(p, parts) : 0;
  const double one = static_cast<double>(of_part) * work.rate.iteration_us + work.rate.item_us;
  double busiest = 0;  // tiles and items of the busiest SM
  if (work.equal) {
    const double rounds = static_cast<double>(ceil_div(work.tiles * ceil_div(work.longest, of_part), work.sms));
    busiest = rounds * one;
  } else {
    const double items = static_cast<double>(work.tiles) + work.all / static_cast<double>(of_part);
    const double mean = (work.all * work.rate.iteration_us + items * work.rate.item_us) / work.sms;
    busiest = std::max(mean, one) + tuning::left_over * one;
  }
  return overlapped(busiest, work.least_us) + extra;
}

// The number of parts with the least time; 1 where parts bring little.
int64_t best_parts(const Problem& p, const Work& work, double without_us, int64_t most) {
  int64_t best = 1;
  double best_us = without_us * tuning::worth_it;
  for (int64_t parts = 2; parts <= std::min(most, tuning::parts_tried); ++parts) {
    const int64_t real = ceil_div(work.longest, ceil_div(work.longest, parts));
    if (real != parts) continue;
    if (const double us = time_us(p, work, parts); us < best_us) best = parts, best_us = us;
  }
  return best;
}

Work work_of(const Problem& p, const FwdVariant& v, PackGqaParams pack, const Device& device) {
  const int64_t rows = v.pack_gqa ? pack.rows : v.tiles.q, heads = p.heads_q / pack.heads;
  const int64_t q_tiles = ceil_div(p.seq_q, rows), keys = std::max<int64_t>(p.seq_kv, 1);
  Work work{};
  work.tiles = items_at_most(p, v, pack);
  work.longest = ceil_div(keys, v.tiles.kv);
  work.all = kv_tiles_of_all(p, q_tiles, rows, v.tiles.kv, heads);
  work.equal = v.mask == Mask::none && !v.ragged;
  work.sms = usable_sms(p, device);  // two CTAs of one share its speed
  work.rate = rate_of(v, device);
  if (!v.pack_gqa) return work;
  // Not where they dequantise, or copy row by row: one CTA an SM is hardly faster than each of two.
  const bool copies_rows = v.kv.layout == KvLayout::page_rows;
  if (fwd_dequantises_on_load(v) || copies_rows) work.sms *= fwd_ctas_per_sm(v);
  if (fwd_dequantises_on_load(v) && !copies_rows) work.rate.iteration_us *= fwd_ctas_per_sm(v);
  work.least_us = read_us(work.all * v.tiles.kv * static_cast<double>(p.dim_qk + p.dim_v) * size_of(p.dtype_kv) /
                              static_cast<double>(q_tiles),
                          device);
  return work;
}

// Tiles, and into how many parts their keys are cut.
struct Choice {
  Tiles tiles;
  int64_t count;
  double us;
};

// Of plain tiles, handed out item by item: for unequal ones time_us() and best_parts() are rough.
Choice plain_parts(const Problem& p, const FwdVariant& plain, Dims dims, int64_t most, const Device& device) {
  Choice best = {plain.tiles, 1, forward_us(p, plain, 1, device)};
  const double without_us = best.us;
  const auto try_with = [&](Tiles tiles, int64_t tiles_of_part) {
    FwdVariant v = plain;
    v.tiles = tiles;
    const Work work = work_of(p, v, {1, 0}, device);
    const int64_t near = best_parts(p, work, without_us, most),
                  apart = v.mask == Mask::none ? 0 : tuning::parts_apart;
    Choice its = {tiles, 1, best.us * tuning::worth_it};
    for (int64_t parts = std::max<int64_t>(2, near - apart); parts <= std::min(near + apart, most); ++parts) {
      if (time_us(p, work, parts) > tuning::hopeless * its.us) continue;
      if (ceil_div(p.seq_kv, tiles.kv) < tiles_of_part * parts) break;
      const double us = forward_us(p, v, parts, device);
      if (us < its.us) its = {tiles, parts, us};
    }
    if (its.count > 1) best = its;
  };
  // Larger tiles read keys less often; smaller ones make more parts, and short parts that do not wait for each other.
  if (const auto tiles = many_rows_tiles(p, dims)) try_with(*tiles, tuning::part_tiles_of_many_rows);
  try_with(few_rows_tiles(p, dims), tuning::part_tiles_of_few_rows);
  return best;
}

}  // namespace

bool may_have_pack_gqa_or_split_kv(const Problem& p) {
  const bool merges = p.merges_lse() && (p.accumulate || !p.begins());  // with what is there
  return !has_chunks(p) && !p.alibi && !merges;
}

std::optional<Problem> sequences_of_few_rows(const Problem& p, const Tiling& of_all, const Hints& hints) {
  const bool mixed =
      p.varlen && p.paged() && p.batch > 1 && !p.invariant && may_have_pack_gqa_or_split_kv(p) && p.heads_q > 0;
  if (!mixed || of_all.variant.pack_gqa || hints.tiles || hints.pack_gqa || hints.parts) return std::nullopt;
  Problem few = p;
  few.seq_q = pack_gqa_of(p).rows;
  few.total_q = std::min(p.total_q, p.batch * few.seq_q);
  if (few.seq_q >= p.seq_q) return std::nullopt;
  return few;
}

Result<Tiling> choose_tiling(const Problem& p, Dims dims, const Device& device, const Hints& hints) {
  FwdVariant v = plain_variant(p, dims, {});
  PackGqaParams pack = {1, 0};
  const bool may_have_pack_gqa =
      may_have_pack_gqa_or_split_kv(p) && p.heads_q > 0 && (!hints.tiles || hints.tiles->q == m_tile_rows);
  if (may_have_pack_gqa) pack = pack_gqa_of(p);
  v.pack_gqa = hints.pack_gqa ? *hints.pack_gqa != 0 : may_have_pack_gqa && pack_gqa_is_faster(p, pack);
  if (v.batch_invariant && batch_invariant_parts_of(p) > 1 &&
      part_bytes(p) * static_cast<double>(batch_invariant_parts_of(p)) > tuning::batch_invariant_bytes_most)
    v.pack_gqa = false;
  if (!v.pack_gqa) pack = {1, 0};
  if (v.pack_gqa) v.mask = pack_gqa_mask(p);
  v.tiles =
      hints.tiles.value_or(v.pack_gqa ? pack_gqa_tiles(p, dims, v.batch_invariant) : tuned_tiles(p, dims, device));
  v.kv.layout = kv_layout(p, v.tiles);
  if (v.pack_gqa && v.tiles.q != m_tile_rows) pack = pack_gqa_of(p);  // refused below, by its tiles

  if (v.batch_invariant) {
    v.split_kv = v.pack_gqa ? SplitKv::fixed : SplitKv::none;
    return Tiling{v, pack, batch_invariant_part_tiles,
                  static_cast<int>(fwd_splits(v) ? batch_invariant_parts_of(p) : 1)};
  }
  // Parts of even splits take no more for being many. The kernel numbers kv tiles of all heads in an int.
  const double kv_tiles_at_most = 1.0 * static_cast<double>(items_at_most(p, v, pack)) *
                                  static_cast<double>(ceil_div(std::max<int64_t>(p.seq_kv, 1), v.tiles.kv));
  const bool evenly = p.paged() && v.pack_gqa && !hints.parts && kv_tiles_at_most <= static_cast<double>(items_max);
  const double bytes = evenly ? 0 : part_bytes(p);
  const auto bounded = static_cast<int64_t>(bytes > 0 ? std::min(tuning::parts_bytes_most / bytes, 1e6) : 1e6);
  int64_t parts = 1;
  if (hints.parts) {
    parts = *hints.parts;
    if (parts > 1 && is_8_bit(p.dtype) && !v.pack_gqa)
      return unsupported(
          text("parts={} is a hint for 16-bit q, and for PackGQA tiles; plain tiles of 8-bit q have "
               "no split-KV. Leave parts out.",
               parts));
    if (parts > 1 && bytes * static_cast<double>(parts) > tuning::hinted_bytes_most)
      return unsupported(text("parts={} would take {:.0f} bytes of workspace; it can have 2^40. Leave parts out.",
                              parts, bytes * static_cast<double>(parts)));
  } else if (v.pack_gqa) {
    const Work work = work_of(p, v, pack, device);
    parts = best_parts(p, work, time_us(p, work, 1), bounded);
    if (v.ragged) parts = std::max(parts, std::min(bounded, ceil_div(p.seq_kv, tuning::keys_of_ragged_part)));
  } else if (may_have_pack_gqa_or_split_kv(p) && !v.ragged && !is_8_bit(p.dtype) && !hints.tiles &&
             v.mask != Mask::window && !p.seqused) {
    const Choice best = plain_parts(p, v, dims, bounded, device);
    parts = best.count, v.tiles = best.tiles;
  }
  const auto dequantised = dequantised_variant(p, v, device);
  if (hints.dequantised.value_or(0) > 0 && (!dequantised || hints.parts.value_or(1) > 1))
    return unsupported(
        "dequantised=1 is a hint for 16-bit q with 8-bit k and v with one scale a head (with bf16 q also with "
        "others, where o is not merged), o in q's type and plain tiles in one part, without softcap, alibi, smooth, "
        "max_logit and invariant. Leave dequantised out.");
  const bool free = !hints.tiles && !hints.parts;
  if (dequantised && (hints.dequantised ? *hints.dequantised > 0
                                        : free && pays_to_dequantise_first(p, *dequantised, v, parts, device))) {
    v = *dequantised, parts = 1;
    if (hints.tiles) v.tiles = *hints.tiles;
  }
  Tiling tiling{v, pack, 0, 1};
  if (parts > 1) {
    const int64_t longest = ceil_div(std::max<int64_t>(p.seq_kv, 1), v.tiles.kv);
    tiling.part_tiles = static_cast<int>(ceil_div(longest, parts));
    tiling.parts = static_cast<int>(ceil_div(longest, tiling.part_tiles));
  } else {
    tiling.part_tiles = no_bound<int>;  // all of them
  }
  FwdVariant& its = tiling.variant;
  const double bytes_of_parts = part_bytes(p) * tiling.parts;
  its.split_kv = its.pack_gqa || tiling.parts > 1 ? SplitKv::fixed : SplitKv::none;
  const int ctas = usable_sms(p, device) * (its.kv.layout == KvLayout::page_rows ? fwd_ctas_per_sm(its) : 1);
  const bool one_each = !p.varlen && p.seq_kv <= tuning::keys_of_fixed_parts &&
                        bytes_of_parts <= tuning::parts_bytes_most &&
                        items_at_most(p, its, pack) * tiling.parts <= ctas;
  if (evenly && its.pack_gqa && tiling.parts > 1 && !one_each) its.split_kv = SplitKv::even;
  return tiling;
}

}  // namespace froghopper
