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
#include "src/oracle/oracle.hpp"
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
    for (const Tensor& tensor : tensors())
      if (tensor.field.strided() && tensor.use(problem) != Use::absent) lay_out(tensor);
    lse.assign(p.rows_q() * p.heads_q, std::numeric_limits<float>::quiet_NaN());
    if (p.sink) sink.assign(p.heads_q, 0.0f);
    if (p.backward()) grad_lse = lse;
    if (p.backward() && p.sink) grad_sink = sink;
    point_to(&Views::lse, lse);
    point_to(&Views::cu_seqlens_q, lengths_.cu_q);
    point_to(&Views::cu_seqlens_kv, lengths_.cu_kv);
    point_to(&Views::seqused_q, lengths_.used_q);
    point_to(&Views::seqused_kv, lengths_.used_kv);
    point_to(&Views::sink, sink);
    point_to(&Views::grad_lse, grad_lse);
    point_to(&Views::grad_sink, grad_sink);
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (float& logit : sink) logit = normal(random);
    const auto draw = [&](int64_t, int64_t, int64_t) { return normal(random); };
    fill_q(draw);
    fill_k(draw);
    fill_v(draw);
    fill_scales(views.scale_q, rows_q, random);
    for (View* const of_kv : {&views.scale_k, &views.scale_v})
      problem.scale_tokens ? fill_scales_of_tokens(*of_kv, random) : fill_scales(*of_kv, rows_kv, random);
    if (p.alibi)
      for (int64_t b = 0; b < views.alibi_slopes.batch; ++b)
        for (int64_t head = 0; head < p.heads_q; ++head)
          views.alibi_slopes.as<float>()[views.alibi_slopes.at(b, 0, head)] = 0.2f * normal(random);
    if (p.gate) fill(views.gate, draw, rows_q);
    if (!p.backward()) return;
    fill(views.grad_o, draw, rows_q);
    fill(views.grad_lse, draw, rows_q);
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
    return view.at(batch, row, head) + column;
  }
  double o(int64_t dense) const { return load(views.o.data, element(views.o, dense), views.o.element); }

  Problem problem;
  Views views;
  std::vector<float> lse, sink, grad_lse, grad_sink;

 private:
  template <class T>
  void point_to(View Views::*view, std::vector<T>& numbers) {
    if (numbers.empty()) return;
    views.*view = view_of(tensors()[index_of(view)], problem, {numbers.data(), 0, 0, 0});
  }

  void lay_out(const Tensor& tensor) {
    View& view = views.*tensor.view = view_of(tensor, problem, {});
    view.stride_head = view.dim + 3;
    view.stride_seq = view.heads * view.stride_head + 5;
    view.stride_batch = view.seq * view.stride_seq + 7;
    const int64_t elements = view.batch * view.stride_batch;
    std::vector<unsigned char>& memory = memory_.emplace_back(elements * size_of(view.element) + 1);
    view.data = memory.data();
    for (int64_t i = 0; i < elements; ++i) store(view.data, i, view.element, std::numeric_limits<float>::quiet_NaN());
  }

  void fill(View& view, const Value& value, Rows (*rows_of)(const Problem&, const Views&, int64_t)) {
    for (int64_t sequence = 0; sequence < problem.batch; ++sequence) {
      const Rows rows = rows_of(problem, views, sequence);
      for (int64_t i = 0; i < rows.used; ++i) {
        for (int64_t head = 0; head < view.heads; ++head) {
          for (int64_t c = 0; c < view.dim; ++c)
            store(view.data, view.at(rows.batch, rows.first + i, head) + c, view.element, value(i, head, c));
        }
      }
    }
  }

  // From 1/2 to 2 for the blocks of rows that count; others stay NaN.
  void fill_scales(View& view, Rows (*rows_of)(const Problem&, const Views&, int64_t), std::mt19937& random) {
    std::uniform_real_distribution<float> exponent(-1, 1);
    for (int64_t sequence = 0; sequence < view.batch; ++sequence) {
      const int64_t blocks = problem.scale_blocks(rows_of(problem, views, sequence).used);
      for (int64_t block = 0; block < std::min(view.seq, blocks); ++block) {
        for (int64_t head = 0; head < view.heads; ++head) {
          for (int64_t c = 0; c < view.dim; ++c)
            view.as<float>()[view.at(sequence, block, head) + c] = std::exp2(exponent(random));
        }
      }
    }
  }

  void fill_scales_of_tokens(View& view, std::mt19937& random) {
    std::uniform_real_distribution<float> exponent(-1, 1);
    for (int64_t sequence = 0; sequence < problem.batch; ++sequence) {
      const Rows rows = rows_kv(problem, views, sequence);
      for (int64_t i = 0; i < rows.used; ++i)
        for (int64_t head = 0; head < view.heads; ++head)
          view.as<float>()[view.at(rows.batch, rows.first + i, head)] = std::exp2(exponent(random));
    }
  }

  Lengths lengths_;
  std::vector<std::vector<unsigned char>> memory_;  // of the strided tensors
};

// The oracle's answers: o as it gives it, lse in the order of fh_tensors, [batch][heads][seq].
struct Forward {
  std::vector<double> o, lse;
};

inline Forward in_tensor_order(const HandMade& t, oracle::Answers answers) {
  const std::vector<double>& by_row = answers[index_of(&Views::lse)];
  Forward f{std::move(answers[index_of(&Views::o)]), std::vector<double>(by_row.size())};
  const int64_t heads = t.problem.heads_q, seq = t.problem.extent_q();
  for (int64_t i = 0; i < static_cast<int64_t>(by_row.size()); ++i)
    f.lse[(i / heads / seq * heads + i % heads) * seq + i / heads % seq] = by_row[i];
  return f;
}
// Of a backward problem too: what its forward problem gives.
inline Forward exact(const HandMade& t) { return in_tensor_order(t, oracle::compute(t.problem.forward(), t.views)); }
inline Forward same_precision(const HandMade& t) {
  return in_tensor_order(t, oracle::compute_same_precision(t.problem.forward(), t.views));
}

}  // namespace froghopper::test
