// SPDX-License-Identifier: Apache-2.0
// oracle: gradients as their formulas read, one number at a time.
//
// What query row i of head h adds, over the keys j that it sees, with g = grad_o[i]:
//   weight[j]   = exp(s[j] - lse)
//   delta       = g . o - grad_lse
//   grad_v[j]  += weight[j] g
//   ds[j]       = weight[j] (g . v[j] - delta), with softcap also times the slope of tanh, 1 - (s[j] / softcap)^2,
//                 s without what alibi puts on top
//   grad_q     += scale ds[j] k[j],   grad_k[j] += scale ds[j] q
//   grad_sink  -= exp(sink - lse) delta: the sink takes its share of the denominator and has no value
// With a gate, whose sigmoid o has as a factor:
//   grad_gate   = grad_o[i] o (1 - sigmoid), and below delta g is grad_o[i] times sigmoid, element by element
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "src/oracle/rows.hpp"
#include "src/oracle/terms.hpp"

namespace froghopper::oracle {
namespace {

// Places in dense tensors [batch, seq, heads, dim]; packed tensors have batch = 1. lse has dim = 1.
struct Dense {
  int64_t seq_q, seq_kv, heads_q, heads_kv;
  explicit Dense(const Problem& p)
      : seq_q(p.extent_q()), seq_kv(p.extent_kv()), heads_q(p.heads_q), heads_kv(p.heads_kv) {}
  int64_t q(const Sequence& s, int64_t i, int64_t head, int64_t dim) const {
    return ((s.batch * seq_q + s.first_q + i) * heads_q + head) * dim;
  }
  int64_t kv(const Sequence& s, int64_t j, int64_t head, int64_t dim) const {
    return ((s.batch * seq_kv + s.first_kv + j) * heads_kv + head) * dim;
  }
};

// What gradients read besides.
template <class Real>
struct BothWays : Head<Real> {
  Matrix<Real> v_columns;

  BothWays(const Problem& p, const Views& views, const Sequence& s, int64_t head)
      : Head<Real>(p, views, s, head), v_columns(transposed(this->v)) {}
};

// Dense, in the shapes of q, k, v and gate; of the sink one number for each sequence and query head.
template <class Real>
struct Sums {
  std::vector<Real> q, k, v, sink, gate;

  explicit Sums(const Problem& p)
      : q(p.rows_q() * p.heads_q * p.dim_qk),
        k(p.rows_kv() * p.heads_kv * p.dim_qk),
        v(p.rows_kv() * p.heads_kv * p.dim_v),
        sink(p.sink && p.rows_q() > 0 ? p.batch * p.heads_q : 0),
        gate(p.gate ? p.rows_q() * p.heads_q * p.dim_v : 0) {}
};

// Calls work(sequence, its number, key head) for all of them, on all cores. The query heads of one key head add to the
// same grad_k and grad_v, so one call takes all of them.
template <class Work>
void each_group(const Problem& p, const Views& views, Work work) {
  if (p.rows_q() == 0) return;  // there may be any number of sequences without rows
  for_each(p.batch * p.heads_kv, [&](int64_t pair) {
    const int64_t index = pair / p.heads_kv;
    work(Sequence(p, views, index), index, pair % p.heads_kv);
  });
}

// Calls visit(head, number of the sink's sum) for the query heads of a group.
template <class Real, class Visit>
void each_head(const Problem& p, const Views& views, const Sequence& s, int64_t index, int64_t head_kv, Visit visit) {
  const int64_t group = p.heads_q / p.heads_kv;
  for (int64_t h = head_kv * group; h < (head_kv + 1) * group; ++h)
    visit(BothWays<Real>(p, views, s, h), index * p.heads_q + h);
}

// One row of grad_o, and grad_lse, in Real.
template <class Real>
struct Given {
  std::vector<Real> grad_o;
  Real grad_lse = 0;

  Given(const Views& views, const Sequence& s, int64_t head, int64_t i) : grad_o(views.grad_o.dim) {
    const int64_t at = views.grad_o.at(s.batch, s.first_q + i, head);
    load_row(views.grad_o.data, at, views.grad_o.dim, views.grad_o.element, grad_o.data());
    if (views.grad_lse.data) grad_lse = views.grad_lse.as<float>()[views.grad_lse.at(s.batch, s.first_q + i, head)];
  }
};

template <class Real>
Real dot(const Real* x, const Real* y, int64_t count) {
  Real sum = 0;
  for (int64_t c = 0; c < count; ++c) sum += x[c] * y[c];
  return sum;
}

double sum_of_sizes(const double* x, const double* y, int64_t count) {
  double sum = 0;
  for (int64_t c = 0; c < count; ++c) sum += std::fabs(x[c] * y[c]);
  return sum;
}

// Of -inf, which is none, 0, also where a row has nothing else.
template <class Real>
Real weight_of_sink(const Views& views, int64_t head, Real lse) {
  const Real sink = views.sink.as<float>()[head];
  return sink == -std::numeric_limits<Real>::infinity() ? Real(0) : weight_below(lse, sink);
}

template <class Real>
Real slope_of(const Problem& p, Real s) {
  const Real cap = p.softcap;
  return cap == 0 ? Real(1) : 1 - (s / cap) * (s / cap);
}

// Dense answers out of sums: times scale where they are of q or k, and added to what the tensor holds if so asked.
// finish(number, what the tensor holds or 0) makes the answer of it.
template <class Real, class Finish>
Answers answers_of(const Problem& p, const Views& views, Sums<Real>& sums, Finish finish) {
  std::vector<Real> sink(p.sink ? p.heads_q : 0);
  for (size_t i = 0; i < sums.sink.size(); ++i) sink[i % sink.size()] += sums.sink[i];
  for (Real& x : sums.q) x *= static_cast<Real>(p.scale);
  for (Real& x : sums.k) x *= static_cast<Real>(p.scale);

  Answers answers(tensors().size());
  const auto put = [&](View Views::*tensor, const std::vector<Real>& numbers) {
    const View& view = views.*tensor;
    std::vector<double>& answer = answers[index_of(tensor)];
    answer.reserve(numbers.size());
    auto number = numbers.begin();
    for (int64_t b = 0; b < view.batch && !numbers.empty(); ++b)
      for (int64_t row = 0; row < view.seq; ++row)
        for (int64_t head = 0; head < view.heads; ++head)
          for (int64_t c = 0; c < view.dim; ++c) {
            const float held = p.accumulate ? load(view.data, view.at(b, row, head) + c, view.element) : 0.0f;
            answer.push_back(finish(*number++, held, view.element));
          }
  };
  put(&Views::grad_q, sums.q);
  put(&Views::grad_k, sums.k);
  put(&Views::grad_v, sums.v);
  put(&Views::grad_sink, sink);
  put(&Views::grad_gate, sums.gate);
  return answers;
}

// ---- In the arithmetic of the storage type ----

void add_row_same_precision(const Problem& p, const Views& views, const Sequence& s, const BothWays<float>& head,
                            int64_t i, int64_t sink_number, Sums<float>& sums) {
  const Visible visible = keys_of(p, s, i);
  Given<float> given(views, s, head.index, i);
  const Rows row{s.batch, s.first_q + i, 1, 1};
  const std::vector<float> o =
      read<float>(views.o, {views.o, row, {}, s.index}, 1, head.index, {p, {}, 0, 0}).numbers;
  const float lse = views.lse.as<float>()[views.lse.at(s.batch, s.first_q + i, head.index)];
  const float delta = dot(given.grad_o.data(), o.data(), p.dim_v) - given.grad_lse;
  if (p.sink) sums.sink[sink_number] -= weight_of_sink(views, head.index, lse) * delta;

  const Dense dense(p);
  const Gate<float> gate(p, views, s, head.index, i);
  for (int64_t c = 0; p.gate && visible.begin < visible.end && c < p.dim_v; ++c) {
    sums.gate[dense.q(s, i, head.index, p.dim_v) + c] = given.grad_o[c] * o[c] * gate.rest[c];
    given.grad_o[c] = rounded(given.grad_o[c] * gate.sigmoid[c], p.dtype);
  }
  float* const grad_q = sums.q.data() + dense.q(s, i, head.index, p.dim_qk);
  const std::vector<float> plain = plain_scores(p, head, i, visible), all_s = with_alibi(head, i, visible, plain);
  const std::vector<float> dp = dots(given.grad_o, head.v_columns, visible);
  std::vector<Term<float>> of_q;
  const auto add_one = [](float* sums, float factor, const float* x, int64_t count) {
    add<float>(sums, std::array{Term<float>{factor, x}}, count, product);
  };
  for (int64_t j = visible.begin; j < visible.end; ++j) {
    const float s_j = all_s[j - visible.begin], grad_weight = dp[j - visible.begin];
    const float weight = weight_below(lse, s_j);
    const float ds = rounded(weight * (grad_weight - delta) * slope_of(p, plain[j - visible.begin]), p.dtype);
    const float factor = rounded(weight, p.dtype);
    float* const grad_k = sums.k.data() + dense.kv(s, j, head.index_kv, p.dim_qk);
    float* const grad_v = sums.v.data() + dense.kv(s, j, head.index_kv, p.dim_v);
    add_one(grad_v, factor, given.grad_o.data(), p.dim_v);
    add_one(grad_k, ds, head.q.row(i), p.dim_qk);
    of_q.push_back({ds, head.k.row(j)});
  }
  add<float>(grad_q, of_q, p.dim_qk, product);
}

// ---- Exactly ----

// Squares of the norms of Gradients.
struct Sizes {
  Sums<double> rounded, summed;
};

// Numbers that are so small that their rounding is not a part of them. Below the storage type's smallest normal number
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
      int64_t sink_number, Sums<double>& sums, Sizes& sizes)
      : q(head.q.row(i)),
        at_q(Dense(p).q(s, i, head.index, p.dim_qk)),
        visible(keys_of(p, s, i)),
        given(views, s, head.index, i),
        weighted_k(p.dim_qk, 0.0) {
    const double* const g = given.grad_o.data();
    std::vector<double> o(p.dim_v, 0.0);
    double lse = -std::numeric_limits<double>::infinity();
    const std::vector<double> plain = plain_scores(p, head, i, visible), all_s = with_alibi(head, i, visible, plain);
    const Gate<double> gate(p, views, s, head.index, i);
    attend_row<double, /*rounds=*/false>(p, views, head, visible, all_s, gate.sigmoid, o.data(), &lse);
    const double delta = dot(g, o.data(), p.dim_v) - given.grad_lse;
    delta_size = sum_of_sizes(g, o.data(), p.dim_v) + std::fabs(given.grad_lse);
    if (p.sink) add_to_sink(weight_of_sink(views, head.index, lse), delta, delta_size, sink_number, sums, sizes);
    if (p.gate) pass_gate(gate, o.data(), Dense(p).q(s, i, head.index, p.dim_v), sums, sizes);

    const Least least(p.dtype);
    const std::vector<double> dp = dots(given.grad_o, head.v_columns, visible);
    const std::vector<double> dp_sizes =
        sums_of(given.grad_o, head.v_columns, visible, [](double a, double b) { return std::fabs(a * b); });
    // A gated g is rounded too, as every weight that it is multiplied by.
    const double both = p.gate ? std::sqrt(2.0) : 1;
    std::vector<double> dp_squares;
    if (p.gate)
      dp_squares =
          sums_of(given.grad_o, head.v_columns, visible, [](double a, double b) { return (a * b) * (a * b); });
    for (size_t n = 0; n < plain.size(); ++n) {
      const double weight = weight_below(lse, all_s[n]), of_dp = weight * slope_of(p, plain[n]);
      const double ds = of_dp * (dp[n] - delta), of_gate = p.gate ? of_dp * std::sqrt(dp_squares[n]) : 0;
      factors.push_back(
          {weight, ds, both * std::max({weight, least.operand, least.weight}),
           std::max({std::hypot(ds, of_gate), least.operand, least.weight * (dp_sizes[n] + delta_size)}),
           dp_sizes[n]});
    }
  }

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

// The rows [i, end), at most terms_at_once.
void add_rows(const Problem& p, const Views& views, const Sequence& s, const BothWays<double>& head, int64_t i,
              int64_t end, int64_t sink_number, Sums<double>& sums, Sizes& sizes) {
  std::vector<Row> rows;
  Pairs pairs;
  for (; i < end; ++i) rows.emplace_back(p, views, s, head, i, sink_number, sums, sizes);
  for (int64_t first = 0; first < s.rows_kv; first += terms_at_once) {
    const int64_t last = std::min(first + terms_at_once, s.rows_kv);
    for (int64_t j = first; j < last; ++j) add_to_key(p, s, head.index_kv, j, rows, pairs, sums, sizes);
    for (Row& row : rows) add_to_row(p, head.k, first, last, row, pairs, sums, sizes);
  }
  for (const Row& row : rows)
    add<double>(&sizes.summed.q[row.at_q], {{{1, row.weighted_k.data()}}}, p.dim_qk, square);
}

}  // namespace

Answers gradients_same_precision(const Problem& p, const Views& views) {
  Sums<float> sums(p);
  each_group(p, views, [&](const Sequence& s, int64_t index, int64_t head_kv) {
    each_head<float>(p, views, s, index, head_kv, [&](const BothWays<float>& head, int64_t sink_number) {
      for (int64_t i = 0; i < s.rows_q; ++i) add_row_same_precision(p, views, s, head, i, sink_number, sums);
    });
  });
  return answers_of(p, views, sums, [&](float x, float held, Element element) -> double {
    return element == Element::f32 ? held + x : rounded(x, p.dtype);
  });
}

Gradients compute_gradients(const Problem& p, const Views& views) {
  Sums<double> sums(p);
  Sizes sizes{Sums<double>(p), Sums<double>(p)};
  each_group(p, views, [&](const Sequence& s, int64_t index, int64_t head_kv) {
    each_head<double>(p, views, s, index, head_kv, [&](const BothWays<double>& head, int64_t sink_number) {
      for (int64_t i = 0; i < s.rows_q; i += terms_at_once)
        add_rows(p, views, s, head, i, std::min(i + terms_at_once, s.rows_q), sink_number, sums, sizes);
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
