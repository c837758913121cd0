// SPDX-License-Identifier: Apache-2.0
// device/attn: the rows of one sequence, read from the arrays of a ragged problem.
#pragma once
#include "contract/shared_params.h"

namespace froghopper::attn {

struct Lengths {
  int q_first, seq_q;    // first row in the packed q (0: not packed), rows that count
  int kv_first, seq_kv;  // the same of k and v
};

// seq_q, seq_kv: rows of a sequence that is not packed. seq_q bounds packed ones too: docs/2-flow.md.
__device__ inline Lengths lengths_of(const RaggedParams& p, int seq_q, int seq_kv, int sequence) {
  Lengths its = {};
  its.q_first = p.cu_q ? p.cu_q[sequence] : 0;
  its.kv_first = p.cu_kv ? p.cu_kv[sequence] : 0;
  its.seq_q = p.cu_q ? p.cu_q[sequence + 1] - its.q_first : seq_q;
  its.seq_kv = p.cu_kv ? p.cu_kv[sequence + 1] - its.kv_first : seq_kv;
  if (p.used_q) its.seq_q = min(its.seq_q, p.used_q[sequence]);
  if (p.used_kv) its.seq_kv = min(its.seq_kv, p.used_kv[sequence]);
  its.seq_q = max(0, min(its.seq_q, seq_q));
  its.seq_kv = max(0, its.seq_kv);
  return its;
}

}  // namespace froghopper::attn
