// SPDX-License-Identifier: Apache-2.0
// tests: tensors of a problem at addresses without memory, for whoever must not follow them.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "src/problem/tensors.hpp"

namespace froghopper::test {

// bind() must read no tensor, so addresses without memory are enough. They do not overlap.
template <class T>
T* somewhere(uintptr_t number) {
  return reinterpret_cast<T*>(number << 32);
}

inline Problem problem_of(const std::string& line) {
  auto p = Problem::parse(line);
  EXPECT_TRUE(p) << p.failure().text;
  return *p;
}

inline constexpr const char* batched = "fwd bf16 b2 hq8 hkv2 sq100 skv200 d64 dv128";
inline constexpr const char* packed = "fwd bf16 b3 hq8 hkv2 sq100 skv200 d64 dv128 varlen tq250 tkv500";

// Tensors without gaps, as [batch, seq, heads, dim].
inline fh_tensors tensors_of(const Problem& p) {
  const auto dense = [](uintptr_t number, int64_t seq, int64_t heads, int64_t dim) {
    return fh_tensor{somewhere<void>(number), seq * heads * dim, heads * dim, dim};
  };
  fh_tensors t = fh_tensors_init();
  t.q = dense(1, p.seq_q, p.heads_q, p.dim_qk);
  const int64_t rows = p.paged() && !p.appends() ? p.page_size : p.seq_kv;
  t.k = dense(2, rows, p.heads_kv, p.dim_qk);
  t.v = dense(3, rows, p.heads_kv, p.dim_v);
  t.o = dense(4, p.seq_q, p.heads_q, p.dim_v);
  t.lse = somewhere<float>(5);
  if (p.varlen) t.cu_seqlens_q = somewhere<int32_t>(6);
  if (p.kv_is_packed()) t.cu_seqlens_kv = somewhere<int32_t>(7);
  if (p.paged()) t.block_table = {somewhere<int32_t>(23), p.table_columns(), 1, 0};
  if (p.seqused) t.seqused_kv = somewhere<int32_t>(8);
  if (p.sink) t.sink = somewhere<float>(9);
  if (p.max_logit) t.max_logit = somewhere<float>(19);
  if (is_8_bit(p.dtype)) t.scale_q = dense(16, p.scale_blocks(p.seq_q), p.heads_q, 1);
  if (is_8_bit(p.dtype_kv)) t.scale_k = dense(17, p.scale_blocks(p.seq_kv), p.heads_kv, 1);
  if (is_8_bit(p.dtype_kv)) t.scale_v = dense(18, p.scale_blocks(p.seq_kv), p.heads_kv, 1);
  if (p.smooth) t.mean_k = dense(20, 1, p.heads_kv, p.dim_qk), t.mean_v = dense(21, 1, p.heads_kv, p.dim_v);
  if (p.alibi) t.alibi_slopes = dense(22, 1, p.heads_q, 1);
  if (p.gate) t.gate = dense(24, p.seq_q, p.heads_q, p.dim_v);
  if (!p.backward()) return t;
  t.grad_o = dense(10, p.seq_q, p.heads_q, p.dim_v);
  t.grad_q = dense(11, p.seq_q, p.heads_q, p.dim_qk);
  t.grad_k = dense(12, p.seq_kv, p.heads_kv, p.dim_qk);
  t.grad_v = dense(13, p.seq_kv, p.heads_kv, p.dim_v);
  t.grad_lse = somewhere<float>(14);
  if (p.sink) t.grad_sink = somewhere<float>(15);
  if (p.gate) t.grad_gate = dense(25, p.seq_q, p.heads_q, p.dim_v);
  return t;
}

}  // namespace froghopper::test
