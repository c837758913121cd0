// SPDX-License-Identifier: Apache-2.0
// contract: the run-time half. Passed by value as __grid_constant__, so it must stay under 4 KiB.
#pragma once

namespace froghopper {

struct alignas(64) TmaMap {
  unsigned char opaque[128];  // bit-identical to CUtensorMap
};

struct FwdParams {
  // Fixed lengths: 4-D maps over [batch, head, seq, dim].
  // Ragged: 5-D maps over [wrap, row, head, row below the end, dim], see fwd/place.cuh and runtime/tensor_map.cpp.
  TmaMap q, k, v;
  void* o;                           // 16-byte aligned
  long long o_batch, o_head, o_row;  // bytes from one to the next; o_batch is 0 when packed
  float* lse;                        // natural log; may be null
  long long lse_batch, lse_head;     // elements from one to the next; rows are dense
  const float* sink;                 // [heads_q], natural units; may be null
  int heads_q, heads_per_kv;         // heads_per_kv = heads_q / heads_kv
  int seq_q, seq_kv;                 // rows of a sequence; ragged: an upper bound on seq_q
  int dim_v;                         // columns of O in memory, at most the tile's
  int window_left, window_right;     // keys seen before and after the diagonal; no_bound: all
  int top_left;                      // 0: the diagonal ends in the bottom-right corner; 1: starts in the top-left one
  float scale_log2;                  // softmax scale x log2(e); with softcap: softcap x log2(e)
  float cap_scale;  // softcap only: 2 log2(e) x scale / softcap, so that 2^(s cap_scale) = e^(2 s scale / cap)

  // Ragged only. Sequence b of q: rows [cu_q[b], cu_q[b+1]) of the packed tensor, or all rows of batch b.
  const int* cu_q;  // [batch + 1]; null: not packed
  const int* cu_kv;
  const int* used_q;  // [batch]; null: all rows count
  const int* used_kv;
  int total_q;                  // rows of the packed q; behind the last sequence they see nothing
  int row_step_q, row_step_kv;  // not packed: row units of the map from one batch to the next
  int unit_q, unit_kv;          // row units of the map's wrapped dimension per row

  // The order of work, see fwd/schedule.cuh.
  int works;                    // pairs x q tiles
  int pairs;                    // (sequence, query head) pairs
  int q_tiles;                  // q tiles of a pair
  int section;                  // pairs handed out together, so that their K and V stay in L2
  int tail;                     // lightest q tiles of every pair, handed out last, over all pairs together
  unsigned long long* counter;  // works handed out; see Tickets in fwd/schedule.cuh
  unsigned int ticket_tag;      // nonzero, another one for every launch
};

constexpr int no_bound = 1 << 30;  // more keys than a sequence may have

}  // namespace froghopper
