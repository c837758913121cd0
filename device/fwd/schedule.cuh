// SPDX-License-Identifier: Apache-2.0
// device/fwd: which work item a ticket means. The order is contract/order.h's, which tests run on the host.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "device/attn/lengths.cuh"
#include "device/attn/mask.cuh"
#include "device/attn/sequences.cuh"

namespace froghopper::fwd {

struct alignas(16) WorkItem {
  int q_tile, head, sequence;
  TileSequence<int> kv;  // the kv tiles that it visits
  attn::Lengths rows;    // of its sequence; read in ragged variants only

  __device__ bool none() const { return kv.none(); }        // no item is left
  __device__ bool empty() const { return kv.count() < 0; }  // split-KV variants: a part without keys; for nobody
};

template <FwdVariant V>
using MaskRange = attn::MaskRange<V.mask, V.tiles.kv>;

// Query rows of a sequence that a q tile has, of each of its heads.
template <FwdVariant V>
__device__ int rows_of_tile(const FwdParams& params) {
  return V.pack_gqa ? params.pack.rows : V.tiles.q;
}

// What an item's `head` counts: query heads; packed: as many of them together as a tile has.
template <FwdVariant V>
__device__ int heads_of_items(const FwdParams& params) {
  return V.pack_gqa ? params.heads_q / params.pack.heads : params.heads_q;
}
template <FwdVariant V>
__device__ int kv_head(const FwdParams& params, const WorkItem& item) {
  return V.pack_gqa ? item.head * params.pack.heads / params.heads_per_kv : item.head / params.heads_per_kv;
}

// kv tiles that the rows of a q tile attend to.
template <FwdVariant V>
__device__ TileSequence<int> tiles_of(const FwdParams& params, int q_tile, const attn::Lengths& rows) {
  const int tile_q = rows_of_tile<V>(params), first_row = q_tile * tile_q;
  const int last_row = min(first_row + tile_q, rows.seq_q) - 1;
  return MaskRange<V>(params.mask, rows.seq_q, rows.seq_kv, params.chunk).tiles(first_row, last_row, V.tiles.kv);
}

// unit: the q tile; split: q tile x parts + part.
template <FwdVariant V>
__device__ WorkItem describe(const FwdParams& params, int sequence, int head, int unit, int parts,
                             const attn::Lengths& rows) {
  const int q_tile = V.split_kv ? unit / parts : unit;
  auto tiles = tiles_of<V>(params, q_tile, rows);
  if constexpr (V.split_kv) {
    tiles = V.batch_invariant ? batch_invariant_part_of(tiles, unit % parts, params.split.most)
                              : part_of(tiles, unit % parts, params.split.tiles, params.split.most);
    if (tiles.count() <= 0) tiles = TileSequence<int>::without_keys();
  }
  return {q_tile, head, sequence, tiles, rows};
}

template <FwdVariant V>
struct FixedSchedule {
  const FwdParams& params;

  __device__ WorkItem find(int number) {
    if (number >= params.order.items) return {};
    const Item item = item_at(params.order, number, /*last_tile_first=*/V.mask != Mask::none);
    const int heads = heads_of_items<V>(params);
    return describe<V>(params, item.pair / heads, item.pair % heads, item.q_tile, params.split.most,
                       {0, params.seq_q, 0, params.seq_kv});
  }
  __device__ int items() const { return params.order.items; }
};

// Items of a sequence whose tiles are packed or split.
template <FwdVariant V>
struct UnitsOfSequence {
  int rows_of_tile;
  int tiles_of_part, most_parts;

  __device__ int operator()(const attn::Lengths& rows) const {
    return (rows.seq_q + rows_of_tile - 1) / rows_of_tile * parts(rows);
  }
  // Of a tile that attends to all keys; the others have at most as many.
  __device__ int parts(const attn::Lengths& rows) const {
    const int tiles = (max(rows.seq_kv, 1) + V.tiles.kv - 1) / V.tiles.kv;
    return min(most_parts, (tiles - 1) / tiles_of_part + 1);
  }
};

template <FwdVariant V>
struct RaggedSchedule {
  static constexpr bool plain = !V.split_kv;
  using Plain = attn::TilesOfSequence<attn::TilesOf::q, V.tiles.q>;

  const FwdParams& params;
  attn::Sequences<attn::TilesOf::q, V.tiles.q, Pick<plain, Plain, UnitsOfSequence<V>>> sequences;

  __device__ RaggedSchedule(const FwdParams& params)
      : params(params),
        sequences{params.ragged,
                  params.seq_q,
                  params.seq_kv,
                  heads_of_items<V>(params),
                  params.order.section,
                  params.order.pairs / heads_of_items<V>(params),
                  params.order.in_sections / heads_of_items<V>(params)} {
    if constexpr (!plain) sequences.count = {rows_of_tile<V>(params), params.split.tiles, params.split.most};
  }

  __device__ WorkItem find(int number) {
    attn::TileOfSequence found;
    if (!sequences.find(number, found)) return {};
    int parts = 1;
    if constexpr (V.split_kv) parts = sequences.count.parts(found.rows);
    return describe<V>(params, found.sequence, found.item.pair, found.item.q_tile, parts, found.rows);
  }
  // Valid once find() has found none.
  __device__ int items() const { return sequences.items(); }
};

}  // namespace froghopper::fwd
