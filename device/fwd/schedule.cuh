// SPDX-License-Identifier: Apache-2.0
// device/fwd: which work item a ticket means. The order is contract/order.h's, which tests run on the host.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "device/attn/lengths.cuh"
#include "device/attn/mask.cuh"
#include "device/attn/sequences.cuh"

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

template <FwdVariant V>
struct RaggedSchedule {
  const FwdParams& params;
  attn::Sequences<attn::TilesOf::q, V.tiles.q> sequences;

  __device__ RaggedSchedule(const FwdParams& params)
      : params(params), sequences{params.ragged,  params.seq_q,         params.seq_kv,
                                  params.heads_q, params.order.section, params.order.pairs / params.heads_q} {}

  __device__ WorkItem find(int number) {
    attn::TileOfSequence found;
    if (!sequences.find(number, found)) return {};
    return describe<V>(params, found.sequence, found.item.pair, found.item.q_tile, found.rows);
  }
  // Valid once find() has found none.
  __device__ int items() const { return sequences.items(); }
};

}  // namespace froghopper::fwd
