// SPDX-License-Identifier: Apache-2.0
// tests: an append problem with all its tensors, each in a block of its own that is full of NaN where no row is read;
// and what a run of it wrote, judged against the oracle to the byte.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "check/backends.hpp"
#include "contract/quantise.h"
#include "src/base/storage.hpp"
#include "src/base/text.hpp"
#include "src/oracle/oracle.hpp"

namespace froghopper::test {

// How the rows of a cache lie in memory; gaps between them belong to somebody else.
enum class Lies { rows_first, heads_first, k_beside_v, between_layers };
inline constexpr Lies all_layouts[] = {Lies::rows_first, Lies::heads_first, Lies::k_beside_v, Lies::between_layers};

struct Appended {
  static constexpr int64_t guard = 4096;  // bytes on either side of a tensor

  Problem p;
  check::Inputs in;
  std::mt19937 random;

  explicit Appended(const std::string& line, Lies lies = Lies::rows_first, bool in_place = false, unsigned seed = 1)
      : random(seed) {
    const auto parsed = Problem::parse(line);
    EXPECT_TRUE(parsed) << line << "\n" << parsed.failure().text;
    p = *parsed;
    for (const Tensor& tensor : tensors()) {
      const Use use = tensor.use(p);
      if (use == Use::absent || (in_place && tensor.view == &Views::q_out)) continue;
      make_block(tensor, lies);
    }
    if (in_place) in.tensors.q_out = in.tensors.q;
    fill(&Views::q), fill(&Views::k), fill(&Views::v);
    fill(&Views::rotary_cos), fill(&Views::rotary_sin), fill(&Views::norm_q), fill(&Views::norm_k);
    if (p.varlen) cut();
    if (p.seqused) count();
    if (p.slots) choose_slots();
    if (p.paged() && !p.slots) choose_pages();
    each<int64_t>(&Views::positions, [&](int64_t) { return below(p.rotary_rows); });
    if (!p.scale_tokens)
      for (View Views::*scale : {&Views::scale_k, &Views::scale_v})
        each<float>(scale, [&](int64_t) { return std::ldexp(1 + 0.1f * static_cast<float>(below(10)), -4); });
  }

  int64_t below(int64_t count) {
    return count > 0 ? static_cast<int64_t>(random() % static_cast<uint64_t>(count)) : 0;
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
    const auto bytes_of = [&](View Views::*view, const View& at, const oracle::RowId& row) {
      const auto& block = in.blocks[index_of(view)];
      return static_cast<size_t>(reinterpret_cast<const unsigned char*>(at.address(row.batch, row.row, row.head)) -
                                 block.data());
    };
    Views were = now;  // inputs that were read: q may have been overwritten
    if (now.q.data) were.q.data = expected.blocks[index_of(&Views::q)].data() + guard;
    for (const oracle::AppendedRow& row : oracle::appended(p, were)) {
      View Views::*const to = row.to == &Views::q_out && in_place() ? &Views::q : row.to;
      const View& view = now.*to;
      std::string bad = wrong_row(row, now, view);
      if (!bad.empty())
        return text("{} batch {} row {} head {}: {}", tensors()[index_of(row.to)].name, row.at.batch, row.at.row,
                    row.at.head, bad);
      const size_t at = bytes_of(to, view, row.at), bytes = static_cast<size_t>(view.dim * size_of(view.element));
      std::memcpy(expected.blocks[index_of(to)].data() + at, in.blocks[index_of(to)].data() + at, bytes);
      if (!p.scale_tokens || !row.scales) continue;
      const size_t scale_at = bytes_of(row.scales, now.*row.scales, row.at);
      std::memcpy(expected.blocks[index_of(row.scales)].data() + scale_at,
                  in.blocks[index_of(row.scales)].data() + scale_at, sizeof(float));
    }
    for (size_t i = 0; i < in.blocks.size(); ++i)
      if (in.blocks[i] != expected.blocks[i])
        return text("{}: a byte beside its rows was written", tensors()[i].name);
    return {};
  }

 private:
  bool in_place() const { return in.tensors.q_out.data && in.tensors.q_out.data == in.tensors.q.data; }

  // One rounding to the stored type, and that of the fp32 arithmetic before it: 8 ulp of what a number is a sum of, and
  // with norm of a row's sum of squares, 512 numbers one after the other at worst.
  std::string wrong_row(const oracle::AppendedRow& row, const Views& now, const View& view) const {
    const double arithmetic = (p.norm ? 64 : 8) * 0x1p-24;
    const bool narrow = row.scales && is_8_bit(p.dtype_kv);
    double scale = row.scale;
    if (narrow && p.scale_tokens) {
      const View& scales = now.*row.scales;
      scale = scales.as<float>()[scales.at(row.at.batch, row.at.row, row.at.head)];
      double largest = 0;
      for (const double size : row.sizes) largest = std::max(largest, size);
      if (!(std::fabs(scale - row.scale) <= 2 * arithmetic * std::max(row.scale, largest / largest_of(p.dtype_kv))))
        return text("its scale is {}, it should be {}", scale, row.scale);
    }
    const double least = least_step(view.element), most = narrow ? largest_of(p.dtype_kv) : HUGE_VAL;
    for (size_t c = 0; c < row.exact.size(); ++c) {
      const double exact = std::clamp(row.exact[c] / scale, -most, most);
      const double found =
          load(view.data, view.at(row.at.batch, row.at.row, row.at.head) + static_cast<int64_t>(c), view.element);
      const double before = arithmetic * row.sizes[c] / scale;
      const double allowed = before + std::max(unit_roundoff(view.element) * (std::fabs(exact) + before), least / 2);
      if (!(std::fabs(found - exact) <= allowed))
        return text("column {} is {}, it should be {} within {}", c, found, exact, allowed);
    }
    return {};
  }
  static double least_step(Element e) {
    switch (e) {
      case Element::f16: return 0x1p-24;
      case Element::e4m3: return 0x1p-9;
      case Element::e5m2: return 0x1p-16;
      default: return 0x1p-133;
    }
  }

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

  // Views of tensors whose numbers are not there yet.
  View view_at(View Views::*view) const {
    const Tensor& tensor = tensors()[index_of(view)];
    return tensor.use(p) == Use::absent ? View{} : view_of(tensor, p, tensor.field.get(in.tensors));
  }
  template <class T, class Make>
  void each(View Views::*view, Make make) {
    const View x = view_at(view);
    if (!x.data) return;
    int64_t number = 0;
    for (int64_t b = 0; b < x.batch; ++b)
      for (int64_t row = 0; row < x.seq; ++row)
        for (int64_t head = 0; head < x.heads; ++head)
          for (int64_t c = 0; c < x.dim; ++c) x.as<T>()[x.at(b, row, head) + c] = static_cast<T>(make(number++));
  }
  void fill(View Views::*view) {
    const View x = view_at(view);
    if (!x.data) return;
    std::normal_distribution<float> normal;
    for (int64_t b = 0; b < x.batch; ++b)
      for (int64_t row = 0; row < x.seq; ++row)
        for (int64_t head = 0; head < x.heads; ++head)
          for (int64_t c = 0; c < x.dim; ++c) store(x.data, x.at(b, row, head) + c, x.element, normal(random));
  }
  void cut() {  // the total into sequences, some of them empty, and rows of none behind the last one
    int64_t left = p.total_q - std::min<int64_t>(p.total_q, 2), end = 0;
    each<int32_t>(&Views::cu_seqlens_q, [&](int64_t number) {
      const int64_t rows = number == 0 ? 0 : std::min(left, number % 3 == 2 ? 0 : below(p.seq_q + 1));
      left -= rows;
      return end += rows;
    });
  }
  int64_t rows_of_sequence(int64_t b) const {
    const View cu = view_at(&Views::cu_seqlens_q);
    return p.varlen ? cu.as<int32_t>()[b + 1] - cu.as<int32_t>()[b] : p.seq_q;
  }
  void count() {
    each<int32_t>(&Views::seqused_q, [&](int64_t b) { return below(rows_of_sequence(b) + 1); });
    each<int32_t>(&Views::seqused_kv, [&](int64_t b) { return below(p.seq_kv - rows_of_sequence(b) + 1); });
  }
  std::vector<int64_t> shuffled(int64_t count) {
    std::vector<int64_t> numbers(static_cast<size_t>(count));
    std::iota(numbers.begin(), numbers.end(), 0);
    std::shuffle(numbers.begin(), numbers.end(), random);
    return numbers;
  }
  void choose_slots() {  // every fifth row is padding
    const auto places = shuffled(p.batches_kv() * p.extent_kv());
    each<int64_t>(&Views::slot_mapping, [&](int64_t row) {
      const bool padding = row % 5 == 3 || row >= static_cast<int64_t>(places.size());
      return padding ? -1 - row : places[static_cast<size_t>(row)];
    });
  }
  void choose_pages() {  // no page is of two sequences; columns without rows hold anything
    const auto places = shuffled(p.pages);
    each<int32_t>(&Views::block_table, [&](int64_t column) {
      return column < p.pages ? places[static_cast<size_t>(column)] : 2147480000;
    });
  }
};

}  // namespace froghopper::test
