// SPDX-License-Identifier: Apache-2.0
// xla: the arrays of a call: which field of fh_tensors each is, its shape and its type in a problem, and how it lies.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include <froghopper/froghopper.h>
#include <xla/ffi/api/c_api.h>

namespace froghopper::xla {

inline std::string joined(std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) text += part;
  return text;
}

struct Shape {
  int64_t rank = 0;
  std::array<int64_t, 4> extents{};

  bool operator==(const Shape&) const = default;
  std::string text() const {
    std::string line;
    for (size_t i = 0; i < std::min<size_t>(static_cast<size_t>(rank), 4); i++)
      line += joined({i ? ", " : "", std::to_string(extents[i])});
    return joined({"[", line, "]"});
  }
};

// What an array is for decides its shape.
enum class Role {
  q,
  k,
  v,
  o,
  slopes,
  scale_q,
  scale_k,
  scale_v,
  mean_k,
  mean_v,
  block_table,
  quantised_q,
  quantised_k,
  quantised_v,
  cache_k,
  cache_v,
  rotary,
  norm,  // the last with strides
  row_numbers,
  lse,
  ends,
  used,
  sink,
  max_logit
};

// Scales that sequences, or blocks of their rows, share.
inline Shape scales_of_blocks(const fh_problem& p, int64_t rows, int64_t heads) {
  return {3, {p.batch, p.scale_rows ? (rows + p.scale_rows - 1) / p.scale_rows : 1, heads}};
}

// K or V of an append problem: pages, or rows of each sequence.
inline Shape cache_of(const fh_problem& p, int64_t dim) {
  return p.page_size ? Shape{4, {p.pages, p.page_size, p.heads_kv, dim}}
                     : Shape{4, {p.batch, p.seq_kv, p.heads_kv, dim}};
}

inline Shape scales_of_keys(const fh_problem& p) {
  if (p.op == FH_APPEND) {  // of each row and head of the cache, or of each head
    const auto [pages, rows, heads, none] = cache_of(p, 0).extents;
    return p.scale_tokens ? Shape{3, {pages, rows, heads}} : Shape{1, {heads}};
  }
  if (!p.scale_tokens) return scales_of_blocks(p, p.seq_kv, p.heads_kv);
  if (p.page_size) return {3, {p.pages, p.page_size, p.heads_kv}};
  return p.varlen ? Shape{2, {p.total_kv, p.heads_kv}} : Shape{3, {p.batch, p.seq_kv, p.heads_kv}};
}

inline Shape shape_of(Role role, const fh_problem& p) {
  const int64_t dim_v = p.dim_v ? p.dim_v : p.dim_qk;
  const auto rows = [&](int64_t seq, int64_t total, int64_t heads, int64_t dim) {
    return p.varlen ? Shape{3, {total, heads, dim}} : Shape{4, {p.batch, seq, heads, dim}};
  };
  const auto rows_of_kv = [&](int64_t dim) {
    if (p.op == FH_APPEND) return rows(p.seq_q, p.total_q, p.heads_kv, dim);
    return p.page_size ? Shape{4, {p.pages, p.page_size, p.heads_kv, dim}}
                       : rows(p.seq_kv, p.total_kv, p.heads_kv, dim);
  };
  switch (role) {
    case Role::q:
    case Role::quantised_q: return rows(p.seq_q, p.total_q, p.heads_q, p.dim_qk);
    case Role::k:
    case Role::quantised_k: return rows_of_kv(p.dim_qk);
    case Role::v:
    case Role::quantised_v: return rows_of_kv(dim_v);
    case Role::block_table: return {2, {p.batch, p.page_size ? (p.seq_kv + p.page_size - 1) / p.page_size : 0}};
    case Role::o: return rows(p.seq_q, p.total_q, p.heads_q, dim_v);
    case Role::slopes: return {2, {p.batch, p.heads_q}};
    case Role::scale_q: return scales_of_blocks(p, p.seq_q, p.heads_q);
    case Role::scale_k: return scales_of_keys(p);
    case Role::scale_v: return p.scale_v_columns ? Shape{3, {p.batch, p.heads_kv, dim_v}} : scales_of_keys(p);
    case Role::mean_k: return {3, {p.batch, p.heads_kv, p.dim_qk}};
    case Role::mean_v: return {3, {p.batch, p.heads_kv, dim_v}};
    case Role::cache_k: return cache_of(p, p.dim_qk);
    case Role::cache_v: return cache_of(p, dim_v);
    case Role::rotary: return {2, {p.rotary_rows, p.rotary_dim / 2}};
    case Role::norm: return {1, {p.dim_qk}};
    case Role::row_numbers: return p.varlen ? Shape{2, {p.total_q, 2}} : Shape{3, {p.batch, p.seq_q, 2}};
    case Role::lse: return p.varlen ? Shape{2, {p.heads_q, p.total_q}} : Shape{3, {p.batch, p.heads_q, p.seq_q}};
    case Role::ends: return {1, {p.batch + 1}};
    case Role::used: return {1, {p.batch}};
    case Role::sink: return {1, {p.heads_q}};
    case Role::max_logit: return {2, {p.batch, p.heads_q}};
  }
  return {};
}

// Whether an array has the shape that its role asks for. A block table may have more columns than sequences need.
inline bool fits(Role role, const Shape& shape, const Shape& wanted) {
  if (role != Role::block_table) return shape == wanted;
  return shape.rank == 2 && shape.extents[0] == wanted.extents[0] && shape.extents[1] >= wanted.extents[1];
}

inline bool has_8_bits(fh_dtype type) { return type == FH_E4M3 || type == FH_E5M2; }

inline fh_dtype type_of_o(const fh_problem& p) {
  if (p.dtype_o != FH_USUAL) return p.dtype_o;
  if (p.op == FH_FORWARD && p.accumulate) return FH_F32;
  return has_8_bits(p.dtype) ? FH_BF16 : p.dtype;
}

inline XLA_FFI_DataType in_xla(fh_dtype type) {
  switch (type) {
    case FH_F16: return XLA_FFI_DataType_F16;
    case FH_BF16: return XLA_FFI_DataType_BF16;
    case FH_E4M3: return XLA_FFI_DataType_F8E4M3FN;
    case FH_E5M2: return XLA_FFI_DataType_F8E5M2;
    default: return XLA_FFI_DataType_F32;
  }
}

inline fh_dtype type_or(fh_dtype type, const fh_problem& p) { return type == FH_USUAL ? p.dtype : type; }

// Numbers of 64 bits are pairs of 32, the lower half first, as JAX has none unless it is told so.
inline XLA_FFI_DataType type_of(Role role, const fh_problem& p) {
  if (role >= Role::quantised_q && role <= Role::quantised_v) return in_xla(p.dtype_kv);
  switch (role) {
    case Role::q: return in_xla(p.dtype);
    case Role::k:
    case Role::v: return in_xla(p.op == FH_QUANTISE || p.op == FH_APPEND ? p.dtype : type_or(p.dtype_kv, p));
    case Role::cache_k:
    case Role::cache_v: return in_xla(type_or(p.dtype_kv, p));
    case Role::rotary: return in_xla(type_or(p.dtype_rotary, p));
    case Role::norm: return in_xla(type_or(p.dtype_norm, p));
    case Role::o: return in_xla(type_of_o(p));
    case Role::ends:
    case Role::used:
    case Role::row_numbers:
    case Role::block_table: return XLA_FFI_DataType_S32;
    default: return XLA_FFI_DataType_F32;
  }
}

inline size_t bytes_of(XLA_FFI_DataType type) {
  switch (type) {
    case XLA_FFI_DataType_F16:
    case XLA_FFI_DataType_BF16: return 2;
    case XLA_FFI_DataType_F8E4M3FN:
    case XLA_FFI_DataType_F8E5M2: return 1;
    default: return 4;
  }
}

inline bool has_strides(Role role) { return role <= Role::norm; }

// Of a dense array. What several rows share has no stride of rows.
inline fh_tensor tensor_of(Role role, const fh_problem& p, void* data, const Shape& shape) {
  const auto [first, second, third, fourth] = shape.extents;
  switch (role) {
    case Role::slopes: return {data, second, 0, 1};
    case Role::block_table: return {data, second, 1, 0};
    case Role::rotary: return {data, 0, second, 0};
    case Role::norm: return {data, 0, 0, 0};
    case Role::mean_k:
    case Role::mean_v: return {data, second * third, 0, third};
    case Role::scale_v:
      if (p.scale_v_columns) return {data, second * third, 0, third};
      [[fallthrough]];
    case Role::scale_q:
    case Role::scale_k:
      if (shape.rank == 1) return {data, 0, 0, 1};
      return shape.rank == 2 ? fh_tensor{data, 0, second, 1} : fh_tensor{data, second * third, third, 1};
    default:
      return shape.rank == 3 ? fh_tensor{data, 0, second * third, third}
                             : fh_tensor{data, second * third * fourth, third * fourth, fourth};
  }
}

struct Field {
  std::string_view name;
  Role role;
  size_t offset;  // in fh_tensors, of an fh_tensor or of a pointer
};

inline constexpr Field fields[] = {
    {"q", Role::q, offsetof(fh_tensors, q)},
    {"k", Role::k, offsetof(fh_tensors, k)},
    {"v", Role::v, offsetof(fh_tensors, v)},
    {"o", Role::o, offsetof(fh_tensors, o)},
    {"lse", Role::lse, offsetof(fh_tensors, lse)},
    {"cu_seqlens_q", Role::ends, offsetof(fh_tensors, cu_seqlens_q)},
    {"cu_seqlens_kv", Role::ends, offsetof(fh_tensors, cu_seqlens_kv)},
    {"seqused_q", Role::used, offsetof(fh_tensors, seqused_q)},
    {"seqused_kv", Role::used, offsetof(fh_tensors, seqused_kv)},
    {"sink", Role::sink, offsetof(fh_tensors, sink)},
    {"grad_o", Role::o, offsetof(fh_tensors, grad_o)},
    {"grad_q", Role::q, offsetof(fh_tensors, grad_q)},
    {"grad_k", Role::k, offsetof(fh_tensors, grad_k)},
    {"grad_v", Role::v, offsetof(fh_tensors, grad_v)},
    {"grad_lse", Role::lse, offsetof(fh_tensors, grad_lse)},
    {"grad_sink", Role::sink, offsetof(fh_tensors, grad_sink)},
    {"alibi_slopes", Role::slopes, offsetof(fh_tensors, alibi_slopes)},
    {"max_logit", Role::max_logit, offsetof(fh_tensors, max_logit)},
    {"gate", Role::o, offsetof(fh_tensors, gate)},
    {"grad_gate", Role::o, offsetof(fh_tensors, grad_gate)},
    {"scale_q", Role::scale_q, offsetof(fh_tensors, scale_q)},
    {"scale_k", Role::scale_k, offsetof(fh_tensors, scale_k)},
    {"scale_v", Role::scale_v, offsetof(fh_tensors, scale_v)},
    {"mean_k", Role::mean_k, offsetof(fh_tensors, mean_k)},
    {"mean_v", Role::mean_v, offsetof(fh_tensors, mean_v)},
    {"block_table", Role::block_table, offsetof(fh_tensors, block_table)},
    {"quantised_q", Role::quantised_q, offsetof(fh_tensors, quantised_q)},
    {"quantised_k", Role::quantised_k, offsetof(fh_tensors, quantised_k)},
    {"quantised_v", Role::quantised_v, offsetof(fh_tensors, quantised_v)},
    {"cache_k", Role::cache_k, offsetof(fh_tensors, cache_k)},
    {"cache_v", Role::cache_v, offsetof(fh_tensors, cache_v)},
    {"q_out", Role::q, offsetof(fh_tensors, q_out)},
    {"rotary_cos", Role::rotary, offsetof(fh_tensors, rotary_cos)},
    {"rotary_sin", Role::rotary, offsetof(fh_tensors, rotary_sin)},
    {"norm_q", Role::norm, offsetof(fh_tensors, norm_q)},
    {"norm_k", Role::norm, offsetof(fh_tensors, norm_k)},
    {"slot_mapping", Role::row_numbers, offsetof(fh_tensors, slot_mapping)},
    {"positions", Role::row_numbers, offsetof(fh_tensors, positions)},
};

}  // namespace froghopper::xla
