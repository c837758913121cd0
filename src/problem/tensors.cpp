// SPDX-License-Identifier: Apache-2.0
// problem: the user's tensors -> Views, by the table; what may be wrong with them, one rule after the other.
#include "src/problem/tensors.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

#include "src/base/counted.hpp"
#include "src/base/sized.hpp"
#include "src/base/text.hpp"
#include "src/problem/options.hpp"
#include "src/problem/overlap.hpp"

namespace froghopper {
namespace {

// A rule returns what is wrong with a tensor, or nothing.
std::string wrong_presence(const Problem&, const Tensor&, Use, const fh_tensors& all);
std::string wrong_view(const Problem&, const Tensor&, Use, const View&);
std::string all_one_page(const Problem&, const Tensor&, const View&);
std::string rows_overlap(const Tensor&, const View&);
std::string all_one_row(const Tensor&, const View&);
std::string incomplete(const Views&, bool smooth);

// Every version of the struct has q, k, v and o.
constexpr size_t smallest_tensors = offsetof(fh_tensors, lse);

}  // namespace

Result<Views> bind(const Problem& p, const fh_tensors& user) {
  const auto whole = whole_struct(&user, fh_tensors_init(), smallest_tensors, FH_INVALID_TENSOR, "fh_tensors");
  if (!whole) return whole.failure();
  const auto wrong = [](std::string text) { return Failure{FH_INVALID_TENSOR, std::move(text)}; };

  Views views;
  for (const Tensor& tensor : tensors()) {
    const Use use = tensor.use(p);
    const fh_tensor given = tensor.field.get(*whole);
    std::string bad = wrong_presence(p, tensor, use, *whole);
    if (!bad.empty()) return wrong(std::move(bad));
    if (use == Use::absent) continue;
    View& view = views.*tensor.view = view_of(tensor, p, given);
    bad = wrong_view(p, tensor, use, view);
    if (bad.empty()) bad = all_one_page(p, tensor, view);
    if (bad.empty() && is_written(use) && view.data) bad = rows_overlap(tensor, view);
    if (bad.empty() && !has_strides(given)) bad = all_one_row(tensor, view);
    if (!bad.empty()) return wrong(std::move(bad));
  }
  if (p.seqused && p.batch > 0 && !views.seqused_q.data && !views.seqused_kv.data)
    return wrong(text("seqused_q and seqused_kv are NULL; a problem with seqused needs one of them. {}",
                      p.appends() ? "Set seqused_kv, the rows that the cache has before the new ones."
                                  : "Set seqused_kv, the rows of k and v that count, or seqused_q."));
  std::string bad = p.quantises() ? incomplete(views, p.smooth)
                    : p.appends() ? incomplete_append(p, views)
                                  : std::string();
  if (!bad.empty()) return wrong(std::move(bad));
  bad = shared_memory(p, views);
  if (!bad.empty()) return wrong(std::move(bad));
  return views;
}

namespace {

// Whether the pass in phases has the tensor, and this call of it does not.
bool waits_for_last_phase(const Problem& p, const Tensor& tensor) {
  Problem last = p;
  last.phase = FH_PHASE_LAST;
  return !p.ends() && tensor.use(last) != Use::absent;
}

// Options demand tensors, and a tensor without its option would be ignored in silence: both are refused. The strided
// ones must have memory where they have elements, see wrong_view.
std::string wrong_presence(const Problem& p, const Tensor& tensor, Use use, const fh_tensors& all) {
  const fh_tensor given = tensor.field.get(all);
  if (tensor.view == &Views::cu_seqlens_kv && p.paged() && !p.appends() && given.data)
    return text(
        "cu_seqlens_kv is set and page_size is {}; block_table says where the rows of a sequence are. Leave "
        "cu_seqlens_kv NULL, and give the lengths in seqused_kv.",
        p.page_size);
  if (tensor.view == &Views::cu_seqlens_kv && p.appends() && p.varlen && given.data)
    return "cu_seqlens_kv is set and op is FH_APPEND; cu_seqlens_q is of k and v too, and a cache is not packed. "
           "Leave cu_seqlens_kv NULL.";
  if (use == Use::absent && given.data && tensor.view == &Views::o && p.in_phases() && !all.o_sum.data)
    return "o is set and o_sum is NULL, but of calls in phases only the last one writes o; the others write o_sum, "
           "in "
           "f32. Set o_sum in all of them, and leave o NULL before the last.";
  if (use == Use::absent && given.data && waits_for_last_phase(p, tensor))
    return text("{0} is set, but of calls in phases only the last one writes {0}. Leave {0} NULL in the others.",
                tensor.name);
  if (use == Use::absent && given.data && tensor.view == &Views::o_sum && p.phase != FH_PHASE_NONE)
    return text("o_sum is set, but only forward calls of several are merged in it, and {}. Leave o_sum NULL.",
                p.backward() ? "op is FH_BACKWARD" : "phase is FH_PHASE_ONLY");
  if (use == Use::absent && given.data && tensor.view == &Views::o_sum && p.op == FH_FORWARD)
    return "o_sum is set, but phase is FH_PHASE_NONE, so it would be ignored. Leave o_sum NULL; or, of several "
           "calls, "
           "set phase to FH_PHASE_FIRST in the first one, to FH_PHASE_LAST in the last one, and to FH_PHASE_MIDDLE "
           "in "
           "those between.";
  if (use == Use::absent && given.data && !*tensor.option)
    return text("{0} is set, but op is {1}, which has no {0}. Leave {0} NULL.", tensor.name, name_of(p.op));
  if (use == Use::absent && given.data && tensor.view == &Views::block_table && p.paged())
    return "block_table is set, and slots too; slot_mapping says where rows go. Leave block_table NULL, or slots 0.";
  const auto of_append_alone = [&](const Option& option) {
    return std::string_view(option.name) == tensor.option && option.ops == of_append;
  };
  if (use == Use::absent && given.data && !p.appends() && std::ranges::any_of(options(), of_append_alone))
    return text("{0} is set, but op is {1}, which has no {0}. Set op to FH_APPEND, or leave {0} NULL.", tensor.name,
                name_of(p.op));
  if (use == Use::absent && given.data)
    return text(
        "{0} is set, but the problem has no {1}, so it would be ignored. Set {2} in the problem, or leave {0} NULL.",
        tensor.name, tensor.option, tensor.how);
  if (tensor.field.of_lse() && has_strides(given) && !given.data && (use == Use::absent || use == Use::may_write) &&
      !view_of(tensor, p, given).empty())
    return "lse has strides and is NULL; they would be ignored. Set lse, or its strides to 0.";
  if (is_demanded(use) && !tensor.field.strided() && !given.data && !view_of(tensor, p, given).empty())
    return text("{} is NULL; a problem with {} needs {}. Set it.", tensor.name,
                // lse is the one without an option
                *tensor.option  ? tensor.option
                : p.backward()  ? "a backward pass"
                : p.in_phases() ? "phase"
                                : "accumulate",
                tensor.holds);
  return {};
}

struct Axis {
  const char* name;
  int64_t extent, stride;
};

std::array<Axis, 3> axes_of(const View& view) {
  return {{{"batch", view.batch, view.stride_batch},
           {"seq", view.seq, view.stride_seq},
           {"head", view.heads, view.stride_head}}};
}

// Those of a tensor without gaps, as view_of() has them where no strides are given.
std::string dense_strides(const Tensor& tensor, const View& view) {
  const int64_t seq = tensor.field.strided() ? view.heads * view.dim : 1;
  const int64_t head = tensor.field.strided() ? view.dim : view.seq;
  return text("Without gaps the strides of batch, seq and head are {}, {} and {}.", view.seq * view.heads * view.dim,
              seq, head);
}

// As the user's struct calls it.
std::string stride_name(const Tensor& tensor, const Axis& axis) {
  return text("{}{}stride_{}", tensor.name, tensor.field.strided() ? "." : "_", axis.name);
}

// No memory has so many bytes, and sums of a few such numbers fit 64 bits (overlap.cpp).
constexpr int64_t bytes_most = std::numeric_limits<int64_t>::max() / 4;

std::string wrong_view(const Problem& p, const Tensor& tensor, Use use, const View& view) {
  if (view.empty() || (!(tensor.field.strided() && is_demanded(use)) && !view.data)) return {};
  const auto data = [&] { return tensor.field.strided() ? text("{}.data", tensor.name) : std::string(tensor.name); };
  const bool of_kv = tensor.view == &Views::k || tensor.view == &Views::v;
  if (!view.data && of_kv && p.paged() && !p.appends())
    return text(
        "{0}.data is NULL; attention to pages reads the pool from k and v, {0} as {1} pages x {2} rows x {3} heads x "
        "{4} columns. Point it to the pool.",
        tensor.name, view.batch, view.seq, view.heads, view.dim);
  if (!view.data)
    return text("{} is NULL; it has {} x {} x {} x {} elements. Point it to them.", data(), view.batch, view.seq,
                view.heads, view.dim);
  const int element_bytes = size_of(view.element);
  if (reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(element_bytes) != 0)
    return text("{} must be at a multiple of {} bytes, as its elements have so many, but is at address {}. Align it.",
                data(), element_bytes, fmt::ptr(view.data));

  int64_t end = view.dim * element_bytes;  // bytes from data to one past the last element
  for (const Axis& axis : axes_of(view)) {
    if (axis.stride < 0)
      return text("{} is {}; strides are not negative. Point {} to the first element and count up.",
                  stride_name(tensor, axis), axis.stride, data());
    int64_t step;
    if (__builtin_mul_overflow(axis.extent - 1, axis.stride, &step) ||
        __builtin_mul_overflow(step, element_bytes, &step) || __builtin_add_overflow(end, step, &end) ||
        end > bytes_most)
      return text("{} is {} with {}; that is past the end of memory. Strides count elements, not bytes. {}",
                  stride_name(tensor, axis), axis.stride, counted(axis.extent - 1, "step"),
                  dense_strides(tensor, view));
  }
  if (tensor.view == &Views::block_table && p.appends() && view.batch > 1 && view.stride_batch == 0)
    return text(
        "block_table.stride_batch is 0, but there are {0} sequences, whose new rows would go to the same pages. "
        "Without gaps stride_batch is {1} and stride_seq is 1.",
        view.batch, view.seq);
  if (tensor.view == &Views::block_table && view.seq > 1 && view.stride_seq == 0)
    return text(
        "block_table.stride_seq is 0, but there are {0} columns; all keys would be in one page. Without gaps "
        "stride_batch is {0} and stride_seq is 1.",
        view.seq);
  const bool is_rotary = tensor.view == &Views::rotary_cos || tensor.view == &Views::rotary_sin;
  if (is_rotary && view.seq > 1 && view.stride_seq < view.dim)
    return text(
        "{0}.stride_seq is {1}, but a row has {2} columns, so the rows of {3} positions would overlap. Without gaps "
        "it is {2}, rotary_dim / 2.",
        tensor.name, view.stride_seq, view.dim, view.seq);
  return {};
}

// Whether pages of the tensor are read, where others have a batch. Of what is written, rows_overlap() names the stride.
bool is_read_in_pages(const Problem& p, const Tensor& tensor) {
  if (!p.paged() || p.appends()) return false;
  if (tensor.view == &Views::scale_k || tensor.view == &Views::scale_v) return p.scale_tokens;
  return tensor.view == &Views::k || tensor.view == &Views::v;
}

// Rows and heads that are shared may have a stride of 0, but a pool whose pages are all the same one holds nothing.
// Where no stride is set, all_one_row() names them all, and one scale may be that of the pool.
std::string all_one_page(const Problem& p, const Tensor& tensor, const View& view) {
  if (!view.data || view.batch == 1 || view.stride_batch != 0 || !is_read_in_pages(p, tensor)) return {};
  const bool of_scales = view.dim == 1;
  if (of_scales ? view.stride_seq == 0 : (view.seq > 1 || view.heads > 1) && view.stride_seq + view.stride_head == 0)
    return {};
  return text(
      "{0}.stride_batch is 0, but is the stride of pages where page_size is set, and the pool has {1}, which would "
      "all be the same one. Without gaps it is {2}.",
      tensor.name, counted(view.batch, "page"), view.seq * view.heads * view.dim);
}

// Rows that are written must lie apart. Sorted by stride, each axis must step over all that the axes inside it span.
std::string rows_overlap(const Tensor& tensor, const View& view) {
  if (view.empty()) return {};
  auto axes = axes_of(view);
  // Of equal strides that of the outer axis is wrong, if heads lie within rows as usual.
  if (tensor.field.strided()) std::reverse(axes.begin(), axes.end());
  std::stable_sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  int64_t span = view.dim;  // elements from the first to one past the last of what lies inside
  for (const Axis& axis : axes) {
    if (axis.extent == 1) continue;
    if (axis.stride < span)
      return text("{} is {}, but {} within one step of it, so rows of {} would overlap. {}",
                  stride_name(tensor, axis), axis.stride,
                  span == 1 ? "1 element lies" : text("{} elements lie", span), tensor.name,
                  dense_strides(tensor, view));
    span += (axis.extent - 1) * axis.stride;
  }
  return {};
}

// What is read may have strides of 0, for a head or a prefix that is shared. Where all of them are 0 they were
// forgotten, also of the o that a backward problem reads: a gate of one row would be a constant factor of each column,
// means are of each sequence and head, and with one slope for all heads no head would need ALiBi. Not of grad_o: the
// gradient of a sum over all rows lies so. Not of scales, one of which may be that of the whole tensor. Who means one
// row for all heads of one query gives an axis of extent 1 another stride, which counts for nothing else.
std::string all_one_row(const Tensor& tensor, const View& view) {
  constexpr View Views::*rows[] = {&Views::q,    &Views::k,      &Views::v,      &Views::o,
                                   &Views::gate, &Views::mean_k, &Views::mean_v, &Views::alibi_slopes};
  if (!view.data || std::ranges::find(rows, tensor.view) == std::end(rows)) return {};
  const bool of_slopes = tensor.view == &Views::alibi_slopes;
  if (view.empty() || (of_slopes ? view.heads : view.batch * view.seq * view.heads) == 1) return {};
  return text("all strides of {} are 0, so its {} x {} x {} rows would be the same one. {}", tensor.name, view.batch,
              view.seq, view.heads,
              of_slopes ? "Where each head has a slope, the same in all sequences, they are 0, 0 and 1."
                        : dense_strides(tensor, view));
}

// Of a quantise problem: each of q, k and v with its copy, its scales and its mean, or without them; and not none of
// all.
std::string incomplete(const Views& v, bool smooth) {
  const struct {
    const char* name;
    const View &from, &to, &scale;
  } all[] = {{"q", v.q, v.quantised_q, v.scale_q},
             {"k", v.k, v.quantised_k, v.scale_k},
             {"v", v.v, v.quantised_v, v.scale_v}};
  bool any = false;
  for (const auto& [name, from, to, scale] : all) {
    any = any || from.data || from.empty();
    // Of rows of no sequence there are no scales, nor means.
    if (from.empty() || (!from.data == !to.data && (scale.empty() || !from.data == !scale.data))) continue;
    return text("{0} is {1}, quantised_{0} is {2} and scale_{0} is {3}; they go together. Set all three, or none.",
                name, from.data ? "set" : "NULL", to.data ? "set" : "NULL", scale.data ? "set" : "NULL");
  }
  const struct {
    const char* name;
    const View &from, &mean;
  } smoothed[] = {{"k", v.k, v.mean_k}, {"v", v.v, v.mean_v}};
  for (const auto& [name, from, mean] : smoothed) {
    if (!smooth || from.empty() || mean.empty() || !from.data == !mean.data) continue;
    return text("{0} is {1} and mean_{0} is {2}; with smooth they go together. Set both, or none.", name,
                from.data ? "set" : "NULL", mean.data ? "set" : "NULL");
  }
  return any ? ""
             : "q, k and v are NULL; there is nothing to quantise. Set one of them, with its copy and its scales.";
}

}  // namespace
}  // namespace froghopper
