// SPDX-License-Identifier: Apache-2.0
// check: inputs to measure with. Time does not depend on single values, so a large tensor repeats a piece: whoever
// copies it to a GPU copies the piece, and the rest of the tensor is never in host memory.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "check/blocks.hpp"
#include "check/check.hpp"
#include "check/data.hpp"
#include "contract/quantise.h"
#include "src/base/ceil_div.hpp"
#include "src/base/storage.hpp"
#include "src/oracle/oracle.hpp"

namespace froghopper::check {

namespace {

constexpr size_t large_bytes = size_t{2} << 20;  // smaller blocks have all their values
// 16 times a prime: no two rows of a tensor that are near each other are alike, and copies begin at whole 16 bytes.
constexpr size_t piece_elements = 16 * 65539;

// Tensors whose entries are drawn independently of each other.
struct Drawn {
  View Views::*tensor, Views::*scale;  // of 8-bit entries
  float (*size)(const Data&);          // standard deviation
};
constexpr View Views::*no_scale = nullptr;
float one(const Data&) { return 1; }
constexpr Drawn drawn_tensors[] = {
    {&Views::q, &Views::scale_q, [](const Data& data) { return data.size_q; }},
    {&Views::k, &Views::scale_k, [](const Data& data) { return data.size_k; }},
    {&Views::v, &Views::scale_v, one},
    {&Views::grad_o, no_scale, one},
    {&Views::gate, no_scale, [](const Data&) { return 3.0f; }},
    {&Views::grad_q, no_scale, one},
    {&Views::grad_k, no_scale, one},
    {&Views::grad_v, no_scale, one},
    {&Views::rotary_cos, no_scale, one},
    {&Views::rotary_sin, no_scale, one},
};

const Drawn* find_drawn(View Views::*tensor) {
  const auto found = std::ranges::find_if(drawn_tensors, [&](const Drawn& drawn) { return drawn.tensor == tensor; });
  return found == std::end(drawn_tensors) ? nullptr : found;
}

// Whether the entries of q, k and v do not depend on their rows and columns.
bool is_plain(const Data& data) {
  return !data.score && !data.row_of_q && !data.row_of_v && !data.ends && data.all == 0 && data.all_v == 0;
}

// 8-bit values are over one scale, with which the largest becomes the largest of the type.
Inputs::Block draw(const Data& data, const Drawn& drawn, Element element, uint64_t stream, float& scale) {
  std::vector<float> values(piece_elements);
  float largest = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = drawn.size(data) * data.draw(stream, i);
    largest = std::max(largest, std::fabs(values[i]));
  }
  scale = size_of(element) == 1 ? largest / largest_of(*dtype_of(element)) : 1;
  Inputs::Block piece(values.size() * static_cast<size_t>(size_of(element)));
  for (size_t i = 0; i < values.size(); ++i) store(piece.data(), static_cast<int64_t>(i), element, values[i] / scale);
  return piece;
}

void fill_with(const View& scales, float scale) {
  for (int64_t b = 0; b < scales.batch; ++b)
    for (int64_t block = 0; block < scales.seq; ++block)
      for (int64_t head = 0; head < scales.heads; ++head)
        std::fill_n(scales.as<float>() + scales.at(b, block, head), scales.dim, scale);
}

// What is not read before it was written.
bool is_without_values(const Problem& p, const Tensor& tensor) {
  const Use use = tensor.use(p);
  return use == Use::written || use == Use::may_write ||
         (p.backward() && (tensor.view == &Views::o || tensor.view == &Views::lse));
}

}  // namespace

std::unique_ptr<Inputs> make_inputs_to_measure(const Case& c, unsigned seed) {
  const Data& data = *find_data(c.data);
  if (!is_plain(data) || c.problem.merges_lse()) return make_inputs(c, seed, FirstPass::missing);
  auto in = make_blocks(c);
  auto views = bind(c.problem, in->tensors);
  if (!views) return in;  // whoever runs it is told
  std::vector<std::pair<View, float>> scales;
  for (size_t i = 0; i < in->blocks.size(); ++i) {
    const Tensor& tensor = tensors()[i];
    const Drawn* const drawn = find_drawn(tensor.view);
    const bool is_large = in->blocks[i].size() > large_bytes, unread = is_without_values(c.problem, tensor);
    if (is_large && unread) {
      in->pieces[i].assign(piece_elements, 0xff);
    } else if (is_large && drawn) {
      View& view = (*views).*tensor.view;
      float scale = 1;
      in->pieces[i] = draw(data, *drawn, view.element, uint64_t{seed} << 8 | i, scale);
      if (size_of(view.element) == 1 && drawn->scale) scales.emplace_back((*views).*drawn->scale, scale);
      view.data = nullptr;  // fill_inputs leaves it out
    } else {
      std::ranges::fill(in->blocks[i], 0xff);
    }
  }
  fill_inputs(c, *views, seed);
  for (const auto& [view, scale] : scales) fill_with(view, scale);
  return in;
}

void repeat_pieces(Inputs& in) {
  for (size_t i = 0; i < in.blocks.size(); ++i) {
    Inputs::Block &block = in.blocks[i], &piece = in.pieces[i];
    if (piece.empty()) continue;
    oracle::for_each(ceil_div(std::ssize(block), std::ssize(piece)), [&](int64_t number) {
      const size_t at = static_cast<size_t>(number) * piece.size();
      std::memcpy(block.data() + at, piece.data(), std::min(piece.size(), block.size() - at));
    });
    piece.clear();
  }
}

}  // namespace froghopper::check
