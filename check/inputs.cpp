// SPDX-License-Identifier: Apache-2.0
// check: memory for a case, filled with bytes 0xff, and in it the numbers of the rows that count.
#include <algorithm>
#include <cstring>

#include "check/check.hpp"
#include "check/data.hpp"
#include "check/layout.hpp"
#include "src/base/storage.hpp"

namespace froghopper::check {

namespace {

// On either side of every tensor. More than a whole tile of the largest kernel (256 rows of 512 bytes is 128 KiB), so
// that a tile stored without a bound stays within it and is seen.
constexpr size_t guard_bytes = 128 << 10;

// A block for so many bytes; its address behind the guard zone.
unsigned char* make_block(Inputs& in, Part part, int64_t bytes) {
  in.blocks[part].assign(static_cast<size_t>(bytes) + 2 * guard_bytes, 0xff);
  return in.blocks[part].data() + guard_bytes;
}

fh_tensor make_tensor(Inputs& in, Part part, const Case& c, int64_t seq, int64_t heads, int64_t dim) {
  const Problem& p = c.problem;
  View x;
  x.batch = p.varlen ? 1 : p.batch;
  x.seq = seq;
  x.heads = heads;
  x.dim = dim;
  const Layout l = lay_out(c.layout, x, p.varlen, part == part_o);
  const int64_t size = size_of(p.dtype);
  unsigned char* memory = make_block(in, part, (span_of(x, l) + l.offset) * size);
  return {memory + l.offset * size, l.stride_batch, l.stride_seq, l.stride_head};
}

// Lengths that nobody chose: up to the longest allowed, each fifth empty, some rows of the tensor left over at the
// end.
std::vector<int64_t> draw_lengths(uint64_t stream, int64_t batch, int64_t longest, int64_t total) {
  std::vector<int64_t> lens;
  for (int64_t b = 0; b < batch; ++b) {
    const uint64_t bits = random_bits(stream, static_cast<uint64_t>(b));
    const int64_t most = std::min(longest, total);
    lens.push_back(bits % 5 == 4 ? 0
                                 : most - static_cast<int64_t>((bits >> 8) % static_cast<uint64_t>(most / 2 + 1)));
    total -= lens.back();
  }
  return lens;
}

const int32_t* put_lengths(Inputs& in, Part part, const std::vector<int64_t>& lens, bool running_sum) {
  const size_t count = lens.size() + (running_sum ? 1 : 0);
  auto* out = reinterpret_cast<int32_t*>(make_block(in, part, static_cast<int64_t>(count * sizeof(int32_t))));
  int64_t sum = 0;
  if (running_sum) out[lens.size()] = 0;
  for (size_t i = 0; i < lens.size(); ++i) {
    out[i] = static_cast<int32_t>(running_sum ? sum : lens[i]);
    sum += lens[i];
  }
  if (running_sum) out[lens.size()] = static_cast<int32_t>(sum);
  return out;
}

void make_lengths(Inputs& in, const Case& c, unsigned seed) {
  const Problem& p = c.problem;
  fh_tensors& t = in.tensors;
  if (p.varlen) {
    const auto q = c.lens_q.empty() ? draw_lengths(seed * 8 + 0, p.batch, p.seq_q, p.total_q) : c.lens_q;
    const auto kv = c.lens_kv.empty() ? draw_lengths(seed * 8 + 1, p.batch, p.seq_kv, p.total_kv) : c.lens_kv;
    t.cu_seqlens_q = put_lengths(in, part_cu_q, q, true);
    t.cu_seqlens_kv = put_lengths(in, part_cu_kv, kv, true);
  }
  if (!p.seqused) return;
  const auto draw_used = [&](uint64_t stream, const int32_t* cu, int64_t extent) {
    std::vector<int64_t> used;
    for (int64_t b = 0; b < p.batch; ++b) {
      const auto rows = static_cast<uint64_t>(cu ? cu[b + 1] - cu[b] : extent);
      used.push_back(static_cast<int64_t>(random_bits(stream, static_cast<uint64_t>(b)) % (rows + 1)));
    }
    return used;
  };
  const bool draw = c.used_q.empty() && c.used_kv.empty();
  if (draw || !c.used_q.empty()) {
    const auto used = draw ? draw_used(seed * 8 + 2, t.cu_seqlens_q, p.seq_q) : c.used_q;
    t.seqused_q = put_lengths(in, part_used_q, used, false);
  }
  if (draw || !c.used_kv.empty()) {
    const auto used = draw ? draw_used(seed * 8 + 3, t.cu_seqlens_kv, p.seq_kv) : c.used_kv;
    t.seqused_kv = put_lengths(in, part_used_kv, used, false);
  }
}

// Gives every entry of the rows that count a number; value(row in its sequence, rows, column, normal number).
template <class Value>
void fill(const Problem& p, const Views& views, const View& x, Rows (*rows_of)(const Problem&, const Views&, int64_t),
          uint64_t stream, Value value) {
  uint64_t i = 0;
  for (int64_t b = 0; b < p.batch; ++b) {
    const Rows rows = rows_of(p, views, b);
    for (int64_t row = 0; row < rows.used; ++row) {
      for (int64_t head = 0; head < x.heads; ++head) {
        const int64_t at =
            (p.varlen ? 0 : b * x.stride_batch) + (rows.first + row) * x.stride_seq + head * x.stride_head;
        for (int64_t column = 0; column < x.dim; ++column) {
          store(x.data, at + column, p.dtype, value(row, rows.used, column, random_normal(stream, i++)));
        }
      }
    }
  }
}

void fill_all(const Case& c, const Views& views, uint64_t seed) {
  const Problem& p = c.problem;
  const Data& d = *find_data(c.data);
  const float all = std::min(d.all, largest_entry(p.dtype));
  fill(p, views, views.q, rows_q, seed * 8 + 4, [&](int64_t, int64_t, int64_t column, float normal) {
    if (all != 0) return all;
    return d.score && column == 0 ? query_column_0 : d.size_q * normal;
  });
  fill(p, views, views.k, rows_kv, seed * 8 + 5, [&](int64_t row, int64_t rows, int64_t column, float normal) {
    if (all != 0) return all;
    return d.score && column == 0 ? key_column_0(d, p, row, rows) : d.size_k * normal;
  });
  fill(p, views, views.v, rows_kv, seed * 8 + 6, [&](int64_t, int64_t, int64_t, float normal) {
    return all != 0 ? all : d.all_v != 0 ? d.all_v : normal;
  });
}

const float* make_sink(Inputs& in, const Problem& p, uint64_t seed) {
  auto* sink = reinterpret_cast<float*>(make_block(in, part_sink, p.heads_q * static_cast<int64_t>(sizeof(float))));
  // Every third head has a sink that takes nearly all the weight.
  for (int64_t h = 0; h < p.heads_q; ++h) {
    sink[h] = 2 * random_normal(seed * 8 + 7, static_cast<uint64_t>(h)) + (h % 3 == 2 ? 12.0f : 0.0f);
  }
  return sink;
}

}  // namespace

std::unique_ptr<Inputs> make_inputs(const Case& c, unsigned seed) {
  const Problem& p = c.problem;
  auto in = std::make_unique<Inputs>();
  fh_tensors& t = in->tensors;
  const int64_t seq_q = p.varlen ? p.total_q : p.seq_q, seq_kv = p.varlen ? p.total_kv : p.seq_kv;
  t.q = make_tensor(*in, part_q, c, seq_q, p.heads_q, p.dim_qk);
  t.k = make_tensor(*in, part_k, c, seq_kv, p.heads_kv, p.dim_qk);
  t.v = make_tensor(*in, part_v, c, seq_kv, p.heads_kv, p.dim_v);
  t.o = make_tensor(*in, part_o, c, seq_q, p.heads_q, p.dim_v);
  const int64_t lse_bytes = p.rows_q() * p.heads_q * static_cast<int64_t>(sizeof(float));
  t.lse = reinterpret_cast<float*>(make_block(*in, part_lse, lse_bytes));
  make_lengths(*in, c, seed);
  if (p.sink) t.sink = make_sink(*in, p, seed);
  if (const auto views = bind(p, t)) fill_all(c, *views, seed);
  return in;
}

fh_tensors Inputs::at(const std::array<void*, parts>& begins) const {
  const auto moved = [&](auto* pointer, Part part) {
    if (!pointer) return pointer;
    const auto offset = reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(blocks[part].data());
    return reinterpret_cast<decltype(pointer)>(reinterpret_cast<uintptr_t>(begins[part]) + offset);
  };
  fh_tensors t = tensors;
  t.q.data = moved(t.q.data, part_q);
  t.k.data = moved(t.k.data, part_k);
  t.v.data = moved(t.v.data, part_v);
  t.o.data = moved(t.o.data, part_o);
  t.lse = moved(t.lse, part_lse);
  t.cu_seqlens_q = moved(t.cu_seqlens_q, part_cu_q);
  t.cu_seqlens_kv = moved(t.cu_seqlens_kv, part_cu_kv);
  t.seqused_q = moved(t.seqused_q, part_used_q);
  t.seqused_kv = moved(t.seqused_kv, part_used_kv);
  t.sink = moved(t.sink, part_sink);
  return t;
}

}  // namespace froghopper::check
