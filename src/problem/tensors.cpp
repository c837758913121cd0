// SPDX-License-Identifier: Apache-2.0
// problem: the user's tensors -> Views. Nothing behind a pointer is read here: it may be memory of a GPU.
#include "src/problem/tensors.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

#include "src/base/text.hpp"
#include "src/problem/sized.hpp"

namespace froghopper {
namespace {

// A rule returns what is wrong with the tensors, or nothing.
std::string wrong_pieces(const Problem&, const fh_tensors&);
bool misaligned(const void* address, size_t alignment);
std::string wrong_address(const std::string& name, const void* address, size_t alignment);
std::string wrong_view(const char* name, const View&, int element_bytes);
std::string rows_overlap(const char* name, const View&);
std::string written_twice(const Views&);
View view_of(const fh_tensor&, int64_t batch, int64_t seq, int64_t heads, int64_t dim);

// Every version of the struct has q, k, v and o.
constexpr size_t smallest_tensors = offsetof(fh_tensors, lse);

}  // namespace

Result<Views> bind(const Problem& p, const fh_tensors& user) {
  auto whole = whole_struct(&user, fh_tensors_init(), smallest_tensors, FH_INVALID_TENSOR, "fh_tensors");
  if (!whole) return whole.failure();
  const fh_tensors& t = *whole;
  const auto wrong = [](std::string text) { return Failure{FH_INVALID_TENSOR, std::move(text)}; };

  std::string bad = wrong_pieces(p, t);
  if (!bad.empty()) return wrong(std::move(bad));

  // Packed sequences are one long sequence as far as memory goes.
  const int64_t batch = p.varlen ? 1 : p.batch;
  const int64_t seq_q = p.varlen ? p.total_q : p.seq_q, seq_kv = p.varlen ? p.total_kv : p.seq_kv;
  Views views;
  views.q = view_of(t.q, batch, seq_q, p.heads_q, p.dim_qk);
  views.k = view_of(t.k, batch, seq_kv, p.heads_kv, p.dim_qk);
  views.v = view_of(t.v, batch, seq_kv, p.heads_kv, p.dim_v);
  views.o = view_of(t.o, batch, seq_q, p.heads_q, p.dim_v);
  views.lse = p.rows_q() > 0 ? t.lse : nullptr;
  views.lse_stride_batch = batch > 1 ? p.heads_q * seq_q : 0;
  views.lse_stride_head = seq_q;
  views.cu_seqlens_q = t.cu_seqlens_q, views.cu_seqlens_kv = t.cu_seqlens_kv;
  views.seqused_q = t.seqused_q, views.seqused_kv = t.seqused_kv;
  views.sink = t.sink;

  const std::pair<const char*, const View&> named[] = {
      {"q", views.q}, {"k", views.k}, {"v", views.v}, {"o", views.o}};
  for (const auto& [name, view] : named) {
    bad = wrong_view(name, view, size_of(p.dtype));
    if (!bad.empty()) return wrong(std::move(bad));
  }
  bad = rows_overlap("o", views.o);
  if (bad.empty()) bad = written_twice(views);
  if (!bad.empty()) return wrong(std::move(bad));
  return views;
}

namespace {

// Options demand pieces, and a piece without its option would be ignored in silence: both are refused.
std::string wrong_pieces(const Problem& p, const fh_tensors& t) {
  const struct {
    const char* name;
    const int32_t* data;
  } cu_seqlens[] = {{"cu_seqlens_q", t.cu_seqlens_q}, {"cu_seqlens_kv", t.cu_seqlens_kv}};
  for (const auto& cu : cu_seqlens) {
    if (p.varlen && !cu.data)
      return text("{} is NULL; varlen needs the first row of each sequence, batch + 1 numbers. Set it.", cu.name);
    if (!p.varlen && cu.data)
      return text("{} is set, but the problem is not varlen, so it would be ignored. Set varlen or leave it NULL.",
                  cu.name);
  }
  if (p.seqused && p.batch > 0 && !t.seqused_q && !t.seqused_kv)
    return "seqused_q and seqused_kv are NULL; a problem with seqused needs one of them. Set one.";
  if (!p.seqused && t.seqused_q)
    return "seqused_q is set, but the problem has no seqused, so it would be ignored. Set seqused or leave it NULL.";
  if (!p.seqused && t.seqused_kv)
    return "seqused_kv is set, but the problem has no seqused, so it would be ignored. Set seqused or leave it NULL.";
  if (p.sink && !t.sink) return "sink is NULL; a problem with a sink needs one float for each query head. Set it.";
  if (!p.sink && t.sink)
    return "sink is set, but the problem has no sink, so it would be ignored. Set sink in the problem or leave it "
           "NULL.";

  const std::pair<const char*, const void*> words[] = {{"lse", t.lse},
                                                       {"cu_seqlens_q", t.cu_seqlens_q},
                                                       {"cu_seqlens_kv", t.cu_seqlens_kv},
                                                       {"seqused_q", t.seqused_q},
                                                       {"seqused_kv", t.seqused_kv},
                                                       {"sink", t.sink}};
  for (const auto& [name, address] : words)
    if (misaligned(address, 4)) return wrong_address(name, address, 4);
  return {};
}

bool misaligned(const void* address, size_t alignment) {
  return reinterpret_cast<uintptr_t>(address) % alignment != 0;
}

std::string wrong_address(const std::string& name, const void* address, size_t alignment) {
  return text("{} is at address {}; its elements have {} bytes and lie at multiples of that. Align it.", name,
              fmt::ptr(address), alignment);
}

View view_of(const fh_tensor& t, int64_t batch, int64_t seq, int64_t heads, int64_t dim) {
  return {.data = t.data,
          .batch = batch,
          .seq = seq,
          .heads = heads,
          .dim = dim,
          // The stride of an extent of 1 is never used; frameworks leave anything there.
          .stride_batch = batch > 1 ? t.stride_batch : 0,
          .stride_seq = seq > 1 ? t.stride_seq : 0,
          .stride_head = heads > 1 ? t.stride_head : 0};
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

bool empty(const View& view) { return view.batch == 0 || view.seq == 0; }

std::string wrong_view(const char* name, const View& view, int element_bytes) {
  if (empty(view)) return {};
  if (!view.data)
    return text("{}.data is NULL; it has {} x {} x {} x {} elements. Point it to them.", name, view.batch, view.seq,
                view.heads, view.dim);
  const auto size = static_cast<size_t>(element_bytes);
  if (misaligned(view.data, size)) return wrong_address(text("{}.data", name), view.data, size);

  int64_t end = view.dim * element_bytes;  // bytes from data to behind the last element
  for (const Axis& axis : axes_of(view)) {
    if (axis.stride < 0)
      return text("{}.stride_{} is {}; strides are not negative. Point data to the first element and count up.", name,
                  axis.name, axis.stride);
    int64_t step;
    if (__builtin_mul_overflow(axis.extent - 1, axis.stride, &step) ||
        __builtin_mul_overflow(step, element_bytes, &step) || __builtin_add_overflow(end, step, &end))
      return text("{}.stride_{} is {} with {} steps; that is past the end of memory. Strides count elements.", name,
                  axis.name, axis.stride, axis.extent - 1);
  }
  return {};
}

// Rows that are written must lie apart. Sorted by stride, each axis must step over all that the axes inside it span.
std::string rows_overlap(const char* name, const View& view) {
  if (empty(view)) return {};
  auto axes = axes_of(view);
  std::stable_sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  int64_t span = view.dim;  // elements from the first to behind the last of what lies inside
  for (const Axis& axis : axes) {
    if (axis.extent == 1) continue;
    if (axis.stride < span)
      return text(
          "{0}.stride_{1} is {2}; what one step of it holds spans {3} elements, so rows of {0} would overlap. "
          "Use at least {3}.",
          name, axis.name, axis.stride, span);
    span += (axis.extent - 1) * axis.stride;
  }
  return {};
}

// Only what can be told from addresses alone: slices of one buffer may lie between each other and yet be apart.
std::string written_twice(const Views& views) {
  if (empty(views.o)) return {};
  const std::pair<const char*, const View&> inputs[] = {{"q", views.q}, {"k", views.k}, {"v", views.v}};
  for (const auto& [name, view] : inputs) {
    if (empty(view)) continue;
    if (view.data == views.o.data)
      return text("o and {} are at the same address {}; o is written while {} is still read. Give o its own memory.",
                  name, fmt::ptr(view.data), name);
    if (view.data == views.lse)
      return text(
          "lse and {} are at the same address {}; lse is written while {} is still read. Give lse its own "
          "memory.",
          name, fmt::ptr(view.data), name);
  }
  if (views.o.data == views.lse)
    return text("lse and o are at the same address {}; both are written. Give lse its own memory.",
                fmt::ptr(views.o.data));
  return {};
}

}  // namespace
}  // namespace froghopper
