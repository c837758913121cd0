// SPDX-License-Identifier: Apache-2.0
// device/attn: which tile of which sequence a number means, where sequences have lengths of their own. The order is
// contract/order.h's.
#pragma once
#include "contract/order.h"
#include "contract/shared_params.h"
#include "device/attn/lengths.cuh"

namespace froghopper::attn {

enum class TilesOf { q, kv };

struct TileOfSequence {
  int sequence, head;
  int index_in_pair;  // of the item among those of its sequence and head, as ItemOfPair has it
  Lengths lengths;
};

// How many items of one head a sequence has where an item is a kv tile.
template <int TileRows>
struct KvTilesOfSequence {
  __device__ int operator()(const Lengths& lengths) const { return (lengths.seq_kv + TileRows - 1) / TileRows; }
};

// The inclusive prefix sum over the lanes of a warp: of the lanes' values up to this lane's.
__device__ inline int warp_inclusive_sum(int number) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int below = __shfl_up_sync(~0u, number, step);
    if (threadIdx.x % 32 >= step) number += below;
  }
  return number;
}

// Finds the sequence, head and tile of an item (a varlen scheduler). Sequences come by weight class (contract/order.h),
// in a class by number. A warp loads 32 lengths at a time, one per lane, and takes the prefix sum of their tile counts.
// It resumes where the last call stopped, since the numbers that one CTA asks for only grow. It goes over all sequences
// once for every weight class that occurs.
// The sequences from number in_sections on, which lie among the same 32, come together: tile by tile, the heaviest
// tiles of all of them first (of_those_together).
// Items are tiles of queries or of keys. They weigh as much as there are rows on the other side, which give the class.
// Items of all sequences and heads, and a number past the last one for each CTA, fit an int: the planner refuses
// problems that may have more (items_max, src/plan/both_passes.hpp).
template <TilesOf Side, class Count>
struct Sequences {
  const RaggedParams& ragged;
  int seq_q, seq_kv;  // of the longest
  int heads, section;
  int sequences, in_sections;  // all of them; the first in_sections come by sections, those after them together
  Count count = {};            // items of a head
  // The one that is handed out; the next one that occurs, as far as this scan knows.
  int weight_class = 0, next_class = weight_classes;
  int first_sequence = 0;  // of the 32 that the lanes look at, one each: [first_sequence, first_sequence + 32)
  int tiles_before = 0;    // tiles of all that was handed out before them

  // All 32 lanes together; the same answer in each. false: there are fewer items.
  __device__ bool find(int number, TileOfSequence& found) {
    const int lane = threadIdx.x % 32;
    for (; weight_class < weight_classes; start(next_class))
      for (; first_sequence < sequences; first_sequence += 32) {
        const int tiles = look_at(first_sequence + lane);
        const int up_to_mine = warp_inclusive_sum(tiles);
        const int up_to_last = __shfl_sync(~0u, up_to_mine, 31);
        if (number < (tiles_before + up_to_last) * heads) {
          const unsigned holders = __ballot_sync(~0u, number < (tiles_before + up_to_mine) * heads);
          const int holder = __ffs(holders) - 1;
          const int together = max(0, in_sections - first_sequence), first = min(holder, together);
          const int before = tiles_before + __shfl_sync(~0u, up_to_mine - tiles, first);
          const int rest = number - before * heads;
          if (holder >= together) {
            found = of_those_together(rest, lane >= together ? tiles : 0);
          } else {
            const int sequence = first_sequence + holder;
            const ItemOfPair item = item_in_sequence(rest, __shfl_sync(~0u, tiles, holder), heads, section);
            found = {sequence, item.pair, item.index_in_pair, lengths(sequence)};
          }
          return true;
        }
        tiles_before += up_to_last;
      }
    return false;
  }
  // Valid once find() has found none.
  __device__ int items() const { return tiles_before * heads; }

 private:
  __device__ void start(int new_class) {
    weight_class = new_class;
    next_class = weight_classes;
    first_sequence = 0;
  }
  // tiles: of this lane's sequence, if it is one of them.
  __device__ TileOfSequence of_those_together(int number, int tiles) const {
    const Level found = level_at(number, heads, __reduce_max_sync(~0u, tiles),
                                 [&](int level) { return __reduce_add_sync(~0u, max(0, tiles - level)); });
    const bool high = tiles >= found.level;
    const unsigned all_high = __ballot_sync(~0u, high), lower_lanes = (1u << threadIdx.x % 32) - 1;
    const bool holds = high && __popc(all_high & lower_lanes) == found.index_in_level / heads;
    const int sequence = first_sequence + __ffs(__ballot_sync(~0u, holds)) - 1;
    return {sequence, found.index_in_level % heads, found.level - 1, lengths(sequence)};
  }
  // Reads the lengths of a sequence, and lowers next_class to its class if that comes later. Returns its tiles; 0 if it
  // has another class than the one that is handed out.
  __device__ int look_at(int sequence) {
    int tiles = 0, its_class = weight_classes;
    if (sequence < sequences) {
      const Lengths of_sequence = lengths(sequence);
      tiles = count(of_sequence);
      if (tiles > 0)
        its_class = Side == TilesOf::q ? weight_class_of(of_sequence.seq_kv, seq_kv)
                                       : weight_class_of(of_sequence.seq_q, seq_q);
    }
    next_class = min(next_class, __reduce_min_sync(~0u, its_class > weight_class ? its_class : weight_classes));
    return its_class == weight_class ? tiles : 0;
  }
  __device__ Lengths lengths(int sequence) const { return lengths_of(ragged, seq_q, seq_kv, sequence); }
};

// Visits the rows that no sequence uses: visit(batch, row). used: valid rows of a sequence; null: all.
// CTAs share the sequences; where these are fewer, several CTAs divide the rows of one. The rows of a packed
// tensor that come after the last sequence, which may be more than all others, are everybody's.
template <class Visit>
__device__ void each_unused_row(const int* cu, const int* used, int sequences, int seq, int total, Visit visit) {
  const int ctas = gridDim.x, me = blockIdx.x, sharers = max(1, ctas / max(1, sequences));
  for (int i = me; i < sequences * sharers; i += ctas) {
    const int sequence = i % sequences, first = cu ? cu[sequence] : 0, end = cu ? cu[sequence + 1] : seq;
    int count = min(end - first, seq);
    if (used) count = min(count, used[sequence]);
    for (int row = first + max(0, count) + i / sequences; row < end; row += sharers) visit(cu ? 0 : sequence, row);
  }
  if (cu)
    for (int row = cu[sequences] + me; row < total; row += ctas) visit(0, row);
}

}  // namespace froghopper::attn
