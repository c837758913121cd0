// SPDX-License-Identifier: Apache-2.0
// contract: structs that the parameters of several kernels share.
#pragma once
#include "contract/order.h"
#include "contract/types.h"

namespace froghopper {

struct alignas(64) TmaMap {
  unsigned char opaque[128];  // bit-identical to CUtensorMap
};

// A kernel's parameters are passed by value as __grid_constant__; CUDA takes 4 KiB of them.
constexpr int params_bytes_max = 4096;

struct StridedTensor {
  void* data;                  // 16-byte aligned
  long long batch, head, row;  // bytes from one to the next; batch is 0 when packed
};

// One fp32 value for every query row and head.
struct RowScalars {
  float* data;                 // may be null
  long long batch, head, row;  // elements from one to the next
};

// fp32 values of sequences and heads: what the elements of an 8-bit tensor are multiplied by (q_descale, k_descale and
// v_descale in FlashAttention-3), or the slopes of alibi.
// batch, head, block: floats from one to the next.
struct ScaleValues {
  const float* data;
  long long batch, head, block;  // block: scale_block rows; 0 where all rows of a sequence share a scale
};

// What K and V are multiplied by where an earlier launch has dequantised them and not all rows of a sequence share a
// scale: entries of two floats, for each sequence and head. The first entry is the scale of O, which is the largest one
// of V, and 0; then comes one for each block of scale_block keys, the scale of its scores in base 2 and log2 of that of
// V over the scale of O.
struct BlockScales {
  float* data;      // null: there are none
  int batch, head;  // entries from one to the next
};
constexpr long long block_scales_of_head(long long seq_kv) { return 1 + (seq_kv + scale_block - 1) / scale_block; }
constexpr int block_scale_bytes = 8;  // of an entry
// log2 of the scale of V over that of O is at least this, so that weights times that scale are in the range of fp32.
constexpr float least_log2_v_scale = -120.f;

// Keys attended to before and after the diagonal; no_bound: all. top_left: the diagonal starts in the top-left corner,
// else it ends in the bottom-right one.
struct MaskParams {
  int left, right;
  int top_left;
};

// The TMA map of a ragged tensor has a dimension of map_rows rows, in which the end of every sequence is moved to the
// end of the dimension: device/attn/tma_rows.cuh has the address. Rows and batches are counted in granules, the largest
// number of bytes that divides both strides. All granules of a tensor are counted in an int: ragged_shape()
// (src/runtime/tensor_map.cpp) refuses tensors that have more, also with page_rows, which are read without a map but
// for which the host makes one too.
struct MapGranules {
  int batch;  // granules from one batch to the next; not packed only
  int row;    // granules from one row to the next
};
constexpr int map_rows = 1 << 30;

// Sequences with lengths of their own. Sequence b of q: rows [cu_q[b], cu_q[b+1]) of the packed tensor, or all rows of
// batch b.
struct RaggedParams {
  const int* cu_q;  // [batch + 1]; null: not packed
  const int* cu_kv;
  const int* used_q;  // [batch]; null: all rows are valid
  const int* used_kv;
  int total_q;  // rows of the packed q; those after the last sequence attend to nothing
  MapGranules q, k, v, o;
};

// Who takes which work item: Tickets in device/attn/tickets.cuh.
struct QueueParams {
  // Tickets fetched so far. Forward kernels: null where no CTA has a second item. Backward kernels always have one:
  // they fetch a ticket after every item, without asking Tickets::in_use().
  unsigned long long* counter;
  unsigned int tag;  // nonzero, another one for every launch
};

}  // namespace froghopper
