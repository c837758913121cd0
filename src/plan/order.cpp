// SPDX-License-Identifier: Apache-2.0
// plan: the numbers of the order in which CTAs take work items, contract/order.h.
#include <algorithm>

#include "contract/mask.h"
#include "src/plan/forward.hpp"

namespace froghopper {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// K and V of a section stay in L2 while its items run, beside the Q and O that stream through: 32 MiB of the H200's 60.
// Short sequences have few q tiles to use a section again; half of it wastes less at the section's end. Measured on an
// H200 with causal masks: 8 to 128 MiB, 512 to 16k keys, head dims 64 to 256; docs/4-planning.md has the table.
int64_t section_bytes(const Device& device, int64_t seq_q, const Hints& hints) {
  if (hints.section_mib) return int64_t{*hints.section_mib} << 20;
  const int64_t share = device.l2_bytes * 8 / 15;
  return seq_q <= 1024 ? share / 2 : share;
}

// The part of every pair's q tiles, the lightest, that is held back to fill the gaps at the end: in percent, from the
// same measurement. Tiles of 192 and 256 rows are few and unequal, so more are needed.
int tail_percent(const FwdVariant& v, int64_t q_tiles) {
  if (v.tiles.q > 128) return 50;
  if (q_tiles <= 4) return 0;
  return q_tiles <= 8 ? 30 : 50;
}

// A CTA that draws its next item late leaves it to whoever is free first; one that draws early hides the way to the
// counter and back while it computes the item it is at. Measured on an H200 at 512 to 16k keys: late is up to 1.5 times
// as fast where items are few, and up to 1.08 times where a mask makes them unequal. Where there are many, and all are
// equal or of a few tiles of 128 keys, early is 1 to 2 % ahead.
int late_tiles(const FwdVariant& v, int64_t items, int sms) {
  constexpr int many = 8;  // items of each SM
  const bool early = !v.ragged && (v.mask == Mask::none || v.tiles.kv >= 128) && items > many * int64_t{sms};
  return early ? no_bound<int> : 0;
}

}  // namespace

int64_t items_at_most(const Problem& p, int tile_q) {
  const int64_t tiles = p.varlen ? p.total_q / tile_q + p.batch : p.batch * ceil_div(p.seq_q, tile_q);
  return tiles * p.heads_q;
}

Order order_items(const Problem& p, const FwdVariant& v, const Device& device, const Hints& hints) {
  const int64_t q_tiles = ceil_div(p.seq_q, v.tiles.q), pairs = p.batch * p.heads_q;
  Order order{
      .items = static_cast<int>(items_at_most(p, v.tiles.q)),
      .pairs = static_cast<int>(pairs),
      .q_tiles = static_cast<int>(q_tiles),
      .section = 1,  // without a mask all tiles weigh the same: one pair after the other, K and V are read once
      .tail = 0,
      .late_tiles = hints.late_tiles.value_or(late_tiles(v, items_at_most(p, v.tiles.q), device.sms))};
  if (v.mask == Mask::none || pairs == 0) return order;

  const int64_t pair_bytes = p.seq_kv * (p.dim_qk + p.dim_v) * size_of(p.dtype) * p.heads_kv / p.heads_q;
  const int64_t bytes = section_bytes(device, p.seq_q, hints);
  const int64_t together = v.ragged ? p.heads_q : pairs;  // ragged: sequences come one after the other
  // Equal sections: a small remainder would end with few heavy tiles.
  const int64_t all = together * pair_bytes;  // up to 2^63, so nothing is added to it
  const int64_t sections = std::clamp<int64_t>(all / bytes + (all % bytes >= bytes - bytes / 2), 1, together);
  order.section = static_cast<int>(ceil_div(together, sections));
  const int percent = hints.tail_percent.value_or(tail_percent(v, q_tiles));
  if (!v.ragged) order.tail = static_cast<int>(q_tiles * percent / 100);
  return order;
}

}  // namespace froghopper
