// SPDX-License-Identifier: Apache-2.0
// device/fwd: rows of O and LSE that no sequence uses (behind seqused_q, behind the last sequence) get 0 and -inf, so
// that the next layer never reads what was there before.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "device/fwd/schedule.cuh"

namespace froghopper::fwd {

// One warp a CTA; CTAs share the sequences. Packed tensors have one stretch more than sequences: behind the last one.
struct Sweeper {
  const FwdParams& params;
  int sequences;

  __device__ void run() const {
    const int stretches = sequences + (params.cu_q ? 1 : 0);
    for (int i = blockIdx.x; i < stretches; i += gridDim.x) {
      const bool behind_all = i == sequences;
      const int first = params.cu_q ? params.cu_q[i] : 0;
      const int used = behind_all ? 0 : Lengths(params, i).seq_q;
      const int end = behind_all ? params.total_q : params.cu_q ? params.cu_q[i + 1] : first + params.seq_q;
      const int batch = params.cu_q ? 0 : i;
      for (int row = first + used; row < end; ++row) sweep(batch, row);
    }
  }

 private:
  __device__ void sweep(int batch, int row) const {
    const int lane = threadIdx.x % 32;
    char* o = static_cast<char*>(params.o) + batch * params.o_batch + row * params.o_row;
    const int units = params.dim_v / 8;  // of 16 bytes
    for (int i = lane; i < params.heads_q * units; i += 32)
      *reinterpret_cast<uint4*>(o + i / units * params.o_head + i % units * 16) = {0, 0, 0, 0};
    if (!params.lse) return;
    for (int head = lane; head < params.heads_q; head += 32)
      params.lse[batch * params.lse_batch + head * params.lse_head + row] = -tile::inf;
  }
};

}  // namespace froghopper::fwd
