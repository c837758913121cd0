// SPDX-License-Identifier: Apache-2.0
// oracle: attention as its formula reads, one number at a time. Everything else in the project is compared with this
// file, so it has no tiles, no vectors and no online softmax: a reader can check it line by line.
//
// For every query row i of every head h, over the keys j that the row may see:
//   s[j]   = scale q.k[j], or softcap tanh(scale q.k[j] / softcap)
//   lse    = log(sum over j of exp(s[j]), plus exp(sink[h]) where there is a sink)
//   weight = exp(s[j] - lse)
//   o      = sum over j of weight[j] v[j]
#include "src/oracle/oracle.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

#include "src/base/cores.hpp"
#include "src/base/storage.hpp"
#include "src/problem/mask.hpp"

namespace froghopper::oracle {
namespace {

// Where the rows of one sequence lie, in the user's tensors and in our dense results.
struct Sequence {
  int64_t batch;              // index into the tensors' first extent
  int64_t first_q, first_kv;  // row of the tensor that is the sequence's row 0
  int64_t rows_q, rows_kv;    // rows that count

  Sequence(const Problem& p, const Views& views, int64_t index) {
    const Rows q = froghopper::rows_q(p, views, index), kv = froghopper::rows_kv(p, views, index);
    batch = q.batch;
    first_q = q.first, first_kv = kv.first;
    rows_q = q.used, rows_kv = kv.used;
  }
};

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

// The rows of one head of one sequence that count, as numbers. What lies after them is never read.
template <class Real>
struct Matrix {
  int64_t columns;
  std::vector<Real> numbers;
  const Real* row(int64_t i) const { return &numbers[i * columns]; }
};

template <class Real>
Matrix<Real> read(const View& view, int64_t batch, int64_t first, int64_t rows, int64_t head) {
  Matrix<Real> m{view.dim, std::vector<Real>(rows * view.dim)};
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t begin = view.at(batch, first + i, head);
    for (int64_t c = 0; c < view.dim; ++c) m.numbers[i * view.dim + c] = load(view.data, begin + c, view.element);
  }
  return m;
}

// What one query head of one sequence reads.
template <class Real>
struct Head {
  int64_t index, index_kv;  // of the query head, of the key head that it reads
  Matrix<Real> q, k, v;

  Head(const Problem& p, const Views& views, const Sequence& s, int64_t head)
      : index(head),
        index_kv(head / (p.heads_q / p.heads_kv)),
        q(read<Real>(views.q, s.batch, s.first_q, s.rows_q, head)),
        k(read<Real>(views.k, s.batch, s.first_kv, s.rows_kv, index_kv)),
        v(read<Real>(views.v, s.batch, s.first_kv, s.rows_kv, index_kv)) {}
};

template <class Real>
Real score(const Problem& p, const Real* q, const Real* k) {
  Real dot = 0;
  for (int64_t c = 0; c < p.dim_qk; ++c) dot += q[c] * k[c];
  const Real scaled = static_cast<Real>(p.scale) * dot;
  if (p.softcap == 0) return scaled;
  const Real cap = p.softcap;
  return cap * std::tanh(scaled / cap);
}

// One query row of one head; its o and lse hold those of a row that sees nothing. Real is the type of all sums.
// rounds: weights, before they meet v, and results are rounded to the storage type.
template <class Real, bool rounds>
void attend_row(const Problem& p, const Views& views, const Sequence& s, const Head<Real>& head, int64_t i, double* o,
                double* lse) {
  const Visible visible = visible_keys(p, s.rows_q, s.rows_kv, i);
  const float sink = p.sink ? views.sink.as<float>()[head.index] : 0;
  if (visible.begin >= visible.end) {  // no output; the sink alone is in the denominator
    if (p.sink) *lse = sink;
    return;
  }

  std::vector<Real> scores;
  for (int64_t j = visible.begin; j < visible.end; ++j) scores.push_back(score(p, head.q.row(i), head.k.row(j)));
  Real largest = *std::max_element(scores.begin(), scores.end());
  if (p.sink) largest = std::max(largest, static_cast<Real>(sink));

  // Sums of o are divided by the denominator at the end; e^largest is taken out of both, so that nothing overflows.
  Real denominator = p.sink ? std::exp(static_cast<Real>(sink) - largest) : Real(0);
  std::vector<Real> sums(p.dim_v, Real(0));
  for (int64_t j = visible.begin; j < visible.end; ++j) {
    Real weight = std::exp(scores[j - visible.begin] - largest);
    denominator += weight;
    if constexpr (rounds) weight = rounded(weight, p.dtype);
    for (int64_t c = 0; c < p.dim_v; ++c) sums[c] += weight * head.v.row(j)[c];
  }
  for (int64_t c = 0; c < p.dim_v; ++c) {
    o[c] = sums[c] / denominator;
    if constexpr (rounds) o[c] = rounded(static_cast<float>(o[c]), p.dtype);
  }
  *lse = largest + std::log(denominator);
}

struct Output {
  std::vector<double> o, lse;
};

template <class Real, bool rounds>
Output attend(const Problem& p, const Views& views) {
  Output result;
  result.o.assign(p.rows_q() * p.heads_q * p.dim_v, 0.0);
  result.lse.assign(p.rows_q() * p.heads_q, -std::numeric_limits<double>::infinity());
  if (result.lse.empty()) return result;  // there may be any number of sequences without rows
  const Dense dense(p);
  for_each(p.batch * p.heads_q, [&](int64_t pair) {
    const Sequence s(p, views, pair / p.heads_q);
    const Head<Real> head(p, views, s, pair % p.heads_q);
    for (int64_t i = 0; i < s.rows_q; ++i) {
      attend_row<Real, rounds>(p, views, s, head, i, &result.o[dense.q(s, i, head.index, p.dim_v)],
                               &result.lse[dense.q(s, i, head.index, 1)]);
    }
  });
  return result;
}

Answers by_tensor(Output output) {
  Answers answers(tensors().size());
  answers[index_of(&Views::o)] = std::move(output.o);
  answers[index_of(&Views::lse)] = std::move(output.lse);
  return answers;
}

}  // namespace

void for_each(int64_t count, const std::function<void(int64_t)>& work) {
  std::atomic<int64_t> next{0};
  const auto take_turns = [&] {
    for (int64_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::thread> others;
  for (int64_t n = 1; n < std::min(cores(), count); ++n) others.emplace_back(take_turns);
  take_turns();
  for (std::thread& thread : others) thread.join();
}

Answers compute(const Problem& p, const Views& views) {
  return by_tensor(attend<double, /*rounds=*/false>(p, views));
}

Answers compute_same_precision(const Problem& p, const Views& views) {
  return by_tensor(attend<float, /*rounds=*/true>(p, views));
}

namespace {

// What one query row of one head adds to the gradients.
//   grad_v[j]     += weight[j] grad_o
//   grad_weight[j] = grad_o . v[j]
//   grad_s[j]      = weight[j] (grad_weight[j] - delta),  delta = grad_o . o
//   grad_dot[j]    = scale grad_s[j], with softcap also times the slope of tanh, 1 - (s[j] / softcap)^2
//   grad_q        += grad_dot[j] k[j],   grad_k[j] += grad_dot[j] q
//   grad_sink     -= weight of the sink times delta: the sink takes its share of the denominator and has no value
void add_row_gradients(const Problem& p, const Views& views, const Sequence& s, const Head<double>& head, int64_t i,
                       const Output& f, const std::vector<double>& grad_o, Gradients& g) {
  const Visible visible = visible_keys(p, s.rows_q, s.rows_kv, i);
  if (visible.begin >= visible.end) return;
  const Dense dense(p);
  const double lse = f.lse[dense.q(s, i, head.index, 1)];
  const double* row_grad_o = &grad_o[dense.q(s, i, head.index, p.dim_v)];
  const double* row_o = &f.o[dense.q(s, i, head.index, p.dim_v)];
  double* grad_q = &g.q[dense.q(s, i, head.index, p.dim_qk)];

  double delta = 0;
  for (int64_t c = 0; c < p.dim_v; ++c) delta += row_grad_o[c] * row_o[c];
  if (p.sink) g.sink[head.index] -= std::exp(views.sink.as<float>()[head.index] - lse) * delta;

  for (int64_t j = visible.begin; j < visible.end; ++j) {
    const double s_j = score(p, head.q.row(i), head.k.row(j));
    const double weight = std::exp(s_j - lse);
    double* grad_v = &g.v[dense.kv(s, j, head.index_kv, p.dim_v)];
    double grad_weight = 0;
    for (int64_t c = 0; c < p.dim_v; ++c) {
      grad_v[c] += weight * row_grad_o[c];
      grad_weight += row_grad_o[c] * head.v.row(j)[c];
    }
    double grad_dot = p.scale * weight * (grad_weight - delta);
    if (p.softcap != 0) grad_dot *= 1 - (s_j / p.softcap) * (s_j / p.softcap);
    double* grad_k = &g.k[dense.kv(s, j, head.index_kv, p.dim_qk)];
    for (int64_t c = 0; c < p.dim_qk; ++c) {
      grad_q[c] += grad_dot * head.k.row(j)[c];
      grad_k[c] += grad_dot * head.q.row(i)[c];
    }
  }
}

}  // namespace

Gradients backward(const Problem& p, const Views& views, const std::vector<double>& grad_o) {
  const Output f = attend<double, /*rounds=*/false>(p, views);
  Gradients g;
  g.q.assign(p.rows_q() * p.heads_q * p.dim_qk, 0.0);
  g.k.assign(p.rows_kv() * p.heads_kv * p.dim_qk, 0.0);
  g.v.assign(p.rows_kv() * p.heads_kv * p.dim_v, 0.0);
  g.sink.assign(p.sink ? p.heads_q : 0, 0.0);
  if (f.lse.empty()) return g;  // as in attend
  // The query heads of one key head add to the same grad_k and grad_v, so one turn takes all of them.
  for_each(p.heads_kv, [&](int64_t head_kv) {
    const int64_t group = p.heads_q / p.heads_kv;
    for (int64_t index = 0; index < p.batch; ++index) {
      const Sequence s(p, views, index);
      for (int64_t h = head_kv * group; h < (head_kv + 1) * group; ++h) {
        const Head<double> head(p, views, s, h);
        for (int64_t i = 0; i < s.rows_q; ++i) add_row_gradients(p, views, s, head, i, f, grad_o, g);
      }
    }
  });
  return g;
}

}  // namespace froghopper::oracle
