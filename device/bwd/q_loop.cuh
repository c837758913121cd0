// SPDX-License-Identifier: Apache-2.0
// device/bwd: the Consumers' side of QTileSequence: how many iterations with a mask and without one are left.
#pragma once
#include "contract/bwd_params.h"
#include "contract/mask.h"
#include "device/bwd/q_tile_sequence.cuh"
#include "device/bwd/schedule.cuh"

namespace froghopper::bwd {

// Counts down the iterations of one item for one M tile of keys. A round visits every q tile of the item: the
// iterations of a first span have a mask, those of the next have none, those of the last have one again (Spans).
// by_heads: there is one round for each query head. In the other traversals there is one round, in which each q tile
// has one iteration for each query head.
struct QLoop {
  const BwdParams& params;
  const WorkItem& item;
  int m_tile_index;      // among those of the kv tile
  bool large;            // some row of the problem may be large, see Weigh
  int heads;             // iterations of every q tile
  int rounds;            // after this one
  int masked_last;       // iterations of this round after the present spans
  int masked, unmasked;  // iterations of the present spans; the caller counts them down

  __device__ QLoop(const BwdParams& params, const WorkItem& item, int m_tile_index)
      : params(params), item(item), m_tile_index(m_tile_index), heads(1), rounds(1) {
    (item.q.traversal == Traversal::by_heads ? rounds : heads) = params.heads_per_kv;
    large = uniform(*params.large == params.large_tag);
    next_round();
  }

  __device__ int all_q_iterations() const { return uniform(item.q.count() * params.heads_per_kv); }

  // The first iteration of an item has only the masked form, whichever span it belongs to.
  __device__ void count_first() { --(masked > 0 ? masked : unmasked); }

  // The spans are over; false: that was the last iteration.
  __device__ bool next() {
    masked = masked_last;
    masked_last = 0;
    if (masked == 0 && rounds > 0) next_round();
    return masked + unmasked > 0;
  }

 private:
  __device__ void next_round() {
    --rounds;
    const Spans<int>& spans = item.q.spans[m_tile_index];
    masked = q_iterations(spans.masked), unmasked = q_iterations(spans.unmasked),
    masked_last = q_iterations(spans.masked_last);
    if (large || masked + unmasked == 0) masked += unmasked + masked_last, unmasked = masked_last = 0;
  }
  // The shuffle tells the compiler that all lanes have the same value.
  __device__ int q_iterations(int tiles) const { return uniform(tiles * heads); }
  static __device__ int uniform(int value) { return __shfl_sync(~0u, value, 0); }
};

}  // namespace froghopper::bwd
