// SPDX-License-Identifier: Apache-2.0
// tests: an append problem with all its tensors, each in a block of its own that is full of NaN where no row is read;
// and what a run of it wrote, judged against the oracle to the byte.
#pragma once
#include <gtest/gtest.h>

#include <cstring>

#include "check/appended.hpp"
#include "check/backends.hpp"
#include "src/base/text.hpp"

namespace froghopper::test {

// How the rows of a cache lie in memory; gaps between them belong to somebody else.
enum class Lies { rows_first, heads_first, k_beside_v, between_layers };
inline constexpr Lies all_layouts[] = {Lies::rows_first, Lies::heads_first, Lies::k_beside_v, Lies::between_layers};

struct Appended {
  static constexpr int64_t guard = 4096;  // bytes on either side of a tensor

  Problem p;
  check::Inputs in;

  explicit Appended(const std::string& line, Lies lies = Lies::rows_first, bool in_place = false, unsigned seed = 1) {
    const auto parsed = Problem::parse(line);
    EXPECT_TRUE(parsed) << line << "\n" << parsed.failure().text;
    p = *parsed;
    for (const Tensor& tensor : tensors()) {
      const Use use = tensor.use(p);
      if (use == Use::absent || (in_place && tensor.view == &Views::q_out)) continue;
      make_block(tensor, lies);
    }
    if (in_place) in.tensors.q_out = in.tensors.q;
    check::Case c;
    c.problem = p;
    check::fill_inputs(c, views(), seed);
  }

  Views views() const {
    const auto bound = bind(p, in.tensors);
    EXPECT_TRUE(bound) << p.line() << "\n" << bound.failure().text;
    return *bound;
  }
  void leave_out(std::initializer_list<View Views::*> left_out) {
    for (View Views::*view : left_out) {
      const size_t i = index_of(view);
      in.blocks[i].clear();
      tensors()[i].field.set(in.tensors, {});
    }
  }

  // Each of the written rows is near the exact one, and every other byte is as it was. "": so it is.
  std::string wrong(const check::Inputs& before) const {
    const Views now = views();
    check::Inputs expected = before;  // the written rows are put in, and then all bytes are the same
    Views were = now;                 // inputs that were read: q may have been overwritten
    if (now.q.data) were.q.data = expected.block(&Views::q).data() + guard;
    const check::Reference reference = check::appended_rows(p, were);
    check::Found found;
    check::Outcome out;
    out.why = check::take_rows(reference, now, found);
    if (out.why.empty()) check::compare(p, reference, found, out);
    if (!out.why.empty()) return out.why;
    for (const check::Expected& written : reference) {
      const View& view = now.*written.tensor->view;
      const size_t i = index_of(view.data == now.q.data ? &Views::q : written.tensor->view);
      const auto bytes = static_cast<size_t>(view.dim * size_of(view.element));
      for (const check::RowId& row : written.rows) {
        const auto* const from = reinterpret_cast<const unsigned char*>(view.address(row.batch, row.row, row.head));
        std::memcpy(expected.blocks[i].data() + (from - in.blocks[i].data()), from, bytes);
      }
    }
    for (size_t i = 0; i < in.blocks.size(); ++i)
      if (in.blocks[i] != expected.blocks[i])
        return text("{}: a byte beside its rows was written", tensors()[i].name);
    return {};
  }

 private:
  void make_block(const Tensor& tensor, Lies lies) {
    const Shape shape = tensor.shape(p);
    const int64_t width = tensor.view == &Views::cache_k || tensor.view == &Views::cache_v
                              ? (lies == Lies::k_beside_v ? p.dim_qk + p.dim_v : shape.dim)
                              : shape.dim;
    fh_tensor made{nullptr, shape.seq * shape.heads * width, shape.heads * width, width};
    const bool strided = tensor.field.strided() && shape.dim > 1;
    const bool of_cache = tensor.view == &Views::cache_k || tensor.view == &Views::cache_v;
    if (of_cache && lies == Lies::heads_first) made.stride_seq = width, made.stride_head = shape.seq * width;
    if (of_cache && lies == Lies::between_layers) made.stride_batch *= 3;
    if (strided && !of_cache && shape.heads > 1) made.stride_seq += 16, made.stride_batch += 16 * shape.seq;
    int64_t numbers = 0;
    if (shape.batch * shape.seq * shape.heads > 0)
      numbers = (shape.batch - 1) * made.stride_batch + (shape.seq - 1) * made.stride_seq +
                (shape.heads - 1) * made.stride_head + shape.dim;
    auto& block = in.blocks[index_of(tensor.view)];
    block.assign(static_cast<size_t>(numbers * size_of(shape.element) + 2 * guard), 0xff);
    made.data = block.data() + guard;
    tensor.field.set(in.tensors, made);
  }
};

}  // namespace froghopper::test
