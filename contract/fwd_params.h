// SPDX-License-Identifier: Apache-2.0
// contract: the run-time half of the agreement between host and forward kernel.
#pragma once
#include "contract/order.h"
#include "contract/shared_params.h"
#include "contract/softcap.h"
#include "contract/split.h"
#include "contract/types.h"

namespace froghopper {

// Variants with scales only (fwd_has_scales).
struct EightBitParams {
  ScaleValues q, k, v;
  int v_columns;  // nonzero: v.data has one for every column, and none for blocks
  Dtype dtype_o;
};

// Smooth variants only: the means of a sequence that were subtracted from K and V before they were quantised, and Q, as
// q mean_k is added to lse.
struct MeansParams {
  ScaleValues k, v;  // one value for each column; no blocks
  StridedTensor q;
  int dim_qk;  // head dim of Q in memory
};

// Paged variants only: those with pages and those with page_rows (contract/types.h, KvLayout). Row r of sequence b is
// row r % size of the page table[b x sequence_stride + r / size x page_stride].
struct PageParams {
  const int* table;
  long long sequence_stride;             // entries from one sequence to the next
  int page_stride;                       // entries from one page of a sequence to the next
  int size;                              // rows of a page
  int box;                               // pages: rows of one load; divides the page and the tile
  StridedTensor k, v;                    // page_rows: the pool, whose batch is a page
  int k_bytes, v_bytes;                  // page_rows: of a row
  int k_granule_bytes, v_granule_bytes;  // page_rows: bytes of a granule of RaggedParams::k and v
};

// How many query rows the sequences of a launch have (ragged variants): sequences with fewer or more are those of
// another launch. A problem may be two launches, the sequences with many rows first. They write disjoint rows of o and
// lse.
struct RowsRange {
  int least = 0, most = 0x7fffffff;
  constexpr bool has(int rows) const { return least <= rows && rows <= most; }
};

// Variants with merges_lse only: the O of several calls in fp32, of O's shape.
struct SumOfOParams {
  StridedTensor sum;
  int reads;   // nonzero: earlier calls have written it, and lse; else nothing is there yet
  int rounds;  // nonzero: the merged rows are rounded to O, and what is in the sum afterwards does not matter
};

struct FwdParams {
  // Fixed lengths: 4-D maps over [batch, head, seq, dim].
  // Ragged: 5-D maps over [wrap, granule, head, row below the end, dim], see device/attn/tma_rows.cuh and
  // src/runtime/tensor_map.cpp.
  TmaMap q, k, v;
  TmaMap o_map;  // where TMA stores O, fwd_o_store; boxes of o_box_rows
  StridedTensor o;
  RowScalars lse;             // natural log
  const float* sink;          // [heads_q], natural units; may be null
  int heads_q, heads_per_kv;  // heads_per_kv = heads_q / heads_kv
  int seq_q, seq_kv;          // rows of a sequence; ragged: an upper bound on both
  int dim_v;                  // head dim of O in memory, at most the tile's
  MaskParams mask;
  // Softmax scale x log2(e); with softcap: softcap x log2(e). At least the smallest positive fp32 value, so that a
  // score of -inf stays -inf: kernels must not flush such values to 0 (-ftz).
  float scale_log2;
  float cap_scale;      // softcap only: 2 log2(e) x scale / softcap, so that 2^(s cap_scale) = e^(2 s scale / cap)
  RaggedParams ragged;  // ragged variants only
  RowsRange rows;       // likewise
  // Ragged variants only: the launch before this one is the same problem's, for the sequences with more rows, and the
  // two may run at the same time: device/fwd/forward.cuh, Launches.
  bool overlaps_another;
  EightBitParams eight_bit;
  // Of O, where the variant has promotion (promotion_tiles) or merges parts (fwd_merges_parts), also of 16-bit q, k, v:
  // [CTA][Consumer][headers, then fragments][thread][4].
  float* sums;
  BlockScales block_scales;  // blocks variants only
  Order order;
  QueueParams queue;
  PackGqaParams pack_gqa;  // PackGQA variants only
  SplitParams split;       // split-KV variants only
  SoftcapParams softcap;
  int chunk;              // variants that mask by chunks only
  ScaleValues slopes;     // alibi variants only; in natural units, no blocks
  MeansParams means;      // smooth variants only
  float* max_logit;       // maxlogit variants only: [sequence][head], natural units; raised
  PageParams pages;       // paged variants only
  StridedTensor gate;     // gated variants only; of O's type
  SumOfOParams sum_of_o;  // variants with merges_lse only
};
static_assert(sizeof(FwdParams) <= params_bytes_max);

// Of the kernel that combines the parts of rows. Its tiles are those of the forward kernel, which say how many parts a
// row has. Without even splits it never follows one of two launches of a ragged problem, as it takes the rows of all
// sequences.
struct CombineParams {
  SplitParams split;
  StridedTensor o;
  RowScalars lse;
  const float* sink;
  int heads_q, seq_q, seq_kv, dim_v;
  int sequences;
  int tile_q, tile_kv;  // query rows of a sequence in a tile; keys in one
  MaskParams mask;
  float scale_log2;
  RaggedParams ragged;
  StridedTensor gate;      // gated variants only; of O's type
  PackGqaParams pack_gqa;  // variants of even splits only
  int ctas;                // likewise: of the forward kernel
};
static_assert(sizeof(CombineParams) <= params_bytes_max);

}  // namespace froghopper
