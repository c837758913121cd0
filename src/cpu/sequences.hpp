// SPDX-License-Identifier: Apache-2.0
// cpu: where the rows of one sequence are in memory.
#pragma once
#include "src/problem/tensors.hpp"

namespace froghopper::cpu {

struct Sequence {
  int64_t index;                // of the sequence
  int64_t batch;                // index in the batch dimension of the tensors
  int64_t first_q, first_kv;    // its row 0 there
  int64_t extent_q, extent_kv;  // rows in memory
  int64_t used_q, used_kv;      // rows that are computed; the others are padding
};

// index = batch, with packed sequences: the rows after the last sequence. All of them are padding, which is written
// too.
inline Sequence sequence_of(const Problem& p, const Views& views, int64_t index) {
  if (p.varlen && index == p.batch) {
    const int64_t end_q = p.batch == 0 ? 0 : views.cu_seqlens_q.as<int32_t>()[p.batch];
    const int64_t end_kv = p.batch == 0 || !p.kv_is_packed() ? 0 : views.cu_seqlens_kv.as<int32_t>()[p.batch];
    return {index, 0, end_q, end_kv, p.total_q - end_q, p.total_kv - end_kv, 0, 0};
  }
  const Rows q = rows_q(p, views, index), kv = rows_kv(p, views, index);
  return {index, q.batch, q.first, kv.first, q.extent, kv.extent, q.used, kv.used};
}

}  // namespace froghopper::cpu
