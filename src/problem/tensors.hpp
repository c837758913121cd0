// SPDX-License-Identifier: Apache-2.0
// problem: the user's tensors, checked against a problem: pointers, strides, the pieces that options demand.
#pragma once
#include "src/problem/problem.hpp"

namespace froghopper {

// A tensor [batch, seq, heads, dim] somewhere in memory. Packed: batch extent 1, seq extent total.
struct View {
  void* data = nullptr;
  int64_t batch = 0, seq = 0, heads = 0, dim = 0;             // extents
  int64_t stride_batch = 0, stride_seq = 0, stride_head = 0;  // elements; 0 where the extent is at most 1
};

struct Views {
  View q, k, v, o;
  float* lse = nullptr;
  int64_t lse_stride_batch = 0, lse_stride_head = 0;  // rows are dense
  const int32_t *cu_seqlens_q = nullptr, *cu_seqlens_kv = nullptr;
  const int32_t *seqused_q = nullptr, *seqused_kv = nullptr;
  const float* sink = nullptr;
};

// The rules that hold on every backend: what must be there is there, what may not overlap does not (o rows), strides
// are not negative. The address of an empty tensor may be NULL. Alignment for TMA: see runtime/tensor_map.hpp.
Result<Views> bind(const Problem&, const fh_tensors&);

// Rows of sequence b: where they begin in the packed or batched tensor, how many there are, how many count.
struct Rows {
  int64_t first;   // row index in the packed tensor; 0 for batched tensors
  int64_t extent;  // rows that o and lse have for it
  int64_t used;    // rows that count: query rows at and behind it see nothing, keys at and behind it are unseen
};
// Host memory only (CPU backend, oracle, tests). Bad lengths (cu_seqlens that do not begin with 0, fall, reach past
// total or make a sequence longer than seq; seqused outside its sequence): a Failure.
Result<void> check_lengths(const Problem&, const Views&);
Rows rows_q(const Problem&, const Views&, int64_t sequence);
Rows rows_kv(const Problem&, const Views&, int64_t sequence);

}  // namespace froghopper
