// SPDX-License-Identifier: Apache-2.0
// oracle: attention as its formula reads, one number at a time. Everything else in the project is compared with this
// file, so it has no tiles, no vectors and no online softmax: a reader can check it line by line.
//
// The gradients are in backward.cpp. For every query row i of every head h, over the keys j that the row may see:
//   s[j]   = scale q.k[j], or softcap tanh(scale q.k[j] / softcap); with alibi also - slope |i + diagonal - j|
//   lse    = log(sum over j of exp(s[j]), plus exp(sink[h]) where there is a sink)
//   weight = exp(s[j] - lse)
//   o      = sum over j of weight[j] v[j]
// Merged with what o and lse hold, that lse is one more logit, and that o its value.
// max_logit is the largest s of all rows of a sequence and head.
#include "src/oracle/oracle.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

#include "src/base/cores.hpp"
#include "src/oracle/rows.hpp"

namespace froghopper::oracle {

namespace {

// As the operand of a product. The largest 8-bit weight of a row is 256: the larger the numbers, the fewer of the small
// ones vanish, and e4m3 ends at 448.
float rounded_weight(float weight, const Problem& p) {
  return is_8_bit(p.dtype) ? rounded(256 * weight, Dtype::e4m3) / 256 : rounded(weight, p.dtype);
}

}  // namespace

template <class Real, bool rounds>
void attend_row(const Problem& p, const Views& views, const Head<Real>& head, const Visible& visible,
                const std::vector<Real>& scores, double* o, double* lse) {
  constexpr Real none = -std::numeric_limits<Real>::infinity();
  const Real other = p.merges() ? static_cast<Real>(*lse) : p.sink ? views.sink.as<float>()[head.index] : none;
  if (scores.empty()) {  // no output; the sink alone is in the denominator
    if (p.sink) *lse = other;
    return;
  }

  const Real largest = std::max(*std::max_element(scores.begin(), scores.end()), other);

  // Sums of o are divided by the denominator at the end; e^largest is taken out of both, so that nothing overflows.
  Real denominator = std::exp(other - largest);
  std::vector<Real> sums(p.dim_v, Real(0));
  if (p.merges() && other != none)
    for (int64_t c = 0; c < p.dim_v; ++c) sums[c] = denominator * static_cast<Real>(o[c]);
  for (int64_t j = visible.begin; j < visible.end; ++j) {
    Real weight = std::exp(scores[j - visible.begin] - largest);
    denominator += weight;
    if constexpr (rounds) weight = rounded_weight(static_cast<float>(weight), p);
    for (int64_t c = 0; c < p.dim_v; ++c) sums[c] += weight * head.v.row(j)[c];
  }
  for (int64_t c = 0; c < p.dim_v; ++c) {
    o[c] = sums[c] / denominator;
    if constexpr (rounds) o[c] = rounded(static_cast<float>(o[c]), p.dtype_o);
  }
  *lse = largest + std::log(denominator);
}

template void attend_row<double, false>(const Problem&, const Views&, const Head<double>&, const Visible&,
                                        const std::vector<double>&, double*, double*);

namespace {

struct Output {
  std::vector<double> o, lse, max_logit;
};

void read_held(const Views& views, Output& result) {
  const View &o = views.o, &lse = views.lse;
  int64_t i = 0;
  for (int64_t b = 0; b < o.batch; ++b)
    for (int64_t row = 0; row < o.seq; ++row)
      for (int64_t head = 0; head < o.heads; ++head, ++i) {
        for (int64_t c = 0; c < o.dim; ++c) result.o[i * o.dim + c] = o.as<float>()[o.at(b, row, head) + c];
        result.lse[i] = lse.as<float>()[lse.at(b, row, head)];
      }
}

template <class Real, bool rounds>
Output attend(const Problem& p, const Views& views) {
  Output result;
  result.max_logit = first_max_logit(p, views);
  result.o.assign(p.rows_q() * p.heads_q * p.dim_v, 0.0);
  result.lse.assign(p.rows_q() * p.heads_q, -std::numeric_limits<double>::infinity());
  if (result.lse.empty()) return result;  // there may be any number of sequences without rows
  const Dense dense(p);
  if (p.merges()) read_held(views, result);
  for_each(p.batch * p.heads_q, [&](int64_t pair) {
    const Sequence s(p, views, pair / p.heads_q);
    const Head<Real> head(p, views, s, pair % p.heads_q);
    for (int64_t i = 0; i < s.rows_q; ++i) {
      const Visible visible = keys_of(p, s, i);
      const std::vector<Real> of_row = scores(p, head, i, visible);
      attend_row<Real, rounds>(p, views, head, visible, of_row, &result.o[dense.q(s, i, head.index, p.dim_v)],
                               &result.lse[dense.q(s, i, head.index, 1)]);
      if (p.max_logit) offer(result.max_logit[pair], of_row);
    }
  });
  return result;
}

Answers by_tensor(Output output) {
  Answers answers(tensors().size());
  answers[index_of(&Views::o)] = std::move(output.o);
  answers[index_of(&Views::lse)] = std::move(output.lse);
  answers[index_of(&Views::max_logit)] = std::move(output.max_logit);
  return answers;
}

}  // namespace

std::vector<double> first_max_logit(const Problem& p, const Views& views) {
  if (!p.max_logit) return {};
  if (!p.merges()) return std::vector<double>(p.batch * p.heads_q, -std::numeric_limits<double>::infinity());
  const auto* const held = views.max_logit.as<float>();
  return std::vector<double>(held, held + p.batch * p.heads_q);
}

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
  if (p.backward()) return compute_gradients(p, views).exact;
  return by_tensor(attend<double, /*rounds=*/false>(p, views));
}

Answers compute_same_precision(const Problem& p, const Views& views) {
  if (p.backward()) return gradients_same_precision(p, views);
  return by_tensor(attend<float, /*rounds=*/true>(p, views));
}

}  // namespace froghopper::oracle
