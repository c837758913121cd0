// SPDX-License-Identifier: Apache-2.0
// device/fwd: rows of O and LSE that no sequence uses (past seqused_q, after the last sequence) get 0 and -inf, so
// that the next layer never reads what was there before.
#pragma once
#include "contract/fwd_params.h"
#include "device/attn/sequences.cuh"
#include "device/tile/constants.cuh"

namespace froghopper::fwd {

// One warp a CTA.
struct PaddingFiller {
  const FwdParams& params;
  int sequences;
  int bytes;  // of a number of O

  __device__ void run() const {
    if (params.rows.least > 0) return;  // the launch of the sequences with fewer rows does it
    attn::each_unused_row(params.ragged.cu_q, params.ragged.used_q, sequences, params.seq_q, params.ragged.total_q,
                          [&](int batch, int row) { fill(batch, row); });
  }

 private:
  __device__ void fill(int batch, int row) const {
    const int lane = threadIdx.x % 32;
    char* o = static_cast<char*>(params.o.data) + batch * params.o.batch + row * params.o.row;
    const int units = params.dim_v * bytes / 16;  // of a row of one head, 16 bytes each
    int head = lane / units, unit = lane % units;
    while (head < params.heads_q) {
      *reinterpret_cast<uint4*>(o + head * params.o.head + unit * 16) = {0, 0, 0, 0};
      head += 32 / units, unit += 32 % units;
      if (unit >= units) unit -= units, ++head;
    }
    if (!params.lse.data) return;
    for (int head = lane; head < params.heads_q; head += 32)
      params.lse.data[batch * params.lse.batch + head * params.lse.head + row * params.lse.row] = -tile::inf;
  }
};

}  // namespace froghopper::fwd
