// SPDX-License-Identifier: Apache-2.0
// check: which tensors a case has, and memory for each of them.
#include "check/blocks.hpp"

#include "check/layout.hpp"

namespace froghopper::check {

namespace {

// A tensor may be left out: lengths of one side where the case says only those of the other, and grad_lse.
bool is_there(const Case& c, const Tensor& tensor) {
  const bool one_side = c.used_q.empty() != c.used_kv.empty();
  if (tensor.view == &Views::seqused_q && one_side && c.used_q.empty()) return false;
  if (tensor.view == &Views::seqused_kv && one_side && c.used_kv.empty()) return false;
  if (tensor.view == &Views::grad_lse && !c.grad_lse) return false;
  return tensor.use(c.problem) != Use::absent;
}

// A block for the tensor, laid out as the case says; values without strides are dense.
void make_block(Inputs& in, const Case& c, const Tensor& tensor) {
  const Problem& p = c.problem;
  const View extents = view_of(tensor, p, {});
  Layout l{0, 0, 0, 0};
  int64_t elements = extents.batch * extents.seq * extents.heads * extents.dim;
  if (tensor.field.strided()) {
    // o is written by the first pass, so no two rows of it may lie in one place.
    const bool apart = is_written(tensor.use(p)) || tensor.view == &Views::o;
    const bool of_kv = tensor.view == &Views::k || tensor.view == &Views::v;
    const bool of_cache = tensor.view == &Views::cache_k || tensor.view == &Views::cache_v;
    const bool packed = of_cache ? false : of_kv && !p.appends() ? p.kv_is_packed() : p.varlen;
    l = lay_out(c.layout, tensor.view, extents, packed, apart);
    elements = span_of(extents, l) + l.offset;
  }
  if (tensor.view == &Views::lse && c.layout == "lse_by_row") l = {extents.seq * extents.heads, extents.heads, 1, 0};
  const int64_t size = size_of(extents.element);
  Inputs::Block& block = in.block(tensor.view);
  block.resize(static_cast<size_t>(elements * size) + 2 * guard_bytes);
  unsigned char* const first = block.data() + guard_bytes + l.offset * size;
  tensor.field.set(in.tensors, {first, l.stride_batch, l.stride_seq, l.stride_head});
}

}  // namespace

std::unique_ptr<Inputs> make_blocks(const Case& c) {
  auto in = std::make_unique<Inputs>();
  for (const Tensor& tensor : tensors())
    if (is_there(c, tensor)) make_block(*in, c, tensor);
  return in;
}

}  // namespace froghopper::check
