// SPDX-License-Identifier: Apache-2.0
// device/fwd: which work item a ticket means. The order is contract/order.h's, which tests run on the host.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "contract/split.h"
#include "contract/tile_sequence.h"
#include "device/attn/lengths.cuh"
#include "device/attn/sequences.cuh"
#include "device/fwd/work_item.cuh"

namespace froghopper::fwd {

// kv tiles that the rows of a q tile attend to.
template <FwdVariant V>
__device__ TileSequence<int> tiles_of(const FwdParams& params, int q_tile, const attn::Lengths& rows) {
  const int tile_q = rows_of_tile<V>(params), first_row = q_tile * tile_q;
  const int last_row = min(first_row + tile_q, rows.seq_q) - 1;
  return MaskRange<V>(params.mask, rows.seq_q, rows.seq_kv, params.chunk).tiles(first_row, last_row, V.tiles.kv);
}

// number: of the item among those of its head: the q tile; of fixed parts q tile x parts + part.
template <FwdVariant V>
__device__ WorkItem describe(const FwdParams& params, int sequence, int head, int number, int parts,
                             const attn::Lengths& rows) {
  const int q_tile = fwd_splits(V) ? number / parts : number;
  auto tiles = tiles_of<V>(params, q_tile, rows);
  if constexpr (fwd_splits(V)) {
    tiles = V.batch_invariant ? batch_invariant_part_of(tiles, number % parts, params.split.most)
                              : part_of(tiles, number % parts, params.split.tiles, params.split.most);
    if (tiles.count() <= 0) tiles = TileSequence<int>::without_keys();
  }
  return {q_tile, head, sequence, tiles, rows};
}

template <FwdVariant V>
struct UniformSchedule {
  const FwdParams& params;

  __device__ WorkItem find(int number) {
    if (number >= params.order.items) return {};
    const Item item = item_at(params.order, number, /*last_tile_first=*/V.mask != Mask::none);
    const int heads = heads_of_items<V>(params);
    return describe<V>(params, item.pair / heads, item.pair % heads, item.of_pair, params.split.most,
                       {0, params.seq_q, 0, params.seq_kv});
  }
  __device__ int items() const { return params.order.items; }
};

// Items of a sequence for one head: its q tiles, or their parts.
template <FwdVariant V>
struct ItemsOfSequence {
  RowsRange range;
  int rows_of_tile;
  int tiles_of_part, most_parts;  // fixed parts only

  __device__ int operator()(const attn::Lengths& rows) const {
    if (!range.has(rows.seq_q)) return 0;
    return (rows.seq_q + rows_of_tile - 1) / rows_of_tile * parts(rows);
  }
  // Of a tile that attends to all keys; the others have at most as many.
  __device__ int parts(const attn::Lengths& rows) const {
    if constexpr (!fwd_splits(V)) return 1;
    if constexpr (V.batch_invariant) return batch_invariant_parts_of_sequence(rows.seq_kv, most_parts);
    const int tiles = (max(rows.seq_kv, 1) + V.tiles.kv - 1) / V.tiles.kv;
    return min(most_parts, (tiles - 1) / tiles_of_part + 1);
  }
};

template <FwdVariant V>
struct RaggedSchedule {
  const FwdParams& params;
  attn::Sequences<attn::TilesOf::q, ItemsOfSequence<V>> sequences;

  __device__ RaggedSchedule(const FwdParams& params)
      : params(params),
        sequences{params.ragged,
                  params.seq_q,
                  params.seq_kv,
                  heads_of_items<V>(params),
                  params.order.section,
                  params.order.pairs / heads_of_items<V>(params),
                  params.order.in_sections / heads_of_items<V>(params),
                  {params.rows, rows_of_tile<V>(params), params.split.tiles, params.split.most}} {}

  __device__ WorkItem find(int number) {
    attn::TileOfSequence found;
    if (!sequences.find(number, found)) return {};
    return describe<V>(params, found.sequence, found.item.pair, found.item.of_pair,
                       sequences.count.parts(found.lengths), found.lengths);
  }
  // Valid once find() has found none.
  __device__ int items() const { return sequences.items(); }
};

// Even splits: the items of one CTA, one after the other. contract/split.h says how kv tiles are numbered in the class
// of heads that the CTA has. A warp looks at 32 sequences at once.
template <FwdVariant V>
struct EvenSchedule {
  const FwdParams& params;
  int of_cta;                        // kv tiles of a CTA
  int at, end;                       // this CTA's that are left: [at, end)
  int group = 0;                     // the sequences that the lanes look at: [group, group + 32)
  int before = 0;                    // kv tiles of the sequences before them
  int its_tiles = 0, up_to_its = 0;  // of this lane's sequence; of those of the group up to it, which is included

  __device__ explicit EvenSchedule(const FwdParams& params) : params(params) {
    look_at(0);
    int all = up_to_its;  // of lane 31
    for (int first = 32; first < params.split.even.sequences; first += 32)
      all += __reduce_add_sync(~0u, tiles_of_sequence(first + lane()));
    all = __shfl_sync(~0u, all, 31);
    of_cta = tiles_of_cta(all, params.split.even.ctas_of_head);
    at = min(static_cast<long long>(all), static_cast<long long>(of_cta) * (blockIdx.x / params.split.even.beside));
    end = min(all - at, of_cta) + at;
    if (lane() == 0) params.split.even.goes_on[blockIdx.x].parts = 0;
  }

  // All 32 lanes together; the same answer in each.
  __device__ WorkItem next() {
    if (at >= end) return {};
    for (int of_group; at - before >= (of_group = __shfl_sync(~0u, up_to_its, 31));) {
      before += of_group;
      look_at(group + 32);
    }
    const int holder = __ffs(__ballot_sync(~0u, at - before < up_to_its)) - 1;
    const int sequence = group + holder;
    const attn::Lengths rows = lengths(sequence);
    const int of_head = __shfl_sync(~0u, its_tiles, holder) / params.split.even.in_turn;
    int number = at - before - __shfl_sync(~0u, up_to_its - its_tiles, holder);
    const int turn = number / of_head, head = turn * params.split.even.beside + blockIdx.x % params.split.even.beside;
    number -= turn * of_head;
    int q_tile = 0;
    TileSequence<int> tiles = tiles_of<V>(params, 0, rows);
    while (number >= tiles.count()) number -= tiles.count(), tiles = tiles_of<V>(params, ++q_tile, rows);
    const int count = min(tiles.count() - number, end - at), left = tiles.count() - number - count;
    at += count;
    const bool begins = number == 0, whole = begins && left == 0;
    const WorkItem item = {q_tile,   head,
                           sequence, {tiles.end - number - count, tiles.end - number},
                           rows,     whole ? -1 : slot_of_part(blockIdx.x, begins)};
    if (begins && left > 0 && lane() == 0) tell_combine(item, 1 + ctas_that_go_on(left, of_cta));
    return item;
  }

 private:
  static __device__ int lane() { return threadIdx.x % 32; }
  __device__ attn::Lengths lengths(int sequence) const {
    return attn::lengths_of(params.ragged, params.seq_q, params.seq_kv, sequence);
  }
  __device__ int tiles_of_sequence(int sequence) const {
    if (sequence >= params.split.even.sequences) return 0;
    const attn::Lengths rows = lengths(sequence);
    if (!params.rows.has(rows.seq_q)) return 0;
    const int of_tile = rows_of_tile<V>(params);
    int tiles = 0;
    for (int q_tile = 0; q_tile * of_tile < rows.seq_q; ++q_tile) tiles += tiles_of<V>(params, q_tile, rows).count();
    return tiles * params.split.even.in_turn;
  }
  __device__ void look_at(int new_group) {
    group = new_group;
    its_tiles = tiles_of_sequence(group + lane());
    up_to_its = attn::sum_up_to_lane(its_tiles);
  }
  __device__ void tell_combine(const WorkItem& item, int parts) const {
    const int first_row = item.q_tile * rows_of_tile<V>(params);
    params.split.even.goes_on[blockIdx.x] = {params.ragged.cu_q ? 0 : item.sequence, item.lengths.q_first + first_row,
                                             min(rows_of_tile<V>(params), item.lengths.seq_q - first_row),
                                             item.head * params.pack.heads, parts};
  }
};

}  // namespace froghopper::fwd
