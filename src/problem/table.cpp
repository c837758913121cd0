// SPDX-License-Identifier: Apache-2.0
// problem: the rows of the table of tensors.
#include <algorithm>
#include <array>

#include "src/problem/tensors.hpp"

namespace froghopper {
namespace {

// Packed sequences are one long sequence as far as memory goes.
Shape rows_of_q(const Problem& p, int64_t dim, Element element) {
  return {p.batches(), p.extent_q(), p.heads_q, dim, element};
}
Shape rows_of_kv(const Problem& p, int64_t dim, Element element) {
  return {p.batches_kv(), p.extent_kv(), p.heads_kv, dim, element};
}
Element of_gradients(const Problem& p) { return p.accumulate ? Element::f32 : element_of(p.dtype); }
Element of_grad_q(const Problem& p) { return p.phase == FH_PHASE_NONE ? of_gradients(p) : element_of(p.dtype); }
Shape shape_of_o(const Problem& p) { return rows_of_q(p, p.dim_v, element_of(p.dtype_o)); }
Shape shape_of_lse(const Problem& p) { return rows_of_q(p, 1, Element::f32); }
Shape list(int64_t count, Element element) { return {1, count, 1, 1, element}; }
// A scale for each block of rows of each sequence, also of packed ones.
Shape scales(const Problem& p, int64_t rows, int64_t heads) {
  return {p.batch, p.scale_blocks(rows), heads, 1, Element::f32};
}
Shape scales_of_v(const Problem& p) {
  if (p.scale_v_columns) return {p.batch, p.seq_kv > 0 ? 1 : 0, p.heads_kv, p.dim_v, Element::f32};
  return scales(p, p.seq_kv, p.heads_kv);
}
// A row for each sequence and key head, also of packed ones.
Shape means(const Problem& p, int64_t dim) { return {p.batch, 1, p.heads_kv, dim, Element::f32}; }
Shape one_a_head(const Problem& p) { return {1, 1, p.heads_q, 1, Element::f32}; }

// Of a quantise or an append problem, each of q, k and v may be left out; see tensors.cpp.
Use of_input(const Problem& p) { return p.quantises() || p.appends() ? Use::may_read : Use::read; }
Use where_quantised(const Problem& p) { return p.quantises() ? Use::may_write : Use::absent; }
Element of_kv(const Problem& p) { return element_of(p.quantises() ? p.dtype : p.dtype_kv); }
Element of_quantised(const Problem& p) { return element_of(p.dtype_kv); }
Use of_output(const Problem& p, Use forward) {
  if (p.quantises() || p.appends()) return Use::absent;
  return p.backward() ? Use::read : forward;
}
Use where_backward(const Problem& p) { return p.backward() ? Use::read : Use::absent; }
Use of_gradient(const Problem& p) {
  if (!p.backward()) return Use::absent;
  return p.accumulate ? Use::added_to : Use::written;
}
// What only the last call writes.
Use of_last_gradient(const Problem& p) {
  if (p.phase == FH_PHASE_NONE || !p.backward()) return of_gradient(p);
  return p.ends() ? Use::written : Use::absent;
}
// What the calls of a forward problem merge in.
Use where_merged(const Problem& p, Use of_one_call) {
  if (p.accumulate) return Use::added_to;
  if (!p.in_phases()) return of_one_call;
  return p.begins() ? Use::written : Use::added_to;
}
Use where_varlen(const Problem& p) { return p.varlen ? Use::read : Use::absent; }
Use where_kv_is_packed(const Problem& p) { return p.kv_is_packed() ? Use::read : Use::absent; }
Use where_paged(const Problem& p) { return p.paged() && !p.slots ? Use::read : Use::absent; }
Use where_8_bit(const Problem& p, Dtype t) {
  if (p.quantises()) return Use::may_write;
  if (p.appends()) return !is_8_bit(t) ? Use::absent : p.scale_tokens ? Use::may_write : Use::may_read;
  return is_8_bit(t) ? Use::read : Use::absent;
}
Use where_smooth(const Problem& p) {
  if (!p.smooth) return Use::absent;
  return p.quantises() ? Use::may_write : Use::read;
}
Use where_appending(const Problem& p, Use use) { return p.appends() ? use : Use::absent; }
// The keys and values that come in: with a cache they have the rows of q.
Shape rows_of_new_kv(const Problem& p, int64_t dim) {
  if (!p.appends()) return rows_of_kv(p, dim, of_kv(p));
  return {p.batches(), p.extent_q(), p.heads_kv, dim, element_of(p.dtype)};
}
Shape scales_of_kv(const Problem& p, const Shape& of_others) {
  if (p.scale_tokens) return rows_of_kv(p, 1, Element::f32);
  if (!p.appends()) return of_others;
  return {1, 1, p.heads_kv, 1, Element::f32};
}
Shape rotary(const Problem& p) { return {1, p.rotary_rows, 1, p.rotary_dim / 2, element_of(p.dtype_rotary)}; }
Use where_rotary(const Problem& p) { return p.rotary_dim > 0 ? Use::read : Use::absent; }
Shape weights(const Problem& p) { return {1, 1, 1, p.dim_qk, element_of(p.dtype_norm)}; }
Use where_norm(const Problem& p) { return p.norm ? Use::may_read : Use::absent; }
Shape list_of_rows(const Problem& p) { return {1, p.rows_q(), 1, 1, Element::i64}; }
Use where_seqused(const Problem& p) { return p.seqused ? Use::may_read : Use::absent; }

constexpr const char* first_rows = "the first row of each sequence and the end, batch + 1 values";
constexpr const char* row_scalars = "one value for each row and head";
constexpr const char* head_scalars = "one value for each query head";
constexpr const char* backward = "backward pass";
constexpr const char* set_backward = "op to FH_BACKWARD";
constexpr const char* scale_values = "what the stored values are multiplied by";
constexpr const char* means_of_rows = "mean of the rows of each sequence, which is subtracted before quantisation";
constexpr const char* quantise = "8-bit copies";
constexpr const char* set_quantise = "op to FH_QUANTISE";
constexpr const char* append = "new rows to append";
constexpr const char* set_append = "op to FH_APPEND";
constexpr const char* used_rows = "how many rows of each sequence count, batch values";

constexpr std::array table{
    Tensor{"q", "", "", "the queries", &Views::q, &fh_tensors::q,
           [](const Problem& p) { return rows_of_q(p, p.dim_qk, element_of(p.dtype)); }, of_input},
    Tensor{"k", "", "", "the keys", &Views::k, &fh_tensors::k,
           [](const Problem& p) { return rows_of_new_kv(p, p.dim_qk); }, of_input},
    Tensor{"v", "", "", "the values", &Views::v, &fh_tensors::v,
           [](const Problem& p) { return rows_of_new_kv(p, p.dim_v); }, of_input},
    Tensor{"o", "", "", "the output", &Views::o, &fh_tensors::o, shape_of_o,
           [](const Problem& p) {
             return of_output(p, p.accumulate ? Use::added_to : p.ends() ? Use::written : Use::absent);
           }},
    Tensor{"lse", "", "", row_scalars, &Views::lse, &fh_tensors::lse, shape_of_lse,
           [](const Problem& p) { return of_output(p, where_merged(p, Use::may_write)); }},
    Tensor{"cu_seqlens_q", "varlen", "varlen", first_rows, &Views::cu_seqlens_q, &fh_tensors::cu_seqlens_q,
           [](const Problem& p) { return list(p.batch + 1, Element::i32); }, where_varlen},
    Tensor{"cu_seqlens_kv", "varlen", "varlen", first_rows, &Views::cu_seqlens_kv, &fh_tensors::cu_seqlens_kv,
           [](const Problem& p) { return list(p.batch + 1, Element::i32); }, where_kv_is_packed},
    Tensor{"seqused_q", "seqused", "seqused", used_rows, &Views::seqused_q, &fh_tensors::seqused_q,
           [](const Problem& p) { return list(p.batch, Element::i32); }, where_seqused},
    Tensor{"seqused_kv", "seqused", "seqused", used_rows, &Views::seqused_kv, &fh_tensors::seqused_kv,
           [](const Problem& p) { return list(p.batch, Element::i32); }, where_seqused},
    Tensor{"sink", "sink", "sink", head_scalars, &Views::sink, &fh_tensors::sink, one_a_head,
           [](const Problem& p) { return p.sink ? Use::read : Use::absent; }},
    Tensor{"grad_o", backward, set_backward, "the gradient of o", &Views::grad_o, &fh_tensors::grad_o, shape_of_o,
           where_backward},
    Tensor{"grad_q", backward, set_backward, "the gradient of q", &Views::grad_q, &fh_tensors::grad_q,
           [](const Problem& p) { return rows_of_q(p, p.dim_qk, of_grad_q(p)); }, of_last_gradient},
    Tensor{"grad_k", backward, set_backward, "the gradient of k", &Views::grad_k, &fh_tensors::grad_k,
           [](const Problem& p) { return rows_of_kv(p, p.dim_qk, of_gradients(p)); }, of_gradient},
    Tensor{"grad_v", backward, set_backward, "the gradient of v", &Views::grad_v, &fh_tensors::grad_v,
           [](const Problem& p) { return rows_of_kv(p, p.dim_v, of_gradients(p)); }, of_gradient},
    Tensor{"grad_lse", backward, set_backward, row_scalars, &Views::grad_lse, &fh_tensors::grad_lse, shape_of_lse,
           [](const Problem& p) { return p.backward() ? Use::may_read : Use::absent; }},
    Tensor{"grad_sink", "sink in a backward pass", "op to FH_BACKWARD and sink", head_scalars, &Views::grad_sink,
           &fh_tensors::grad_sink, one_a_head,
           [](const Problem& p) { return p.sink ? of_last_gradient(p) : Use::absent; }},
    Tensor{"scale_q", "8-bit q", "dtype to FH_E4M3 or FH_E5M2", scale_values, &Views::scale_q, &fh_tensors::scale_q,
           [](const Problem& p) { return scales(p, p.seq_q, p.heads_q); },
           [](const Problem& p) { return where_8_bit(p, p.dtype); }},
    Tensor{"scale_k", "8-bit k", "dtype_kv to FH_E4M3 or FH_E5M2", scale_values, &Views::scale_k,
           &fh_tensors::scale_k, [](const Problem& p) { return scales_of_kv(p, scales(p, p.seq_kv, p.heads_kv)); },
           [](const Problem& p) { return where_8_bit(p, p.dtype_kv); }},
    Tensor{"scale_v", "8-bit v", "dtype_kv to FH_E4M3 or FH_E5M2", scale_values, &Views::scale_v,
           &fh_tensors::scale_v, [](const Problem& p) { return scales_of_kv(p, scales_of_v(p)); },
           [](const Problem& p) { return where_8_bit(p, p.dtype_kv); }},
    Tensor{"quantised_q", quantise, set_quantise, "8-bit q", &Views::quantised_q, &fh_tensors::quantised_q,
           [](const Problem& p) { return rows_of_q(p, p.dim_qk, of_quantised(p)); }, where_quantised},
    Tensor{"quantised_k", quantise, set_quantise, "8-bit k", &Views::quantised_k, &fh_tensors::quantised_k,
           [](const Problem& p) { return rows_of_kv(p, p.dim_qk, of_quantised(p)); }, where_quantised},
    Tensor{"quantised_v", quantise, set_quantise, "8-bit v", &Views::quantised_v, &fh_tensors::quantised_v,
           [](const Problem& p) { return rows_of_kv(p, p.dim_v, of_quantised(p)); }, where_quantised},
    Tensor{"mean_k", "smooth", "smooth", means_of_rows, &Views::mean_k, &fh_tensors::mean_k,
           [](const Problem& p) { return means(p, p.dim_qk); }, where_smooth},
    Tensor{"mean_v", "smooth", "smooth", means_of_rows, &Views::mean_v, &fh_tensors::mean_v,
           [](const Problem& p) { return means(p, p.dim_v); }, where_smooth},
    Tensor{"alibi_slopes", "alibi", "alibi", head_scalars, &Views::alibi_slopes, &fh_tensors::alibi_slopes,
           [](const Problem& p) {
             return Shape{p.batch, 1, p.heads_q, 1, Element::f32};
           },
           [](const Problem& p) { return p.alibi ? Use::read : Use::absent; }},
    Tensor{"max_logit", "max_logit", "max_logit", "one value for each sequence and query head", &Views::max_logit,
           &fh_tensors::max_logit,
           [](const Problem& p) {
             return Shape{p.batch, 1, p.heads_q, 1, Element::f32};
           },
           [](const Problem& p) {
             if (!p.max_logit) return Use::absent;
             return where_merged(p, Use::written);
           }},
    Tensor{"block_table", "page_size", "page_size and pages", "the pages of each sequence", &Views::block_table,
           &fh_tensors::block_table,
           [](const Problem& p) {
             return Shape{p.batch, p.table_columns(), 1, 1, Element::i32};
           },
           where_paged},
    Tensor{"cache_k", append, set_append, "the keys of all rows", &Views::cache_k, &fh_tensors::cache_k,
           [](const Problem& p) { return rows_of_kv(p, p.dim_qk, element_of(p.dtype_kv)); },
           [](const Problem& p) { return where_appending(p, Use::may_write); }},
    Tensor{"cache_v", append, set_append, "the values of all rows", &Views::cache_v, &fh_tensors::cache_v,
           [](const Problem& p) { return rows_of_kv(p, p.dim_v, element_of(p.dtype_kv)); },
           [](const Problem& p) { return where_appending(p, Use::may_write); }},
    Tensor{"q_out", append, set_append, "q, normed and rotated", &Views::q_out, &fh_tensors::q_out,
           [](const Problem& p) { return rows_of_q(p, p.dim_qk, element_of(p.dtype)); },
           [](const Problem& p) { return where_appending(p, Use::may_write); }},
    Tensor{"slot_mapping", "slots", "slots", "where each row goes", &Views::slot_mapping, &fh_tensors::slot_mapping,
           list_of_rows, [](const Problem& p) { return p.slots ? Use::read : Use::absent; }},
    Tensor{"positions", "positions", "positions", "where each row is in its sequence", &Views::positions,
           &fh_tensors::positions, list_of_rows,
           [](const Problem& p) { return p.positions ? Use::read : Use::absent; }},
    Tensor{"rotary_cos", "rotary_dim", "rotary_dim and rotary_rows", "the cosines of each position",
           &Views::rotary_cos, &fh_tensors::rotary_cos, rotary, where_rotary},
    Tensor{"rotary_sin", "rotary_dim", "rotary_dim and rotary_rows", "the sines of each position", &Views::rotary_sin,
           &fh_tensors::rotary_sin, rotary, where_rotary},
    Tensor{"norm_q", "norm", "norm", "a weight for each column of q", &Views::norm_q, &fh_tensors::norm_q, weights,
           where_norm},
    Tensor{"norm_k", "norm", "norm", "a weight for each column of k", &Views::norm_k, &fh_tensors::norm_k, weights,
           where_norm},
    Tensor{"gate", "gate", "gate", "what o is multiplied by the sigmoid of", &Views::gate, &fh_tensors::gate,
           shape_of_o, [](const Problem& p) { return p.gate ? Use::read : Use::absent; }},
    Tensor{"grad_gate", "gate in a backward pass", "op to FH_BACKWARD and gate", "the gradient of gate",
           &Views::grad_gate, &fh_tensors::grad_gate, shape_of_o,
           [](const Problem& p) { return p.gate ? of_gradient(p) : Use::absent; }},
    Tensor{"o_sum", "phase", "phase to FH_PHASE_FIRST, and to FH_PHASE_LAST in the last call",
           "the output so far, in f32", &Views::o_sum, &fh_tensors::o_sum,
           [](const Problem& p) { return rows_of_q(p, p.dim_v, Element::f32); },
           [](const Problem& p) {
             return p.merges_lse() && !p.accumulate ? where_merged(p, Use::absent) : Use::absent;
           }},
};
static_assert(sizeof(Views) == std::tuple_size_v<decltype(table)> * sizeof(View), "a row for every view");

template <class T>
fh_tensor as_tensor(T* values) {
  return {const_cast<void*>(static_cast<const void*>(values)), 0, 0, 0};
}
fh_tensor as_tensor(const fh_tensor& tensor) { return tensor; }

template <class T>
void put(T*& values, const fh_tensor& from) {
  values = static_cast<T*>(from.data);
}
void put(fh_tensor& tensor, const fh_tensor& from) { tensor = from; }

}  // namespace

std::span<const Tensor> tensors() { return table; }

size_t index_of(View Views::*view) {
  return static_cast<size_t>(std::ranges::find(table, view, &Tensor::view) - table.begin());
}

bool UserField::of_lse() const {
  auto* const member = std::get_if<float * fh_tensors::*>(&member_);
  return member && *member == &fh_tensors::lse;
}

fh_tensor UserField::get(const fh_tensors& user) const {
  if (of_lse()) return {user.lse, user.lse_stride_batch, user.lse_stride_seq, user.lse_stride_head};
  return std::visit([&](auto member) { return as_tensor(user.*member); }, member_);
}

void UserField::set(fh_tensors& user, const fh_tensor& tensor) const {
  std::visit([&](auto member) { put(user.*member, tensor); }, member_);
  if (!of_lse()) return;
  user.lse_stride_batch = tensor.stride_batch;
  user.lse_stride_seq = tensor.stride_seq, user.lse_stride_head = tensor.stride_head;
}

bool has_strides(const fh_tensor& user) {
  return user.stride_batch != 0 || user.stride_seq != 0 || user.stride_head != 0;
}

View view_of(const Tensor& tensor, const Problem& p, const fh_tensor& user) {
  const Shape shape = tensor.shape(p);
  View view{.data = user.data,
            .element = shape.element,
            .batch = shape.batch,
            .seq = shape.seq,
            .heads = shape.heads,
            .dim = shape.dim};
  if (view.empty()) view.data = nullptr;
  const bool own = tensor.field.strided() || has_strides(user);
  // The stride of an extent of 1 is never used; frameworks leave anything there.
  if (view.batch > 1) view.stride_batch = own ? user.stride_batch : view.heads * view.seq;
  if (view.seq > 1) view.stride_seq = own ? user.stride_seq : 1;
  if (view.heads > 1) view.stride_head = own ? user.stride_head : view.seq;
  return view;
}

}  // namespace froghopper
