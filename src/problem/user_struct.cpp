// SPDX-License-Identifier: Apache-2.0
// problem: Problem -> the user's description, which Problem::from (validate.cpp) reads back as the same problem.
#include "src/problem/problem.hpp"

namespace froghopper {

fh_problem Problem::user_struct() const {
  fh_problem p = fh_problem_init();
  p.op = op;
  p.dtype = static_cast<fh_dtype>(dtype);
  p.batch = batch, p.heads_q = heads_q, p.heads_kv = heads_kv;
  p.seq_q = seq_q, p.seq_kv = seq_kv;
  p.dim_qk = dim_qk, p.dim_v = dim_v;
  p.total_q = total_q, p.total_kv = total_kv;
  p.varlen = varlen, p.seqused = seqused, p.causal = causal(), p.align = align;
  p.window_left = window_left, p.window_right = window_right;
  p.scale = scale == 0 ? -0.0f : scale, p.softcap = softcap;
  p.sink = sink, p.deterministic = deterministic, p.max_sms = max_sms;
  p.accumulate = accumulate;
  if (dtype_kv != dtype) p.dtype_kv = static_cast<fh_dtype>(dtype_kv);
  if (dtype_o != usual_output(dtype, merges())) p.dtype_o = static_cast<fh_dtype>(dtype_o);
  p.scale_rows = scale_rows, p.scale_v_columns = scale_v_columns;
  p.rotate = rotate, p.rotate_seed = rotate_seed;
  p.smooth = smooth, p.alibi = alibi, p.attention_chunk = attention_chunk;
  p.invariant = invariant, p.max_logit = max_logit;
  p.page_size = page_size, p.pages = pages;
  p.slots = slots, p.positions = positions;
  p.rotary_dim = rotary_dim, p.rotary_rows = rotary_rows, p.rotary_interleaved = rotary_interleaved;
  p.norm = norm, p.norm_epsilon = norm_epsilon, p.scale_tokens = scale_tokens;
  if (rotary_in_f32) p.dtype_rotary = FH_F32;
  if (norm_in_f32) p.dtype_norm = FH_F32;
  return p;
}

}  // namespace froghopper
