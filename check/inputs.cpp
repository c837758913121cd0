// SPDX-License-Identifier: Apache-2.0
// check: the values of the rows that count, in memory for a case that is full of bytes 0xff.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "check/blocks.hpp"
#include "check/check.hpp"
#include "check/data.hpp"
#include "check/first_pass.hpp"
#include "check/layout.hpp"
#include "check/places.hpp"
#include "contract/quantise.h"
#include "src/base/storage.hpp"
#include "src/oracle/oracle.hpp"
#include "src/problem/mask.hpp"

namespace froghopper::check {

namespace {

// Entries of q, k and v as the case draws them.
class Entries {
 public:
  explicit Entries(const Case& c)
      : problem_(c.problem),
        data_(*find_data(c.data)),
        all_(std::min({data_.all, largest_entry(c.problem.dtype), largest_entry(c.problem.dtype_o)})) {}

  float of_q(int64_t row, int64_t column, float drawn) const {
    if (all_ != 0) return all_;
    if (data_.score && column == 0) return query_column_0;
    return data_.size_q * drawn * (data_.row_of_q ? data_.row_of_q(row) : 1);
  }
  float of_k(int64_t row, int64_t rows, int64_t column, float drawn) const {
    if (all_ != 0) return all_;
    return data_.score && column == 0 ? key_column_0(data_, problem_, row, rows) : data_.size_k * drawn;
  }
  float of_v(int64_t row, float drawn) const {
    if (all_ != 0) return all_;
    return data_.all_v != 0 ? data_.all_v : drawn * (data_.row_of_v ? data_.row_of_v(row) : 1);
  }

 private:
  const Problem& problem_;
  const Data& data_;
  float all_;
};

// Every third head has a sink that takes nearly all the weight.
void put_sink(const Case& c, const Views& views, uint64_t stream) {
  const bool ends = find_data(c.data)->ends;
  for (int64_t h = 0; ends && h < c.problem.heads_q; ++h)
    views.sink.as<float>()[h] = end_of_range(static_cast<uint64_t>(h));
  for (int64_t h = 0; !ends && h < c.problem.heads_q; ++h)
    views.sink.as<float>()[h] = 2 * random_normal(stream, static_cast<uint64_t>(h)) + (h % 3 == 2 ? 12.0f : 0.0f);
}

using RowsOf = Rows (*)(const Problem&, const Views&, int64_t);

// Of k and v: with a cache the rows that come, as many as q has.
RowsOf rows_of_kv(const Problem& p) { return p.appends() ? rows_q : rows_kv; }

// Visits every entry of the rows that count: visit(sequence, row in it, rows, head, column, place, drawn number). Heads
// are shared among the cores, where there is enough to do for threads that are begun for it and heads lie apart.
template <class Visit>
void each_entry(const Case& c, const Views& views, const View& x, RowsOf rows_of, uint64_t stream, Visit visit) {
  constexpr int64_t enough = 1 << 18;  // entries, a millisecond's
  const Problem& p = c.problem;
  const auto draw = find_data(c.data)->draw;
  const bool in_pages = p.paged() && !p.appends() && (&x == &views.k || &x == &views.v);
  if (x.empty()) return;  // there may be any number of sequences without rows
  // The number of each sequence's first entry.
  std::vector<int64_t> first{0};
  for (int64_t b = 0; b < p.batch; ++b) first.push_back(first.back() + rows_of(p, views, b).used * x.heads * x.dim);
  const auto visit_head = [&](int64_t pair) {
    const int64_t b = pair / x.heads, head = pair % x.heads;
    const Rows rows = rows_of(p, views, b);
    const KvRows place(x, rows, in_pages ? views.block_table : View{}, b);
    for (int64_t row = 0; row < rows.used; ++row) {
      const int64_t at = place.at(row, head), number = first[b] + (row * x.heads + head) * x.dim;
      for (int64_t column = 0; column < x.dim; ++column)
        visit(b, row, rows.used, head, column, at + column, draw(stream, static_cast<uint64_t>(number + column)));
    }
  };
  if (first.back() >= enough && !shares_places(c.layout)) return oracle::for_each(p.batch * x.heads, visit_head);
  for (int64_t pair = 0; pair < p.batch * x.heads; ++pair) visit_head(pair);
}

// Gives every entry of the rows that count a number; value(row in its sequence, rows, column, drawn number).
template <class Value>
void fill(const Case& c, const Views& views, const View& x, RowsOf rows_of, uint64_t stream, Value value) {
  each_entry(c, views, x, rows_of, stream,
             [&](int64_t, int64_t row, int64_t rows, int64_t, int64_t column, int64_t at, float drawn) {
               store(x.data, at, x.element, value(row, rows, column, drawn));
             });
}

// The same for q, k and v. 8-bit values are the entries over a scale with which the largest that share it becomes the
// largest value of the type, as quantisers choose it, or a half, a quarter or an eighth of that: then who reads the
// scale of another block is off by more than rounding is. Scales that are not read stay NaN.
template <class Value>
void fill_scaled(const Case& c, const Views& views, const View& x, const View& scales, RowsOf rows_of,
                 uint64_t stream, Value value) {
  if (size_of(x.element) > 1) return fill(c, views, x, rows_of, stream, value);
  const float largest = largest_of(*dtype_of(x.element));
  const auto scale_of = [&](int64_t sequence, int64_t row, int64_t head, int64_t column) -> float& {
    if (c.problem.scale_tokens && &x != &views.q)
      return scales.as<
          float>()[KvRows(scales, rows_of(c.problem, views, sequence), views.block_table, sequence).at(row, head)];
    const int64_t rows = c.problem.scale_rows;
    const int64_t block = rows > 0 && scales.dim == 1 ? row / rows : 0;
    return scales.as<float>()[scales.at(sequence, block, head) + (scales.dim == 1 ? 0 : column)];
  };
  each_entry(c, views, x, rows_of, stream,
             [&](int64_t b, int64_t row, int64_t rows, int64_t head, int64_t column, int64_t, float drawn) {
               float& scale = scale_of(b, row, head, column);
               const auto place = static_cast<uint64_t>(&scale - scales.as<float>());
               const auto spare = static_cast<float>(1 << random_bits(stream, place) % 4);
               const float needed = std::fabs(value(row, rows, column, drawn)) / largest * spare;
               if (needed > 0) scale = std::isnan(scale) ? needed : std::max(scale, needed);
             });
  each_entry(c, views, x, rows_of, stream,
             [&](int64_t b, int64_t row, int64_t rows, int64_t head, int64_t column, int64_t at, float drawn) {
               float& scale = scale_of(b, row, head, column);
               if (std::isnan(scale)) scale = 1;  // of zeros
               store(x.data, at, x.element, value(row, rows, column, drawn) / scale);
             });
}

// Gives every entry of a tensor a number, whether its row counts or not: of those that are added to, and of means. o is
// an average of values, so what it holds is smaller than one.
void fill_all(const View& x, uint64_t stream, float size = 1) {
  uint64_t i = 0;
  if (x.empty()) return;
  for (int64_t b = 0; b < x.batch; ++b)
    for (int64_t row = 0; row < x.seq; ++row)
      for (int64_t head = 0; head < x.heads; ++head)
        for (int64_t column = 0; column < x.dim; ++column)
          store(x.data, x.at(b, row, head) + column, x.element, size * random_normal(stream, i++));
}

// Of rows that attend to a key; what others have is not read. Some are so large that they let all of o pass, or none.
void put_gate(const Case& c, const Views& views, uint64_t stream) {
  const Problem& p = c.problem;
  each_entry(c, views, views.gate, rows_q, stream,
             [&](int64_t b, int64_t row, int64_t rows, int64_t, int64_t, int64_t at, float drawn) {
               const Visible keys = visible_keys(p, rows, rows_kv(p, views, b).used, row);
               const float size = std::fabs(drawn) > 2.5f ? INFINITY : 3;
               if (keys.begin < keys.end) store(views.gate.data, at, views.gate.element, size * drawn);
             });
}

// What earlier calls left in o and lse: as much weight as that of these keys, some more, some less, and in every fifth
// row none. There o is not read where the row attends to a key, so it stays NaN.
void put_held_lse(const Case& c, const Views& views, uint64_t stream) {
  const Problem& p = c.problem;
  if (!p.merges_lse() || views.lse.empty()) return;
  const View& held = p.accumulate ? views.o : views.o_sum;
  fill_all(views.lse, stream);
  const auto usual = static_cast<float>(std::log(1.0 + static_cast<double>(p.seq_kv)));
  auto* const lse = views.lse.as<float>();
  for (int64_t i = 0; i < p.rows_q() * p.heads_q; ++i)
    lse[i] = find_data(c.data)->ends                                  ? end_of_range(static_cast<uint64_t>(i))
             : random_bits(stream, static_cast<uint64_t>(i)) % 5 == 4 ? -INFINITY
                                                                      : usual + 3 * lse[i];
  for (int64_t b = 0; b < p.batch; ++b) {
    const Rows q = rows_q(p, views, b), kv = rows_kv(p, views, b);
    for (int64_t i = 0; i < q.used; ++i) {
      const Visible keys = visible_keys(p, q.used, kv.used, i);
      for (int64_t head = 0; keys.begin < keys.end && head < p.heads_q; ++head)
        if (lse[views.lse.at(q.batch, q.first + i, head)] == -INFINITY)
          std::memset(held.address(q.batch, q.first + i, head), 0xff, sizeof(float) * static_cast<size_t>(p.dim_v));
    }
  }
}

// What earlier calls left there: of every third head nothing yet, of the others more than these keys give, or less.
void put_held_max_logit(const Case& c, const Views& views, uint64_t stream) {
  auto* const held = views.max_logit.as<float>();
  for (int64_t i = 0; i < c.problem.batch * c.problem.heads_q; ++i)
    held[i] = i % 3 == 2 ? -INFINITY : 4 + 8 * random_normal(stream, static_cast<uint64_t>(i));
}

// Of a cache's heads. Scales of other problems are made with the values that they belong to.
void put_given_scales(const Case& c, const View& scales, uint64_t stream) {
  for (int64_t head = 0; c.problem.appends() && head < scales.heads; ++head) {
    const auto tenths = static_cast<float>(random_bits(stream, static_cast<uint64_t>(head)) % 10);
    scales.as<float>()[scales.at(0, 0, head)] = std::ldexp(1 + tenths / 10, -4);
  }
}

// What the tensors that are read hold, each from a stream of values of its own. The lengths come first: they say which
// rows of the others count.
struct Content {
  View Views::*tensor;
  void (*put)(const Case&, const Views&, uint64_t stream);
};
constexpr Content contents[] = {
    {&Views::cu_seqlens_q, put_cu_seqlens_q},
    {&Views::cu_seqlens_kv, put_cu_seqlens_kv},
    {&Views::seqused_q, put_seqused_q},
    {&Views::seqused_kv, put_seqused_kv},
    {&Views::q,
     [](const Case& c, const Views& v, uint64_t stream) {
       const Entries entry(c);
       fill_scaled(c, v, v.q, v.scale_q, rows_q, stream,
                   [&](int64_t row, int64_t, int64_t column, float drawn) { return entry.of_q(row, column, drawn); });
     }},
    {&Views::k,
     [](const Case& c, const Views& v, uint64_t stream) {
       const Entries entry(c);
       fill_scaled(c, v, v.k, v.scale_k, rows_of_kv(c.problem), stream,
                   [&](int64_t row, int64_t rows, int64_t column, float drawn) {
                     return entry.of_k(row, rows, column, drawn);
                   });
     }},
    {&Views::v,
     [](const Case& c, const Views& v, uint64_t stream) {
       const Entries entry(c);
       fill_scaled(c, v, v.v, v.scale_v, rows_of_kv(c.problem), stream,
                   [&](int64_t row, int64_t, int64_t, float drawn) { return entry.of_v(row, drawn); });
     }},
    {&Views::sink, put_sink},
    {&Views::grad_o,
     [](const Case& c, const Views& v, uint64_t stream) {
       fill(c, v, v.grad_o, rows_q, stream, [](int64_t, int64_t, int64_t, float drawn) { return drawn; });
     }},
    {&Views::grad_lse,
     [](const Case& c, const Views& v, uint64_t stream) {
       fill(c, v, v.grad_lse, rows_q, stream, [](int64_t, int64_t, int64_t, float drawn) { return drawn; });
     }},
    {&Views::grad_q, [](const Case&, const Views& v, uint64_t stream) { fill_all(v.grad_q, stream); }},
    {&Views::grad_k, [](const Case&, const Views& v, uint64_t stream) { fill_all(v.grad_k, stream); }},
    {&Views::grad_v, [](const Case&, const Views& v, uint64_t stream) { fill_all(v.grad_v, stream); }},
    {&Views::grad_sink, [](const Case&, const Views& v, uint64_t stream) { fill_all(v.grad_sink, stream); }},
    {&Views::mean_k, [](const Case&, const Views& v, uint64_t stream) { fill_all(v.mean_k, stream); }},
    {&Views::mean_v, [](const Case&, const Views& v, uint64_t stream) { fill_all(v.mean_v, stream); }},
    {&Views::o,
     [](const Case& c, const Views& v, uint64_t stream) {
       if (c.problem.merges_lse() && c.problem.accumulate) fill_all(v.o, stream, 0.1f);  // backward: put_first_pass
     }},
    {&Views::o_sum, [](const Case&, const Views& v, uint64_t stream) { fill_all(v.o_sum, stream, 0.1f); }},
    {&Views::lse, put_held_lse},
    {&Views::alibi_slopes,
     [](const Case& c, const Views& v, uint64_t stream) {
       fill_all(v.alibi_slopes, stream, 0.2f);  // some are below 0: far keys weigh more
       uint64_t i = 0;
       for (int64_t b = 0; find_data(c.data)->ends && b < v.alibi_slopes.batch; ++b)
         for (int64_t head = 0; head < v.alibi_slopes.heads; ++head)
           v.alibi_slopes.as<float>()[v.alibi_slopes.at(b, 0, head)] = end_of_range(i++);
     }},
    {&Views::max_logit, put_held_max_logit},
    {&Views::gate, put_gate},
    {&Views::slot_mapping, put_slots},
    {&Views::positions, put_positions},
    {&Views::rotary_cos, [](const Case&, const Views& v, uint64_t stream) { fill_all(v.rotary_cos, stream); }},
    {&Views::rotary_sin, [](const Case&, const Views& v, uint64_t stream) { fill_all(v.rotary_sin, stream); }},
    {&Views::norm_q, [](const Case&, const Views& v, uint64_t stream) { fill_all(v.norm_q, stream); }},
    {&Views::norm_k, [](const Case&, const Views& v, uint64_t stream) { fill_all(v.norm_k, stream); }},
    {&Views::scale_k, [](const Case& c, const Views& v, uint64_t stream) { put_given_scales(c, v.scale_k, stream); }},
    {&Views::scale_v, [](const Case& c, const Views& v, uint64_t stream) { put_given_scales(c, v.scale_v, stream); }},
};
constexpr Content block_table = {&Views::block_table, put_pages};  // after the lengths, before k and v
constexpr size_t stream_of_pages = 20;

// Eight streams a seed; the next eight tensors have theirs far away, so that the inputs of a seed stay what they were.
uint64_t stream_of(unsigned seed, size_t content) { return uint64_t{seed} * 8 + content % 8 + (content / 8 << 32); }

bool is_filled(Use use) { return use == Use::read || use == Use::may_read || use == Use::added_to; }

}  // namespace

fh_tensors tensors_of(const Problem& p, const fh_tensors& more) {
  fh_tensors fewer = more;
  for (const Tensor& tensor : tensors())
    if (tensor.use(p) == Use::absent) tensor.field.set(fewer, {});
  return fewer;
}

void fill_inputs(const Case& c, const Views& views, unsigned seed) {
  for (size_t i = 0; i < std::size(contents); ++i) {
    if (contents[i].tensor == &Views::k && c.problem.paged() && views.block_table.data) {
      if (!pages_suffice(c.problem, views)) return;  // whoever runs it is told
      block_table.put(c, views, stream_of(seed, stream_of_pages));
    }
    if ((views.*contents[i].tensor).data && is_filled(tensors()[index_of(contents[i].tensor)].use(c.problem)))
      contents[i].put(c, views, stream_of(seed, i));
  }
}

std::unique_ptr<Inputs> make_inputs(const Case& c, unsigned seed, FirstPass first) {
  auto in = make_blocks(c);
  for (Inputs::Block& block : in->blocks) std::ranges::fill(block, 0xff);
  const auto views = bind(c.problem, in->tensors);
  if (!views) return in;  // whoever runs it is told
  fill_inputs(c, *views, seed);
  if (c.problem.backward() && first == FirstPass::exact) put_first_pass(c, *in, *views);
  return in;
}

fh_tensors Inputs::at(const std::vector<void*>& begins) const {
  fh_tensors moved = tensors;
  for (const Tensor& tensor : froghopper::tensors()) {
    fh_tensor where = tensor.field.get(tensors);
    const auto address = reinterpret_cast<uintptr_t>(where.data);
    // Mostly the tensor's own block. A tensor that is written over another one lies in the other's.
    for (size_t i = 0; i < blocks.size() && address != 0; ++i) {
      const size_t offset = address - reinterpret_cast<uintptr_t>(blocks[i].data());
      if (offset >= blocks[i].size()) continue;  // also where the address is before the block: it wraps
      where.data = static_cast<unsigned char*>(begins[i]) + offset;
      tensor.field.set(moved, where);
      break;
    }
  }
  return moved;
}

}  // namespace froghopper::check
