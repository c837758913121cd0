// SPDX-License-Identifier: Apache-2.0
// problem: the bytes that must be moved. Those of q, k, v, o and lse, each once: rows of the tensors, used or not; of
// scales only those that each row of k and v has, since others are few; a gate and its gradient are as large as o. A
// backward problem moves grad_o, grad_q, grad_k and grad_v too, and with accumulate the last three both ways; a forward
// problem with accumulate moves o and lse both ways. To quantise moves q, k and v, read and written, and so does to
// append.
#pragma once
#include "src/problem/problem.hpp"

namespace froghopper {

// With so many rows of q, and of k and v, of all sequences.
inline double bytes_moved(const Problem& p, double all_rows_q, double all_rows_kv) {
  const double dims = double(p.dim_qk + p.dim_v), element = size_of(p.dtype);
  const double rows_q = all_rows_q * double(p.heads_q), rows_kv = all_rows_kv * double(p.heads_kv);
  const double of_scales = p.scale_tokens ? 2 * sizeof(float) : 0;  // of a row of k and v
  if (p.appends())
    return 2 * element * double(p.dim_qk) * rows_q +
           ((element + size_of(p.dtype_kv)) * dims + of_scales) * all_rows_q * double(p.heads_kv);
  if (p.quantises()) return (element + size_of(p.dtype_kv)) * (double(p.dim_qk) * rows_q + dims * rows_kv);
  const double row_o = size_of(p.dtype_o) * double(p.dim_v), of_o = row_o + sizeof(float);
  const double row_q = element * double(p.dim_qk) + of_o * (p.merges_lse() ? 2 : 1) + (p.gate ? row_o : 0);
  const double forward = row_q * rows_q + (size_of(p.dtype_kv) * dims + of_scales) * rows_kv;
  if (p.op != FH_BACKWARD) return forward;
  const double written = double(p.dim_qk + (p.gate ? p.dim_v : 0)) * rows_q + dims * rows_kv;
  return forward + element * double(p.dim_v) * rows_q + written * (p.accumulate ? 2 * sizeof(float) : element);
}

inline double bytes_moved(const Problem& p) { return bytes_moved(p, double(p.rows_q()), double(p.rows_kv())); }

}  // namespace froghopper
