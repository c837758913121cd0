// SPDX-License-Identifier: Apache-2.0
// device/bwd: grad_k and grad_v of 64 keys on their way from registers to global memory.
#pragma once
#include "contract/bwd_params.h"
#include "contract/shared_params.h"
#include "device/bwd/schedule.cuh"
#include "device/tile/accum.cuh"

namespace froghopper::bwd {

// Where this thread's two rows of grad_k or grad_v lie: those of two of the 64 keys from first_key on.
struct RowsOfKeys {
  long long batch, head, row;  // of the tensors; row is the top one
  bool has_top, has_bottom;

  __device__ RowsOfKeys(const BwdParams& params, const WorkItem& item, int first_key, bool ragged) {
    const int key = first_key + tile::thread_row();
    batch = ragged && params.ragged.cu_kv ? 0 : item.sequence;
    head = item.head_kv;
    row = item.lengths.kv_first + key;
    has_top = key < item.lengths.seq_kv;
    has_bottom = key + 8 < item.lengths.seq_kv;
  }

  // From a column on.
  template <class T, int Cols>
  __device__ __forceinline__ void store(const GradTensor& grad, const tile::Accum<Cols>& x, int col = 0) const {
    const StridedTensor& to = grad.to;
    char* at = static_cast<char*>(to.data) + batch * to.batch + head * to.head + row * to.row +
               col * (grad.add ? sizeof(float) : 2);
    const tile::RowAddresses addresses = {at, at + 8 * to.row, has_top, has_bottom};
    if (grad.add)
      tile::add_rows(addresses, grad.dim - col, x);
    else
      tile::store_rows<T>(addresses, grad.dim - col, x);
  }
};

}  // namespace froghopper::bwd
