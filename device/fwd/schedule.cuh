// SPDX-License-Identifier: Apache-2.0
// device/fwd: which work items a CTA has, by tickets or evenly by its number. The order is contract/order.h's, which
// tests run on the host.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "contract/order.h"
#include "contract/split.h"
#include "contract/tile_sequence.h"
#include "contract/types.h"
#include "device/attn/lengths.cuh"
#include "device/attn/sequences.cuh"
#include "device/fwd/work_item.cuh"

namespace froghopper::fwd {

// kv tiles that the rows of a q tile attend to.
template <FwdVariant V>
__device__ TileSequence<int> tiles_of(const FwdParams& params, int q_tile, const attn::Lengths& lengths) {
  const int tile_q = rows_of_tile<V>(params), first_row = q_tile * tile_q;
  const int last_row = min(first_row + tile_q, lengths.seq_q) - 1;
  const MaskRange<V> mask_range(params.mask, lengths.seq_q, lengths.seq_kv, params.chunk);
  return mask_range.tiles(first_row, last_row, V.tiles.kv);
}

// index_in_pair: as ItemOfPair has it: the q tile; of fixed parts q tile x parts + part.
template <FwdVariant V>
__device__ WorkItem make_item(const FwdParams& params, int sequence, int head, int index_in_pair, int parts,
                              const attn::Lengths& lengths) {
  const int q_tile = fwd_splits(V) ? index_in_pair / parts : index_in_pair;
  auto tiles = tiles_of<V>(params, q_tile, lengths);
  if constexpr (fwd_splits(V)) {
    tiles = V.batch_invariant ? batch_invariant_part_of(tiles, index_in_pair % parts, params.split.most)
                              : part_of(tiles, index_in_pair % parts, params.split.tiles, params.split.most);
    if (tiles.count() <= 0) tiles = TileSequence<int>::without_keys();  // not none(), which is the end marker
  }
  return {q_tile, head, sequence, tiles, lengths};
}

template <FwdVariant V>
struct UniformSchedule {
  const FwdParams& params;

  __device__ WorkItem find(int number) {
    if (number >= params.order.items) return {};
    const ItemOfPair item = item_at(params.order, number, /*tiles_falling=*/V.mask != Mask::none);
    const int heads = heads_of_items<V>(params);
    return make_item<V>(params, item.pair / heads, item.pair % heads, item.index_in_pair, params.split.most,
                        {0, params.seq_q, 0, params.seq_kv});
  }
  __device__ int items() const { return params.order.items; }
};

// Items of a sequence for one head: its q tiles, or their parts.
template <FwdVariant V>
struct ItemsOfSequence {
  RowsRange range;
  int rows_of_tile;
  int planned_tiles, most_parts;  // fixed parts only: SplitParams::tiles and most

  __device__ int operator()(const attn::Lengths& lengths) const {
    if (!range.has(lengths.seq_q)) return 0;
    return (lengths.seq_q + rows_of_tile - 1) / rows_of_tile * parts(lengths);
  }
  // Of a tile that attends to all keys; the others have at most as many.
  __device__ int parts(const attn::Lengths& lengths) const {
    if constexpr (!fwd_splits(V)) return 1;
    if constexpr (V.batch_invariant) return batch_invariant_parts_of_sequence(lengths.seq_kv, most_parts);
    const int tiles = (max(lengths.seq_kv, 1) + V.tiles.kv - 1) / V.tiles.kv;
    return min(most_parts, (tiles - 1) / planned_tiles + 1);
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
    return make_item<V>(params, found.sequence, found.head, found.index_in_pair, sequences.count.parts(found.lengths),
                        found.lengths);
  }
  // Valid once find() has found none.
  __device__ int items() const { return sequences.items(); }
};

// Even splits: the items of one CTA, one after the other. contract/split.h says how kv tiles are numbered in the class
// of heads that the CTA has. A warp looks at 32 sequences at a time, one a lane:
//
//   kv tiles of the class    | sequences before the 32 | lane 0 | lane 1 | lane 2 | ... | lane 31 |
//   tiles_before             |<----------------------->|
//   my_tiles of lane 2                                                   |<------>|
//   my_scan of lane 2                                  |<------------------------>|
//   this CTA                                                        [begin, end)
template <FwdVariant V>
struct EvenSchedule {
  const FwdParams& params;
  int cta_tiles;                  // kv tiles of every CTA
  int begin, end;                 // those of this CTA that are left: [begin, end)
  int first_sequence = 0;         // lane 0's: the lanes look at [first_sequence, first_sequence + 32)
  int tiles_before = 0;           // kv tiles of the sequences before them
  int my_tiles = 0, my_scan = 0;  // of this lane's sequence; of those of the lanes up to and with this one

  __device__ explicit EvenSchedule(const FwdParams& params) : params(params) {
    look_at(0);
    int all = my_scan;  // of lane 31
    for (int first = 32; first < params.split.even.sequences; first += 32)
      all += __reduce_add_sync(~0u, tiles_of_sequence(first + lane()));
    all = __shfl_sync(~0u, all, 31);
    cta_tiles = tiles_of_cta(all, params.split.even.ctas_of_class);
    const long long number = blockIdx.x / params.split.even.classes;  // of this CTA in its class
    begin = min(static_cast<long long>(all), cta_tiles * number);
    end = min(all - begin, cta_tiles) + begin;
    if (lane() == 0) params.split.even.shared_q_tiles[blockIdx.x].parts = 0;
  }

  // All 32 lanes together; the same answer in each.
  __device__ WorkItem next() {
    if (begin >= end) return {};
    for (int of_all_lanes; begin - tiles_before >= (of_all_lanes = __shfl_sync(~0u, my_scan, 31));) {
      tiles_before += of_all_lanes;
      look_at(first_sequence + 32);
    }
    const int holder = __ffs(__ballot_sync(~0u, begin - tiles_before < my_scan)) - 1;
    const int sequence = first_sequence + holder;
    const attn::Lengths of_sequence = lengths(sequence);
    const int tiles_per_head = __shfl_sync(~0u, my_tiles, holder) / params.split.even.heads_of_class;
    // The position of the next kv tile: among all kv tiles of the sequence, then of the head, then of the q tile.
    int number = begin - tiles_before - __shfl_sync(~0u, my_scan - my_tiles, holder);
    const int head_in_class = number / tiles_per_head,
              head = head_in_class * params.split.even.classes + blockIdx.x % params.split.even.classes;
    number -= head_in_class * tiles_per_head;
    int q_tile = 0;
    TileSequence<int> tiles = tiles_of<V>(params, 0, of_sequence);
    while (number >= tiles.count()) {
      number -= tiles.count();
      tiles = tiles_of<V>(params, ++q_tile, of_sequence);
    }
    const int count = min(tiles.count() - number, end - begin), left = tiles.count() - number - count;
    begin += count;
    const bool begins_tile = number == 0, whole = begins_tile && left == 0;
    const WorkItem item = {q_tile,      head,
                           sequence,    {tiles.end - number - count, tiles.end - number},
                           of_sequence, whole ? -1 : workspace_tile_of_part(blockIdx.x, begins_tile)};
    if (begins_tile && left > 0 && lane() == 0) record_shared_q_tile(item, 1 + ctas_that_go_on(left, cta_tiles));
    return item;
  }

 private:
  static __device__ int lane() { return threadIdx.x % 32; }
  __device__ attn::Lengths lengths(int sequence) const {
    return attn::lengths_of(params.ragged, params.seq_q, params.seq_kv, sequence);
  }
  __device__ int tiles_of_sequence(int sequence) const {
    if (sequence >= params.split.even.sequences) return 0;
    const attn::Lengths of_sequence = lengths(sequence);
    if (!params.rows.has(of_sequence.seq_q)) return 0;
    const int tile_q = rows_of_tile<V>(params);
    int tiles = 0;
    for (int q_tile = 0; q_tile * tile_q < of_sequence.seq_q; ++q_tile)
      tiles += tiles_of<V>(params, q_tile, of_sequence).count();
    return tiles * params.split.even.heads_of_class;
  }
  __device__ void look_at(int sequence) {
    first_sequence = sequence;
    my_tiles = tiles_of_sequence(first_sequence + lane());
    my_scan = attn::warp_inclusive_sum(my_tiles);
  }
  __device__ void record_shared_q_tile(const WorkItem& item, int parts) const {
    const int first_row = item.q_tile * rows_of_tile<V>(params);
    params.split.even.shared_q_tiles[blockIdx.x] = {
        params.ragged.cu_q ? 0 : item.sequence, item.lengths.q_first + first_row,
        min(rows_of_tile<V>(params), item.lengths.seq_q - first_row), item.head * params.pack_gqa.heads, parts};
  }
};

}  // namespace froghopper::fwd
