// SPDX-License-Identifier: Apache-2.0
// oracle: what both computations of gradients share: sums, one row of grad_o, answers.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "src/oracle/rows.hpp"

namespace froghopper::oracle {

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

// What gradients read in addition.
template <class Real>
struct BothWays : Head<Real> {
  Matrix<Real> v_columns;

  BothWays(const Problem& p, const Views& views, const Sequence& s, int64_t head)
      : Head<Real>(p, views, s, head), v_columns(transposed(this->v)) {}
};

// Dense, in the shapes of q, k, v and gate; of the sink one value for each sequence and query head.
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

inline double sum_of_sizes(const double* x, const double* y, int64_t count) {
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
  const auto put = [&](View Views::*tensor, const std::vector<Real>& values) {
    const View& view = views.*tensor;
    std::vector<double>& answer = answers[index_of(tensor)];
    answer.reserve(values.size());
    auto value = values.begin();
    for (int64_t b = 0; b < view.batch && !values.empty(); ++b)
      for (int64_t row = 0; row < view.seq; ++row)
        for (int64_t head = 0; head < view.heads; ++head)
          for (int64_t c = 0; c < view.dim; ++c) {
            const float held = p.accumulate ? load(view.data, view.at(b, row, head) + c, view.element) : 0.0f;
            answer.push_back(finish(*value++, held, view.element));
          }
  };
  put(&Views::grad_q, sums.q);
  put(&Views::grad_k, sums.k);
  put(&Views::grad_v, sums.v);
  put(&Views::grad_sink, sink);
  put(&Views::grad_gate, sums.gate);
  return answers;
}

}  // namespace froghopper::oracle
