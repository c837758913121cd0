// SPDX-License-Identifier: Apache-2.0
// oracle: what the loops of both passes share: where rows lie, their values, a score, and a query row's own output.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <span>
#include <vector>

#include "contract/alibi.h"
#include "src/base/storage.hpp"
#include "src/oracle/oracle.hpp"
#include "src/oracle/terms.hpp"
#include "src/problem/mask.hpp"

namespace froghopper::oracle {

// Where the rows of one sequence lie, in the user's tensors and in our dense results.
struct Sequence {
  int64_t index;              // of the sequence
  int64_t batch;              // index into the tensors' first extent
  int64_t first_q, first_kv;  // row of the tensor that is the sequence's row 0
  int64_t rows_q, rows_kv;    // rows that count

  Sequence(const Problem& p, const Views& views, int64_t index) : index(index) {
    const Rows q = froghopper::rows_q(p, views, index), kv = froghopper::rows_kv(p, views, index);
    batch = q.batch;
    first_q = q.first, first_kv = kv.first;
    rows_q = q.used, rows_kv = kv.used;
  }
  Rows of_q() const { return {batch, first_q, rows_q, rows_q}; }
  Rows of_kv() const { return {batch, first_kv, rows_kv, rows_kv}; }
};

// The rows of one head of one sequence that count, as values: 8-bit ones times their scale, with the mean that was
// taken out of them. What lies after them is never read.
template <class Real>
struct Matrix {
  int64_t rows, columns;
  std::vector<Real> values;
  const Real* row(int64_t i) const { return &values[i * columns]; }
};

template <class Real>
Matrix<Real> read(const View& view, const KvRows& place, int64_t rows, int64_t head, const Scales& scales,
                  const float* mean = nullptr) {
  Matrix<Real> m{rows, view.dim, std::vector<Real>(rows * view.dim)};
  for (int64_t i = 0; i < rows; ++i) {
    Real* const row = &m.values[i * view.dim];
    load_row(view.data, place.at(i, head), view.dim, view.element, row);
    const float* const scale = scales ? scales.of_row(i) : nullptr;
    for (int64_t c = 0; scale && c < view.dim; ++c) row[c] *= scale[scales.by_column() ? c : 0];
    for (int64_t c = 0; mean && c < view.dim; ++c) row[c] += mean[c];
  }
  return m;
}

inline const float* mean_of(const View& means, const Sequence& s, int64_t head) {
  return means.data ? means.as<float>() + means.at(s.index, 0, head) : nullptr;
}

template <class Real>
Matrix<Real> transposed(const Matrix<Real>& m) {
  constexpr int64_t at_once = 16;  // rows, so that what lies side by side is written together
  Matrix<Real> t{m.columns, m.rows, std::vector<Real>(m.values.size())};
  for (int64_t first = 0; first < m.rows; first += at_once)
    for (int64_t c = 0; c < m.columns; ++c)
      for (int64_t i = first; i < std::min(first + at_once, m.rows); ++i) t.values[c * m.rows + i] = m.row(i)[c];
  return t;
}

// What one query head of one sequence reads.
template <class Real>
struct Head {
  int64_t index, index_kv;          // of the query head, of the key head that it reads
  Matrix<Real> q, k, v, k_columns;  // k_columns: k transposed
  Real slope;                       // of alibi; 0: none
  int64_t diagonal;                 // the key where the diagonal of row 0 is

  Head(const Problem& p, const Views& views, const Sequence& s, int64_t head)
      : index(head),
        index_kv(head / (p.heads_q / p.heads_kv)),
        q(read<Real>(views.q, {views.q, s.of_q(), {}, s.index}, s.rows_q, head, {p, views.scale_q, s.index, head})),
        k(read<Real>(views.k, k_rows(views, s.of_kv(), s.index), s.rows_kv, index_kv,
                     scales_of_kv(p, views, &Views::scale_k, s.of_kv(), s.index, index_kv),
                     mean_of(views.mean_k, s, index_kv))),
        v(read<Real>(views.v, v_rows(views, s.of_kv(), s.index), s.rows_kv, index_kv,
                     scales_of_kv(p, views, &Views::scale_v, s.of_kv(), s.index, index_kv),
                     mean_of(views.mean_v, s, index_kv))),
        k_columns(transposed(k)),
        slope(p.alibi ? within_steepest(views.alibi_slopes.as<float>()[views.alibi_slopes.at(s.index, 0, head)]) : 0),
        diagonal(p.diagonal(s.rows_q, s.rows_kv)) {}
};

// The keys that a row attends to; none: from 0 to 0.
inline Visible keys_of(const Problem& p, const Sequence& s, int64_t i) {
  const Visible visible = visible_keys(p, s.rows_q, s.rows_kv, i);
  return visible.begin < visible.end ? visible : Visible{0, 0};
}

// Query rows of one head that are computed together: keys and values come from a farther cache once for all of them.
constexpr int64_t rows_at_once = 8;

// Of each row x[n], and of each row of the matrix that it attends to (keys[n]), the sum of product(x[n][c], its column
// c). The columns are those of the rows' matrix. Each sum is added up one product after the other, as plain loops do.
template <class Real, class Product>
std::vector<std::vector<Real>> sums_of(const std::vector<const Real*>& x, const Matrix<Real>& columns,
                                       const std::vector<Visible>& keys, Product product) {
  std::vector<std::vector<Real>> sums;
  for (const auto& [begin, end] : keys) sums.emplace_back(end - begin, Real(0));
  std::vector<Term<Real>> terms;
  for (int64_t first = 0; first < columns.rows; first += terms_at_once)
    for (size_t n = 0; n < x.size(); ++n) {
      if (sums[n].empty()) continue;
      terms.clear();
      for (int64_t c = first; c < std::min(first + terms_at_once, columns.rows); ++c)
        terms.push_back({x[n][c], columns.row(c) + keys[n].begin});
      add<Real>(sums[n].data(), terms, static_cast<int64_t>(sums[n].size()), product);
    }
  return sums;
}

template <class Real>
std::vector<std::vector<Real>> dots(const std::vector<const Real*>& x, const Matrix<Real>& columns,
                                    const std::vector<Visible>& keys) {
  return sums_of(x, columns, keys, product);
}

// Of the query rows `rows`, with softcap, but without the bias of alibi, which comes after it.
template <class Real>
std::vector<std::vector<Real>> plain_scores(const Problem& p, const Head<Real>& head,
                                            const std::vector<int64_t>& rows, const std::vector<Visible>& keys) {
  std::vector<const Real*> q;
  for (const int64_t i : rows) q.push_back(head.q.row(i));
  std::vector<std::vector<Real>> all = dots(q, head.k_columns, keys);
  const Real cap = p.softcap;
  for (std::vector<Real>& of_row : all)
    for (Real& s : of_row) {
      s *= static_cast<Real>(p.scale);
      if (cap != 0) s = cap * std::tanh(s / cap);
    }
  return all;
}

template <class Real>
std::vector<Real> with_alibi(const Head<Real>& head, int64_t i, const Visible& keys, std::vector<Real> scores) {
  for (int64_t j = keys.begin; head.slope != 0 && j < keys.end; ++j)
    scores[j - keys.begin] -= head.slope * static_cast<Real>(std::abs(i + head.diagonal - j));
  return scores;
}

// e^(logit - other), other being at least as large except for rounding. Infinity is no distance from itself.
template <class Real>
Real weight_below(Real other, Real logit) {
  return logit == other ? Real(1) : std::exp(logit - other);
}

// A row's scores, of the keys that it attends to; a NaN is left out.
template <class Real>
void offer(double& max_logit, const std::vector<Real>& scores) {
  for (const Real s : scores) max_logit = s > max_logit ? s : max_logit;
}

// What a row of o is multiplied by, and what that is short of 1; 1 and 0 without a gate.
template <class Real>
struct Gate {
  std::vector<Real> sigmoid, rest;

  Gate(const Problem& p, const Views& views, const Sequence& s, int64_t head, int64_t i)
      : sigmoid(p.dim_v, Real(1)), rest(p.dim_v, Real(0)) {
    if (!p.gate) return;
    std::vector<Real> x(p.dim_v);
    load_row(views.gate.data, views.gate.at(s.batch, s.first_q + i, head), p.dim_v, views.gate.element, x.data());
    for (int64_t c = 0; c < p.dim_v; ++c) sigmoid[c] = 1 / (1 + std::exp(-x[c])), rest[c] = 1 / (1 + std::exp(x[c]));
  }
};

// The query rows of one head of one sequence that are asked for: where in the sequence, and which of all that are.
struct RowsOfHead {
  int64_t sequence, head;
  struct Row {
    int64_t index, place;
  };
  std::vector<Row> rows;
};
// Without those that belong to no sequence or do not count in theirs.
std::vector<RowsOfHead> by_head(const Problem&, const Views&, const std::vector<RowId>&);

// What o and lse hold of these rows, and max_logit of every sequence and query head, before a row is computed: that
// no key was attended to, or what earlier calls left.
Answers first_answers(const Problem&, const Views&, const std::vector<RowId>&);

// The answers for these rows. attend(sequence, head, up to rows_at_once rows of it, o, lse) fills in each row's place
// of o and lse, and returns the scores of each that max_logit is taken of; HeadOf is what it reads of a head, made of
// problem, views, sequence and head.
template <class HeadOf, class Attend>
Answers attend_rows(const Problem& p, const Views& views, const std::vector<RowId>& rows, Attend attend) {
  Answers answers = first_answers(p, views, rows);
  double* const o = answers[index_of(&Views::o)].data();
  double* const lse = answers[index_of(&Views::lse)].data();
  double* const max_logit = answers[index_of(&Views::max_logit)].data();
  const std::vector<RowsOfHead> heads = by_head(p, views, rows);
  for_each(static_cast<int64_t>(heads.size()), [&](int64_t n) {
    const RowsOfHead& asked = heads[n];
    const Sequence s(p, views, asked.sequence);
    const HeadOf head(p, views, s, asked.head);
    std::span<const RowsOfHead::Row> left = asked.rows;
    while (!left.empty()) {
      const auto some = left.first(std::min(left.size(), size_t{rows_at_once}));
      for (const auto& scores : attend(s, head, some, o, lse))
        if (p.max_logit) offer(max_logit[s.index * p.heads_q + asked.head], scores);
      left = left.subspan(some.size());
    }
  });
  return answers;
}

// A query row of one head. o and lse hold those of a row that attends to nothing, or what they are merged with.
template <class Real>
struct QueryRow {
  Visible keys;
  std::span<const Real> scores;  // of its keys
  const Real* gate;              // what its o is multiplied by before that is rounded
  double *o, *lse;
};
// Real is the type of all sums.
// rounds: weights, before they meet v, and results are rounded to the storage type; weights with 8-bit q to e4m3.
template <class Real, bool rounds>
void attend(const Problem& p, const Views& views, const Head<Real>& head, const std::vector<QueryRow<Real>>& rows);

Answers gradients_same_precision(const Problem&, const Views&);  // of a backward problem

}  // namespace froghopper::oracle
