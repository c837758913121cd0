// SPDX-License-Identifier: Apache-2.0
// oracle: gradients in fp64 as their formulas read.
//
// What query row i of head h adds, over the keys j that it attends to, with g = grad_o[i]:
//   weight[j]   = exp(s[j] - lse)
//   delta       = g . o - grad_lse
//   grad_v[j]  += weight[j] g
//   ds[j]       = weight[j] (g . v[j] - delta), with softcap also times the slope of tanh, 1 - (s[j] / softcap)^2,
//                 s without the bias of alibi
//   grad_q     += scale ds[j] k[j],   grad_k[j] += scale ds[j] q
//   grad_sink  -= exp(sink - lse) delta: the sink takes its share of the denominator and has no value
// With a gate, whose sigmoid o has as a factor:
//   grad_gate   = grad_o[i] o (1 - sigmoid), and below delta g is grad_o[i] times sigmoid, element by element
#include <algorithm>
#include <cmath>
#include <limits>

#include "src/oracle/gradients.hpp"
#include "src/oracle/terms.hpp"

namespace froghopper::oracle {
namespace {

// Squares of the norms of Gradients.
struct Sizes {
  Sums<double> rounded, summed;
};

// Values that are so small that their rounding is not a part of them. Below the storage type's smallest normal number
// it is as large as there. A weight below fp32's smallest normal number may be 0: a GPU has no others.
struct Least {
  double operand, weight;
  explicit Least(Dtype t)
      : operand(t == Dtype::f16 ? 0x1p-14 : 0x1p-126), weight(0x1p-126 / unit_roundoff(element_of(t))) {}
};

// Of the sink nothing is rounded to the storage type: its gradient is fp32 from end to end.
void add_to_sink(double weight, double delta, double delta_size, int64_t number, Sums<double>& sums, Sizes& sizes) {
  const double least = Least(Dtype::f32).weight * delta_size;
  sums.sink[number] -= weight * delta;
  sizes.rounded.sink[number] += std::pow(std::max(weight * std::fabs(delta), least), 2);
  sizes.summed.sink[number] += std::pow(weight * delta_size, 2);
}

// One row of one query head, and what its keys are multiplied by: of visible.begin + n, factors[n].
struct Row {
  struct Factors {
    double weight, ds;                    // of the gradients
    double weight_to_round, ds_to_round;  // of their rounding errors
    double grad_weight_size;              // times weight, of those of sums
  };
  const double* q;
  int64_t at_q;
  Visible visible;
  double delta_size;
  Given<double> given;
  std::vector<Factors> factors;
  std::vector<double> weighted_k;  // what an error of delta, which all keys share, is multiplied by

  Row(const Problem& p, const Views& views, const Sequence& s, const BothWays<double>& head, int64_t i,
      const Visible& visible)
      : q(head.q.row(i)),
        at_q(Dense(p).q(s, i, head.index, p.dim_qk)),
        visible(visible),
        given(views, s, head.index, i),
        weighted_k(p.dim_qk, 0.0) {}

  // grad_gate of the row; and grad_o as the gate lets it pass.
  void pass_gate(const Gate<double>& gate, const double* o, int64_t at, Sums<double>& sums, Sizes& sizes) {
    for (size_t c = 0; visible.begin < visible.end && c < given.grad_o.size(); ++c) {
      const double all = given.grad_o[c] * o[c] * gate.rest[c];
      sums.gate[at + c] = all;
      sizes.rounded.gate[at + c] = sizes.summed.gate[at + c] = all * all;  // o is rounded, and a sum
      given.grad_o[c] *= gate.sigmoid[c];
    }
  }
};

std::vector<const double*> grad_o_of(const std::vector<Row>& rows) {
  std::vector<const double*> all;
  for (const Row& row : rows) all.push_back(row.given.grad_o.data());
  return all;
}

// The rows [i, end), with what they add to the gradients of sink and gate.
std::vector<Row> rows_from(const Problem& p, const Views& views, const Sequence& s, const BothWays<double>& head,
                           int64_t i, int64_t end, int64_t sink_number, Sums<double>& sums, Sizes& sizes) {
  std::vector<Row> rows;
  std::vector<int64_t> indices;
  std::vector<Visible> keys;
  std::vector<Gate<double>> gates;
  for (; i < end; ++i) {
    indices.push_back(i), keys.push_back(keys_of(p, s, i));
    gates.emplace_back(p, views, s, head.index, i);
    rows.emplace_back(p, views, s, head, i, keys.back());
  }
  const std::vector<std::vector<double>> plain = plain_scores(p, head, indices, keys);
  std::vector<std::vector<double>> all_s, o(rows.size(), std::vector<double>(p.dim_v, 0.0));
  std::vector<double> lse(rows.size(), -std::numeric_limits<double>::infinity()), delta;
  std::vector<QueryRow<double>> together;
  for (size_t n = 0; n < rows.size(); ++n) all_s.push_back(with_alibi(head, indices[n], keys[n], plain[n]));
  for (size_t n = 0; n < rows.size(); ++n)
    together.push_back({keys[n], all_s[n], gates[n].sigmoid.data(), o[n].data(), &lse[n]});
  attend<double, /*rounds=*/false>(p, views, head, together);
  for (size_t n = 0; n < rows.size(); ++n) {
    Row& row = rows[n];
    const double* const g = row.given.grad_o.data();
    delta.push_back(dot(g, o[n].data(), p.dim_v) - row.given.grad_lse);
    row.delta_size = sum_of_sizes(g, o[n].data(), p.dim_v) + std::fabs(row.given.grad_lse);
    if (p.sink)
      add_to_sink(weight_of_sink(views, head.index, lse[n]), delta[n], row.delta_size, sink_number, sums, sizes);
    if (p.gate) row.pass_gate(gates[n], o[n].data(), Dense(p).q(s, indices[n], head.index, p.dim_v), sums, sizes);
  }

  const Least least(p.dtype);
  const std::vector<const double*> g = grad_o_of(rows);
  const auto dp = dots(g, head.v_columns, keys);
  const auto dp_sizes = sums_of(g, head.v_columns, keys, [](double a, double b) { return std::fabs(a * b); });
  // A gated g is rounded too, as every weight that it is multiplied by.
  const double both = p.gate ? std::sqrt(2.0) : 1;
  std::vector<std::vector<double>> dp_squares;
  if (p.gate) dp_squares = sums_of(g, head.v_columns, keys, square);
  for (size_t n = 0; n < rows.size(); ++n)
    for (size_t j = 0; j < plain[n].size(); ++j) {
      const double weight = weight_below(lse[n], all_s[n][j]), of_dp = weight * slope_of(p, plain[n][j]);
      const double ds = of_dp * (dp[n][j] - delta[n]), of_gate = p.gate ? of_dp * std::sqrt(dp_squares[n][j]) : 0;
      const double size = dp_sizes[n][j];
      rows[n].factors.push_back(
          {weight, ds, both * std::max({weight, least.operand, least.weight}),
           std::max({std::hypot(ds, of_gate), least.operand, least.weight * (size + rows[n].delta_size)}), size});
    }
  return rows;
}

// Which of some rows attend to a key, or which of some keys a row attends to: x and the factors of each.
struct Pairs {
  std::vector<const double*> x;
  std::vector<const Row::Factors*> factors;
  std::vector<double> delta_sizes;
  std::vector<Term<double>> terms;

  void clear() { x.clear(), factors.clear(), delta_sizes.clear(); }
  void add(const double* with, const Row& row, int64_t j) {
    x.push_back(with);
    factors.push_back(&row.factors[j - row.visible.begin]);
    delta_sizes.push_back(row.delta_size);
  }
  // The terms of a sum whose factors are factor(factors of the pair, delta_size of its row).
  template <class Factor>
  const std::vector<Term<double>>& of(Factor factor) {
    terms.clear();
    for (size_t n = 0; n < x.size(); ++n) terms.push_back({factor(*factors[n], delta_sizes[n]), x[n]});
    return terms;
  }
};

using Factors = Row::Factors;

// What key j gets from the rows that attend to it.
void add_to_key(const Problem& p, const Sequence& s, int64_t head_kv, int64_t j, const std::vector<Row>& rows,
                Pairs& pairs, Sums<double>& sums, Sizes& sizes) {
  const Dense dense(p);
  const int64_t at_k = dense.kv(s, j, head_kv, p.dim_qk), at_v = dense.kv(s, j, head_kv, p.dim_v);
  const auto weight_to_round = [](const Factors& f, double) { return f.weight_to_round; };
  const auto ds_to_round = [](const Factors& f, double) { return f.ds_to_round; };
  const auto summed = [](const Factors& f, double delta_size) {
    return f.weight * (f.grad_weight_size + delta_size);
  };
  const auto each = [&](auto x) {
    pairs.clear();
    for (const Row& row : rows)
      if (row.visible.begin <= j && j < row.visible.end) pairs.add(x(row), row, j);
  };
  each([](const Row& row) { return row.given.grad_o.data(); });
  add<double>(&sums.v[at_v], pairs.of([](const Factors& f, double) { return f.weight; }), p.dim_v, product);
  add<double>(&sizes.rounded.v[at_v], pairs.of(weight_to_round), p.dim_v, square);
  each([](const Row& row) { return row.q; });
  add<double>(&sums.k[at_k], pairs.of([](const Factors& f, double) { return f.ds; }), p.dim_qk, product);
  add<double>(&sizes.rounded.k[at_k], pairs.of(ds_to_round), p.dim_qk, square);
  add<double>(&sizes.summed.k[at_k], pairs.of(summed), p.dim_qk, square);
}

// What a row gets from the keys [first, end) that it attends to.
void add_to_row(const Problem& p, const Matrix<double>& k, int64_t first, int64_t end, Row& row, Pairs& pairs,
                Sums<double>& sums, Sizes& sizes) {
  pairs.clear();
  for (int64_t j = std::max(first, row.visible.begin); j < std::min(end, row.visible.end); ++j)
    pairs.add(k.row(j), row, j);
  const auto ds_to_round = [](const Factors& f, double) { return f.ds_to_round; };
  const auto summed = [](const Factors& f, double) { return f.weight * f.grad_weight_size; };
  const auto of_delta = [](const Factors& f, double delta_size) { return f.weight * delta_size; };
  add<double>(&sums.q[row.at_q], pairs.of([](const Factors& f, double) { return f.ds; }), p.dim_qk, product);
  add<double>(&sizes.rounded.q[row.at_q], pairs.of(ds_to_round), p.dim_qk, square);
  add<double>(&sizes.summed.q[row.at_q], pairs.of(summed), p.dim_qk, square);
  add<double>(row.weighted_k.data(), pairs.of(of_delta), p.dim_qk, size);
}

// The rows [i, end), at most rows_at_once.
void add_rows(const Problem& p, const Views& views, const Sequence& s, const BothWays<double>& head, int64_t i,
              int64_t end, int64_t sink_number, Sums<double>& sums, Sizes& sizes) {
  std::vector<Row> rows = rows_from(p, views, s, head, i, end, sink_number, sums, sizes);
  Pairs pairs;
  for (int64_t first = 0; first < s.rows_kv; first += terms_at_once) {
    const int64_t last = std::min(first + terms_at_once, s.rows_kv);
    for (int64_t j = first; j < last; ++j) add_to_key(p, s, head.index_kv, j, rows, pairs, sums, sizes);
    for (Row& row : rows) add_to_row(p, head.k, first, last, row, pairs, sums, sizes);
  }
  for (const Row& row : rows)
    add<double>(&sizes.summed.q[row.at_q], {{{1, row.weighted_k.data()}}}, p.dim_qk, square);
}

}  // namespace

Gradients compute_gradients(const Problem& p, const Views& views) {
  Sums<double> sums(p);
  Sizes sizes{Sums<double>(p), Sums<double>(p)};
  each_group(p, views, [&](const Sequence& s, int64_t index, int64_t head_kv) {
    each_head<double>(p, views, s, index, head_kv, [&](const BothWays<double>& head, int64_t sink_number) {
      for (int64_t i = 0; i < s.rows_q; i += rows_at_once)
        add_rows(p, views, s, head, i, std::min(i + rows_at_once, s.rows_q), sink_number, sums, sizes);
    });
  });
  const auto norm = [&](double square, float, Element) { return std::sqrt(square); };
  // The squares of what is multiplied by scale.
  for (Sums<double>* const squares : {&sizes.rounded, &sizes.summed}) {
    for (double& x : squares->q) x *= p.scale;
    for (double& x : squares->k) x *= p.scale;
  }
  return {answers_of(p, views, sums, [](double x, float held, Element) { return held + x; }),
          answers_of(p, views, sizes.rounded, norm), answers_of(p, views, sizes.summed, norm)};
}

}  // namespace froghopper::oracle
