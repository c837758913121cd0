// SPDX-License-Identifier: Apache-2.0
// contract: the run-time half of the agreement of the backward pass. Three kernels run one after the other:
//   delta      for every query row lse in base 2 and delta; zeros where grad_q is summed
//   backward   grad_k and grad_v, and grad_q as sums of fp32 pieces in the workspace
//   grad_q     the pieces -> rows of grad_q; grad_sink; rows of no sequence
#pragma once
#include "contract/order.h"
#include "contract/shared_params.h"
#include "contract/types.h"

namespace froghopper {

// The numbers of the q tiles of all sequences and heads in the workspace. A sequence's first tile has the number
// sequence x tiles_of_sequence, or packed cu_q / tile_q + sequence: every sequence begins a tile of its own, and as
// many tiles as its rows fill lie before the next one's. Tile t of a head is number t x heads_q + head.
struct QTiles {
  int heads_q;
  int tiles_of_sequence;  // packed: of the longest
  int tiles;              // of all sequences, in one head
};
constexpr long long tiles_of_packed(long long total_q, long long batch, int tile_q) {
  return total_q / tile_q + batch;
}
constexpr int first_tile_of_packed(int first_row, int sequence, int tile_q) { return first_row / tile_q + sequence; }

// The index of a row's lse, or delta, among those of its tile. Float4-interleaved: four rows that a thread of the
// backward kernel needs lie together, so that it takes them with one load: two neighbours and the two that are 8 rows
// after them (tile::col_of).
constexpr int index_of_row(bool float4_interleaved, int row) {
  return float4_interleaved ? row / 16 * 16 + row % 8 / 2 * 4 + row / 8 % 2 * 2 + row % 2 : row;
}

// A gradient: rows are written in the type of the tensors, or added to fp32 ones.
struct GradTensor {
  StridedTensor to;
  int dim;  // head dim in memory, at most the tile's
  int add;  // nonzero: `to` holds fp32, and the gradient is added
};

struct DeltaParams {
  StridedTensor o, grad_o;
  RowScalars lse;       // natural log, as the forward wrote it
  RowScalars grad_lse;  // may be null
  const float* sink;    // [heads_q], natural units; may be null
  float* rows;  // [tile][2][index_of_row] out: lse x log2(e), +inf where a row attends to no key or is no row; delta
  float* dq_sum;               // [tile][dq_floats] out: zeros; null where the first CTA writes, which is in one call
  float* sink_shares;          // [tile] out: the tile's share of grad_sink; null without a sink
  unsigned int* dq_semaphore;  // [tile] out: zeros; null where CTAs add in any order
  unsigned int* large;         // [1] out: the tag if some row's lse is so large that its rounding shows
  unsigned int tag;            // of this run, or of the calls in phases that it belongs to
  QTiles q_tiles;
  int sequences, seq_q, dim_v;
  int tile_q, dq_floats;
  int float4_interleaved;  // the order of rows among a tile's, index_of_row
  RaggedParams ragged;
  // Gated variants only.
  StridedTensor gate, grad_gate;
  StridedTensor gated_grad_o;  // out: grad_o by the sigmoid of gate, which the backward kernel reads
  MaskParams mask;             // mask, chunk and seq_kv: to find rows that attend to no key, whose gate is not read
  int chunk, seq_kv;
};

struct BwdParams {
  TmaMap q, k, v, grad_o;      // as the forward's maps
  TmaMap rows;                 // [tile][2 x tile_q] of the workspace
  float* dq_sum;               // [tile][piece][fragment][thread of 128][4]
  unsigned int* dq_semaphore;  // deterministic only: [tile], how many CTAs have added
  const unsigned int* large;
  GradTensor grad_k, grad_v;
  QTiles q_tiles;
  int heads_kv, heads_per_kv;
  int sequences, seq_q, seq_kv;
  // Pairs whose items run their iterations in the same order, see Traversal; 0: one query head after the other
  int same_traversal;
  int pairs_light_first;  // deterministic only: pairs whose kv tiles add to grad_q from the last to the first one
  int in_phases;          // deterministic only, nonzero: the first CTA adds too, and counters end as 0
  MaskParams mask;
  float scale;             // of grad_k; of grad_q it is the next kernel's
  float scale_log2;        // softmax scale x log2(e); with softcap: softcap x log2(e)
  float cap_scale;         // softcap only, as the forward's
  unsigned int large_tag;  // what DeltaParams::tag was
  int zero;  // 0 at run time, which the compiler cannot know: bwd::Consumer::opaque_tile, device/bwd/consumer.cuh
  RaggedParams ragged;
  MapGranules grad_o_granules;
  Order order;
  QueueParams queue;
  int chunk;           // variants that mask by chunks only
  ScaleValues slopes;  // alibi variants only; in natural units, no blocks
};
static_assert(sizeof(BwdParams) <= params_bytes_max);

struct GradQParams {
  const float* dq_sum;
  // [tile], how many CTAs have added, 0: there is no sum; null: there always is, as in phases
  const unsigned int* dq_semaphore;
  unsigned int* large;       // cleared: a replayed CUDA graph has the same tag again. Null: no row was counted
  const float* sink_shares;  // null without a sink
  GradTensor grad_q, grad_k, grad_v;  // of k and v: the rows of no sequence
  float* grad_sink;                   // [heads_q]; null without a sink
  QTiles q_tiles;
  int heads_kv, sequences, seq_q, seq_kv, total_kv;
  float scale;
  RaggedParams ragged;
};

}  // namespace froghopper
