// SPDX-License-Identifier: Apache-2.0
// plan: the numbers of the order in which CTAs take work items, contract/order.h.
#include <algorithm>

#include "contract/mask.h"
#include "src/base/ceil_div.hpp"
#include "src/plan/forward.hpp"
#include "src/plan/tuning.hpp"

namespace froghopper {
namespace {

int64_t section_bytes(const Device& device, int64_t seq_q, const Hints& hints) {
  if (hints.section_mib) return int64_t{*hints.section_mib} << 20;
  const int64_t share = tuning::section_of_l2(device);
  return seq_q <= tuning::short_rows ? share / 2 : share;
}

// A CTA that defers the fetch of its next item leaves it to the first CTA that is free; an eager one hides the time of
// the fetch, a read of memory, while it computes the item it has.
int deferred_tiles(const FwdVariant& v, int64_t items, int sms) {
  const bool eager = !v.ragged && (v.mask == Mask::none || v.tiles.kv >= tuning::eager_tile_kv) &&
                     items > tuning::items_fetched_eagerly * int64_t{sms};
  return eager ? no_bound<int> : 0;
}

}  // namespace

// How many sections so many pairs make. Equal ones: a small remainder would end with few heavy tiles. Each has an item
// for every SM; and where there are few items in all, a section's heaviest would come too late.
int64_t sections_of(int64_t pairs, int64_t pair_bytes, int64_t bytes, int64_t items, int sms) {
  if (items <= tuning::items_in_one_section * int64_t{sms}) return 1;
  const int64_t most = std::clamp<int64_t>(items / sms, 1, pairs);
  const int64_t all = pairs * pair_bytes;  // up to 2^63, so nothing is added to it
  return std::clamp<int64_t>(all / bytes + (all % bytes >= bytes - bytes / 2), 1, most);
}

// Of a problem with fixed lengths other items fill what a small last section leaves: the tail, or one large section at
// the end. A long sequence that comes last has nothing behind it. At least half of a section is enough: then SMs end
// within 3 % of equal shares (tests/busy_test.cpp); 16 heads of 8192 keys by 3, with only one in the last section,
// ended 8 % later.
int64_t without_small_remainder(int64_t pairs, int64_t section) {
  const auto last = [&] { return (pairs - 1) % section + 1; };
  while (section > 1 && last() * 2 < section) --section;
  return section;
}

// One short sequence after the other would end with a heavy tile that begins when nothing else is left. The planner
// knows only their mean length. A sequence that has so many items by itself is in sections of heads, which end well.
// Those that come together are in one warp of the kernel, which reads 32 lengths at once.
int64_t sequences_at_the_end(const Problem& p, const RaggedTiles& tiles, int64_t rounds, int sms) {
  if (p.batch == 0) return 0;
  const int64_t length = p.varlen ? std::min(tiles.total_rows / p.batch, tiles.longest) : tiles.longest;
  const int64_t items = tiles.heads * std::max<int64_t>(1, length / tiles.rows);
  const int64_t wanted = ceil_div(rounds * sms, items);
  const int64_t of_last_warp = (p.batch - 1) % sequences_together + 1;
  return wanted > 1 ? std::min(wanted, of_last_warp) : 0;
}

int64_t items_at_most(const Problem& p, int tile_q) {
  const int64_t tiles = p.varlen ? p.total_q / tile_q + p.batch : p.batch * ceil_div(p.seq_q, tile_q);
  return tiles * p.heads_q;
}

int64_t items_at_most(const Problem& p, const FwdVariant& v, PackGqaParams pack) {
  return items_at_most(p, v.pack_gqa ? pack.rows : v.tiles.q) / pack.heads;
}

namespace {

// Few items, or only memory to wait for: all pairs together.
Order order_of_parts(const Problem& p, const Tiling& tiling, const Hints& hints) {
  const int64_t heads = p.heads_q / tiling.pack_gqa.heads, pairs = p.batch * heads;
  const int64_t rows = tiling.variant.pack_gqa ? tiling.pack_gqa.rows : tiling.variant.tiles.q;
  const int64_t together = tiling.variant.mask == Mask::none ? 1 : tiling.variant.ragged ? heads : pairs;
  return {.items = static_cast<int>(items_at_most(p, tiling.variant, tiling.pack_gqa) * tiling.parts),
          .pairs = static_cast<int>(pairs),
          .items_of_pair = static_cast<int>(ceil_div(p.seq_q, rows) * tiling.parts),
          .section = static_cast<int>(std::max<int64_t>(1, together)),
          .in_sections = static_cast<int>(pairs),
          .tail = 0,
          .deferred_tiles = hints.deferred_tiles.value_or(0)};
}

}  // namespace

Order order_items(const Problem& p, const Tiling& tiling, const Device& device, const Hints& hints) {
  const FwdVariant& v = tiling.variant;
  if (v.pack_gqa || fwd_splits(v)) return order_of_parts(p, tiling, hints);
  const int64_t q_tiles = ceil_div(p.seq_q, v.tiles.q), pairs = p.batch * p.heads_q;
  const int64_t all_items = items_at_most(p, v.tiles.q);
  const int sms = usable_sms(p, device);
  Order order{
      .items = static_cast<int>(all_items),
      .pairs = static_cast<int>(pairs),
      .items_of_pair = static_cast<int>(q_tiles),
      .section = 1,  // without a mask all tiles weigh the same: one pair after the other, K and V are read once
      .in_sections = static_cast<int>(pairs),
      .tail = 0,
      .deferred_tiles = hints.deferred_tiles.value_or(deferred_tiles(v, all_items, sms))};
  if (v.mask == Mask::none || pairs == 0) return order;

  const int64_t pair_bytes = p.seq_kv * (p.dim_qk + p.dim_v) * size_of(p.dtype) * p.heads_kv / p.heads_q;
  const int64_t together = v.ragged ? p.heads_q : pairs;  // ragged: sequences come one after the other
  const int64_t items = v.ragged ? p.heads_q * q_tiles : all_items;
  const int64_t bytes = section_bytes(device, p.seq_q, hints);
  const int64_t section = ceil_div(together, sections_of(together, pair_bytes, bytes, items, sms));
  order.section = static_cast<int>(v.ragged ? without_small_remainder(together, section) : section);
  const int percent = hints.tail_percent.value_or(tuning::tail_percent(q_tiles));
  if (!v.ragged) order.tail = static_cast<int>(q_tiles * percent / 100);
  if (v.ragged) {
    const RaggedTiles tiles = {v.tiles.q, p.total_q, p.seq_q, p.heads_q};
    order.in_sections -= static_cast<int>(sequences_at_the_end(p, tiles, tuning::varlen_rounds, sms) * p.heads_q);
  }
  return order;
}

}  // namespace froghopper
