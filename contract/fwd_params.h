// SPDX-License-Identifier: Apache-2.0
// contract: the run-time half of the agreement between host and forward kernel.
#pragma once
#include "contract/parts.h"

namespace froghopper {

struct FwdParams {
  // Fixed lengths: 4-D maps over [batch, head, seq, dim].
  // Ragged: 5-D maps over [wrap, row, head, row below the end, dim], see device/attn/place.cuh and
  // src/runtime/tensor_map.cpp.
  TmaMap q, k, v;
  StridedTensor o;
  RowNumbers lse;             // natural log
  const float* sink;          // [heads_q], natural units; may be null
  int heads_q, heads_per_kv;  // heads_per_kv = heads_q / heads_kv
  int seq_q, seq_kv;          // rows of a sequence; ragged: an upper bound on both
  int dim_v;                  // columns of O in memory, at most the tile's
  MaskParams mask;
  float scale_log2;     // softmax scale x log2(e); with softcap: softcap x log2(e)
  float cap_scale;      // softcap only: 2 log2(e) x scale / softcap, so that 2^(s cap_scale) = e^(2 s scale / cap)
  RaggedParams ragged;  // ragged variants only
  Order order;
  QueueParams queue;
};
static_assert(sizeof(FwdParams) <= params_bytes_max);

}  // namespace froghopper
