// SPDX-License-Identifier: Apache-2.0
// tests: tensors for a problem that a test writes down by hand. Heads, rows and batches lie apart by odd gaps; gaps
// and rows that do not count hold NaN, so that whoever reads them is caught.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "src/base/storage.hpp"
#include "src/problem/tensors.hpp"

namespace froghopper::test {

struct Lengths {
  std::vector<int32_t> cu_q, cu_kv;      // varlen
  std::vector<int32_t> used_q, used_kv;  // seqused; either may be empty
};

class HandMade {
 public:
  explicit HandMade(const Problem& p, Lengths lengths = {}, unsigned seed = 1)
      : problem(p), lengths_(std::move(lengths)) {
    if (problem.scale == 0) problem.scale = default_scale(problem.dim_qk);
    const int64_t batch = p.varlen ? 1 : p.batch;
    const int64_t seq_q = p.varlen ? p.total_q : p.seq_q, seq_kv = p.varlen ? p.total_kv : p.seq_kv;
    lay_out(q_, views.q, {nullptr, batch, seq_q, p.heads_q, p.dim_qk});
    lay_out(k_, views.k, {nullptr, batch, seq_kv, p.heads_kv, p.dim_qk});
    lay_out(v_, views.v, {nullptr, batch, seq_kv, p.heads_kv, p.dim_v});
    lay_out(o_, views.o, {nullptr, batch, seq_q, p.heads_q, p.dim_v});
    lse.assign(p.rows_q() * p.heads_q, std::numeric_limits<float>::quiet_NaN());
    views.lse = lse.data();
    views.lse_stride_head = seq_q;
    views.lse_stride_batch = p.heads_q * seq_q;
    views.cu_seqlens_q = data_or_null(lengths_.cu_q);
    views.cu_seqlens_kv = data_or_null(lengths_.cu_kv);
    views.seqused_q = data_or_null(lengths_.used_q);
    views.seqused_kv = data_or_null(lengths_.used_kv);
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    if (p.sink) {
      for (int64_t head = 0; head < p.heads_q; ++head) sink.push_back(normal(random));
      views.sink = sink.data();
    }
    const auto draw = [&](int64_t, int64_t, int64_t) { return normal(random); };
    fill_q(draw);
    fill_k(draw);
    fill_v(draw);
  }
  HandMade(const HandMade&) = delete;

  // value(row of the sequence, head, column) for the rows that count, of all sequences.
  using Value = std::function<float(int64_t, int64_t, int64_t)>;
  void fill_q(const Value& value) { fill(views.q, value, rows_q); }
  void fill_k(const Value& value) { fill(views.k, value, rows_kv); }
  void fill_v(const Value& value) { fill(views.v, value, rows_kv); }

  // A number of the dense results' order [batch][seq][heads][dim] in a tensor of ours.
  static int64_t element(const View& view, int64_t dense) {
    const int64_t column = dense % view.dim, head = dense / view.dim % view.heads;
    const int64_t row = dense / view.dim / view.heads % view.seq, batch = dense / view.dim / view.heads / view.seq;
    return batch * view.stride_batch + row * view.stride_seq + head * view.stride_head + column;
  }
  double o(int64_t dense) const { return load(views.o.data, element(views.o, dense), problem.dtype); }

  Problem problem;
  Views views;
  std::vector<float> lse, sink;

 private:
  static const int32_t* data_or_null(const std::vector<int32_t>& v) { return v.empty() ? nullptr : v.data(); }

  void lay_out(std::vector<unsigned char>& memory, View& view, View extents) const {
    view = extents;
    view.stride_head = view.dim + 3;
    view.stride_seq = view.heads * view.stride_head + 5;
    view.stride_batch = view.seq * view.stride_seq + 7;
    const int64_t elements = view.batch * view.stride_batch;
    memory.resize(elements * size_of(problem.dtype) + 1);
    view.data = memory.data();
    for (int64_t i = 0; i < elements; ++i) {
      store(view.data, i, problem.dtype, std::numeric_limits<float>::quiet_NaN());
    }
  }

  void fill(View& view, const Value& value, Rows (*rows_of)(const Problem&, const Views&, int64_t)) {
    for (int64_t sequence = 0; sequence < problem.batch; ++sequence) {
      const Rows rows = rows_of(problem, views, sequence);
      const int64_t begin = (problem.varlen ? 0 : sequence * view.stride_batch) + rows.first * view.stride_seq;
      for (int64_t i = 0; i < rows.used; ++i) {
        for (int64_t head = 0; head < view.heads; ++head) {
          for (int64_t c = 0; c < view.dim; ++c) {
            store(view.data, begin + i * view.stride_seq + head * view.stride_head + c, problem.dtype,
                  value(i, head, c));
          }
        }
      }
    }
  }

  Lengths lengths_;
  std::vector<unsigned char> q_, k_, v_, o_;
};

}  // namespace froghopper::test
