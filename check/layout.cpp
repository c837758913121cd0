// SPDX-License-Identifier: Apache-2.0
// check: the layouts of tensors. Only the stride of dim is fixed (1); everything else is the user's.
#include "check/layout.hpp"

#include <algorithm>

namespace froghopper::check {

namespace {

constexpr const char* names[] = {
    "bshd",             // batch, row, head, column: dense
    "bhsd",             // the rows of a head lie together
    "padded",           // gaps after every head, row and sequence, multiples of 16 bytes
    "broadcast_batch",  // q, k and v of all sequences are one
    "broadcast_heads",  // k and v of all heads are one, and q of all heads
    "absurd",           // strides of extents of 1 are odd, or larger than any memory
    "odd",              // no address and no stride is aligned to more than one element: CPU only
    "unlike_v",         // k with gaps after rows and sequences that no stride of the dense v has
    "lse_by_row",       // dense, and lse has the heads of a row together
    "far",              // the second sequence, or head, lies more than 2^31 elements away
};

// More than 2^31 elements, and a multiple of 8 as TMA wants it.
constexpr int64_t far_stride = (int64_t{1} << 31) + 64;
// A stride that would overflow any address computation it took part in.
constexpr int64_t absurd_stride = (int64_t{1} << 61) + 3;

Layout dense(const View& x) { return {x.seq * x.heads * x.dim, x.heads * x.dim, x.dim, 0}; }

Layout with_gaps(const View& x, int64_t gap, int64_t offset) {
  const int64_t head = x.dim + gap, seq = x.heads * head + 2 * gap;
  return {x.seq * seq + 3 * gap, seq, head, offset};
}

}  // namespace

std::span<const char* const> all_layouts() { return names; }

// Of which each sequence has its own, also where sequences are packed.
bool is_of_sequences(View Views::*tensor) {
  return tensor == &Views::scale_q || tensor == &Views::scale_k || tensor == &Views::scale_v ||
         tensor == &Views::mean_k || tensor == &Views::mean_v || tensor == &Views::alibi_slopes ||
         tensor == &Views::block_table;
}

bool is_layout(const std::string& name) { return std::ranges::find(names, name) != std::end(names); }

bool shares_places(const std::string& name) { return name.starts_with("broadcast"); }

Layout lay_out(const std::string& name, View Views::*tensor, const View& x, bool packed, bool written) {
  Layout l = dense(x);
  if (name == "bhsd") l = {x.heads * x.seq * x.dim, x.dim, x.seq * x.dim, 0};
  const int64_t gap = size_of(x.element) == 1 ? 16 : 8;  // 16 bytes at least
  if (name == "padded") l = with_gaps(x, gap, gap);
  if (name == "unlike_v" && tensor == &Views::k)
    l = {x.seq * (l.stride_seq + gap) + 3 * gap, l.stride_seq + gap, x.dim, 0};
  if (name == "odd") l = with_gaps(x, 1, 1);
  if (name == "broadcast_batch" && !written) l.stride_batch = 0;
  if (name == "broadcast_heads" && !written) l.stride_head = 0;
  if (name == "absurd") {
    if (x.batch <= 1) l.stride_batch = absurd_stride;
    if (x.heads <= 1) l.stride_head = absurd_stride;
    if (x.seq <= 1) l.stride_seq = 2;
  }
  if (name == "far" && !is_of_sequences(tensor)) (x.batch > 1 ? l.stride_batch : l.stride_head) = far_stride;
  if (packed && !is_of_sequences(tensor)) l.stride_batch = absurd_stride;  // the interface says that it is ignored
  return l;
}

int64_t span_of(const View& x, const Layout& l) {
  if (x.batch * x.seq * x.heads == 0) return 0;
  const auto reach = [](int64_t extent, int64_t stride) { return extent > 1 ? (extent - 1) * stride : 0; };
  return reach(x.batch, l.stride_batch) + reach(x.seq, l.stride_seq) + reach(x.heads, l.stride_head) + x.dim;
}

}  // namespace froghopper::check
