// SPDX-License-Identifier: Apache-2.0
// device/bwd: which Q tiles an item visits, in which order, and which of them need a mask. The schedule makes a
// sequence; loaders visit it, and Consumers count down what it says (QLoop, device/bwd/q_loop.cuh).
#pragma once
#include "contract/mask.h"

namespace froghopper::bwd {

// The order of an item's iterations. By heads: all q tiles of one query head, then those of the next head. With GQA and
// a causal mask the CTAs of one pair have unequal numbers of iterations and drift apart through the heads, so that Q,
// grad_o and grad_q of all heads are in use at once and do not stay in L2. The others take all heads of one q tile,
// then those of the next tile, so that the CTAs of a pair meet at the same rows: from the last tile to the first where
// the CTAs start together (rows falling), from the first to the last where they start one after the other (rows rising;
// docs/8-backward.md). The order of the kv tiles of a pair is another thing: WorkItem::keys_falling.
enum class Traversal { by_heads, rows_falling, rows_rising };

// The q tiles [begin, end), once for each query head.
struct QTileSequence {
  int begin, end;
  int first_dq_tile;    // of the sequence, in the workspace
  Spans<int> spans[2];  // of the item's M tiles, in the order of the visit
  Traversal traversal;

  __device__ bool none() const { return begin >= end; }
  __device__ int count() const { return end - begin; }

  // visited(head, q_tile) for all of them. Where CTAs add to grad_q in order, no item goes by heads.
  template <bool Deterministic, class Visited>
  __device__ void visit(int first_head, int heads, const Visited& visited) const {
    const int end_head = first_head + heads, tiles = count();
    if (!Deterministic && traversal == Traversal::by_heads) {
      for (int head = first_head; head < end_head; ++head)
        for (int i = 0; i < tiles; ++i) visited(head, begin + i);
    } else {
      const bool rows_falling = traversal == Traversal::rows_falling;
      for (int i = 0; i < tiles; ++i)
        for (int head = first_head; head < end_head; ++head) visited(head, rows_falling ? end - 1 - i : begin + i);
    }
  }
};

}  // namespace froghopper::bwd
