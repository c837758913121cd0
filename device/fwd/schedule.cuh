// SPDX-License-Identifier: Apache-2.0
// device/fwd: which work item a ticket means. The order is contract/order.h's, which tests run on the host.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "device/attn/lengths.cuh"
#include "device/attn/mask.cuh"

namespace froghopper::fwd {

// kv tiles [kv_begin, kv_end), walked from the last to the first; none: no item is left.
struct alignas(16) WorkItem {
  int q_tile, head, sequence, kv_begin, kv_end;
  attn::Lengths rows;  // of its sequence; read in ragged variants only

  __device__ bool none() const { return kv_begin == kv_end; }
};

template <FwdVariant V>
using Sight = attn::Sight<V.mask, V.tiles.kv>;

template <FwdVariant V>
__device__ WorkItem describe(const FwdParams& params, int sequence, int head, int q_tile, const attn::Lengths& rows) {
  const int first_row = q_tile * V.tiles.q, last_row = min(first_row + V.tiles.q, rows.seq_q) - 1;
  const auto tiles = Sight<V>(params.mask, rows.seq_q, rows.seq_kv).tiles(first_row, last_row, V.tiles.kv);
  return {q_tile, head, sequence, tiles.begin, tiles.end, rows};
}

template <FwdVariant V>
struct FixedSchedule {
  const FwdParams& params;

  __device__ WorkItem find(int number) {
    if (number >= params.order.items) return {};
    const Item item = item_at(params.order, number, /*heaviest_first=*/V.mask != Mask::none);
    return describe<V>(params, item.pair / params.heads_q, item.pair % params.heads_q, item.q_tile,
                       {0, params.seq_q, 0, params.seq_kv});
  }
  __device__ int items() const { return params.order.items; }
};

// Sequences by rank (contract/order.h), in a rank as they come. A warp reads 32 lengths at once and scans on from where
// it stopped: tickets of one CTA only grow. It goes over all sequences once for every rank that occurs.
template <FwdVariant V>
struct RaggedSchedule {
  const FwdParams& params;
  int sequences;                    // how many there are
  int rank = 0, next_rank = ranks;  // the one that is handed out; the next one that occurs, as far as this scan knows
  int group = 0;                    // the 32 sequences this warp looks at: [group, group + 32)
  int tiles_before = 0;             // q tiles of all that was handed out before them

  // All 32 lanes together; the same answer in each.
  __device__ WorkItem find(int number) {
    const int lane = threadIdx.x % 32;
    for (; rank < ranks; start(next_rank))
      for (; group < sequences; group += 32) {
        const int tiles = tiles_of_rank(group + lane);
        int up_to_mine = tiles;  // inclusive prefix sum
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
          const int below = __shfl_up_sync(~0u, up_to_mine, step);
          if (lane >= step) up_to_mine += below;
        }
        const int up_to_last = __shfl_sync(~0u, up_to_mine, 31);
        if (number < (tiles_before + up_to_last) * params.heads_q) {
          const unsigned holders = __ballot_sync(~0u, number < (tiles_before + up_to_mine) * params.heads_q);
          const int holder = __ffs(holders) - 1;
          const int before = tiles_before + __shfl_sync(~0u, up_to_mine - tiles, holder);
          return item_of(group + holder, __shfl_sync(~0u, tiles, holder), number - before * params.heads_q);
        }
        tiles_before += up_to_last;
      }
    return {};
  }
  // Valid once find() has found none.
  __device__ int items() const { return tiles_before * params.heads_q; }

 private:
  __device__ void start(int new_rank) {
    rank = new_rank;
    next_rank = ranks;
    group = 0;
  }
  // q tiles of a sequence; 0 if it has another rank.
  __device__ int tiles_of_rank(int sequence) {
    int tiles = 0, its_rank = ranks;
    if (sequence < sequences) {
      const attn::Lengths rows = lengths(sequence);
      tiles = (rows.seq_q + V.tiles.q - 1) / V.tiles.q;
      if (tiles > 0) its_rank = rank_of(rows.seq_kv, params.seq_kv);
    }
    next_rank = min(next_rank, __reduce_min_sync(~0u, its_rank > rank ? its_rank : ranks));
    return its_rank == rank ? tiles : 0;
  }
  __device__ attn::Lengths lengths(int sequence) const {
    return attn::lengths_of(params.ragged, params.seq_q, params.seq_kv, sequence);
  }
  __device__ WorkItem item_of(int sequence, int q_tiles, int number) const {
    const Item item = item_in_sequence(number, q_tiles, params.heads_q, params.order.section);
    return describe<V>(params, sequence, item.pair, item.q_tile, lengths(sequence));
  }
};

}  // namespace froghopper::fwd
