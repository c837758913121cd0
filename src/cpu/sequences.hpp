// SPDX-License-Identifier: Apache-2.0
// cpu: where the rows of one sequence lie.
#pragma once
#include "src/problem/tensors.hpp"

namespace froghopper::cpu {

struct Sequence {
  int64_t index;                // of the sequence
  int64_t batch;                // index into the tensors' first extent
  int64_t first_q, first_kv;    // its row 0 in them
  int64_t extent_q, extent_kv;  // rows that are written
  int64_t used_q, used_kv;      // rows that count
};

// index = batch, of packed sequences: the rows past the last one. None of them counts; what is written for rows is
// written for them all the same.
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
