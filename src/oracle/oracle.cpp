// SPDX-License-Identifier: Apache-2.0
// oracle: attention as its formula reads, one value at a time. Everything else in the project is compared with this
// file, so it has no tiles, no vectors and no online softmax: a reader can check it line by line.
//
// The gradients are in backward.cpp. For every query row i of every head h, over the keys j that the row attends to:
//   s[j]   = scale q.k[j], or softcap tanh(scale q.k[j] / softcap); with alibi also - slope |i + diagonal - j|
//   lse    = log(sum over j of exp(s[j]), plus exp(sink[h]) where there is a sink)
//   weight = exp(s[j] - lse)
//   o      = sum over j of weight[j] v[j]
// Merged with what o and lse hold, that lse is one more logit, and that o its value.
// max_logit is the largest s of all rows of a sequence and head. With a gate, o is multiplied by 1 / (1 + exp(-gate)).
#include "src/oracle/oracle.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include "src/base/cores.hpp"
#include "src/oracle/rows.hpp"
#include "src/oracle/terms.hpp"

namespace froghopper::oracle {

namespace {

// As the operand of a product. The largest 8-bit weight of a row is 256: the larger the values, the fewer of the small
// ones vanish, and e4m3 ends at 448.
float rounded_weight(float weight, const Problem& p) {
  return is_8_bit(p.dtype) ? rounded(256 * weight, Dtype::e4m3) / 256 : rounded(weight, p.dtype);
}

}  // namespace

namespace {

// The weights of a row's keys before they are divided by their sum.
template <class Real>
struct Weighted {
  const QueryRow<Real>* row;
  Real largest, denominator;
  std::vector<Real> sums;  // of o
  std::vector<Term<Real>> terms;
};

template <class Real, bool rounds>
Weighted<Real> weigh(const Problem& p, const Head<Real>& head, const QueryRow<Real>& row, Real other) {
  const auto& [keys, scores, gate, o, lse] = row;
  const Real largest = std::max(*std::max_element(scores.begin(), scores.end()), other);

  // Sums of o are divided by the denominator at the end; e^largest is taken out of both, so that nothing overflows.
  Weighted<Real> its{&row, largest, weight_below(largest, other), std::vector<Real>(p.dim_v, Real(0)), {}};
  if (p.merges_lse() && other != -std::numeric_limits<Real>::infinity())
    for (int64_t c = 0; c < p.dim_v; ++c) its.sums[c] = its.denominator * static_cast<Real>(o[c]);
  its.terms.reserve(scores.size());
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    Real weight = weight_below(largest, scores[j - keys.begin]);
    its.denominator += weight;
    if constexpr (rounds) weight = rounded_weight(static_cast<float>(weight), p);
    its.terms.push_back({weight, head.v.row(j)});
  }
  return its;
}

}  // namespace

template <class Real, bool rounds>
void attend(const Problem& p, const Views& views, const Head<Real>& head, const std::vector<QueryRow<Real>>& rows) {
  constexpr Real none = -std::numeric_limits<Real>::infinity();
  std::vector<Weighted<Real>> all;
  for (const QueryRow<Real>& row : rows) {
    const Real other = p.merges_lse() ? static_cast<Real>(*row.lse)
                       : p.sink       ? views.sink.as<float>()[head.index]
                                      : none;
    // No key, or none that is not infinitely below others: no output; only the sink is in the denominator.
    if (!std::ranges::all_of(row.scores, [](Real s) { return s == none; }))
      all.push_back(weigh<Real, rounds>(p, head, row, other));
    else if (p.sink)
      *row.lse = other;
  }
  for (int64_t first = 0; first < head.v.rows; first += terms_at_once)
    for (auto& [row, largest, denominator, sums, terms] : all) {
      const int64_t begin = std::max(first, row->keys.begin), end = std::min(first + terms_at_once, row->keys.end);
      if (begin < end)
        add<Real>(sums.data(), std::span(terms).subspan(begin - row->keys.begin, end - begin), p.dim_v, product);
    }
  for (const auto& [row, largest, denominator, sums, terms] : all) {
    for (int64_t c = 0; c < p.dim_v; ++c) {
      row->o[c] = sums[c] / denominator * row->gate[c];
      if constexpr (rounds) row->o[c] = rounded(static_cast<float>(row->o[c]), p.dtype_o);
    }
    *row->lse = largest + std::log(denominator);
  }
}

template void attend<double, false>(const Problem&, const Views&, const Head<double>&,
                                    const std::vector<QueryRow<double>>&);

namespace {

// The sequence that a row of q lies in, and its first row; packed rows after the last sequence: none.
struct Place {
  int64_t sequence, first;
};
std::optional<Place> place_of(const Problem& p, const Views& views, const RowId& id) {
  if (!p.varlen) return Place{id.batch, 0};
  const auto* const ends = views.cu_seqlens_q.as<int32_t>();
  const int64_t sequence = std::upper_bound(ends, ends + p.batch + 1, static_cast<int32_t>(id.row)) - ends - 1;
  if (sequence == p.batch) return {};
  return Place{sequence, ends[sequence]};
}

template <class Real, bool rounds>
Answers attend(const Problem& p, const Views& views, const std::vector<RowId>& rows) {
  return attend_rows<Head<Real>>(
      p, views, rows,
      [&](const Sequence& s, const Head<Real>& head, std::span<const RowsOfHead::Row> some, double* o, double* lse) {
        std::vector<int64_t> indices;
        std::vector<Visible> keys;
        std::vector<Gate<Real>> gates;
        for (const auto& [i, place] : some) {
          indices.push_back(i);
          keys.push_back(keys_of(p, s, i));
          gates.emplace_back(p, views, s, head.index, i);
        }
        std::vector<std::vector<Real>> scores = plain_scores(p, head, indices, keys);
        std::vector<QueryRow<Real>> together;
        for (size_t n = 0; n < some.size(); ++n) {
          scores[n] = with_alibi(head, indices[n], keys[n], std::move(scores[n]));
          const int64_t place = some[n].place;
          together.push_back({keys[n], scores[n], gates[n].sigmoid.data(), o + place * p.dim_v, lse + place});
        }
        attend<Real, rounds>(p, views, head, together);
        return scores;
      });
}

}  // namespace

std::vector<RowId> rows_of(const Shape& shape) {
  std::vector<RowId> rows;
  if (shape.seq == 0 || shape.heads == 0) return rows;  // there may be any number of sequences without rows
  for (int64_t b = 0; b < shape.batch; ++b)
    for (int64_t row = 0; row < shape.seq; ++row)
      for (int64_t head = 0; head < shape.heads; ++head) rows.push_back({b, row, head});
  return rows;
}

std::vector<RowId> query_rows(const Problem& p) { return rows_of(tensors()[index_of(&Views::o)].shape(p)); }

std::vector<RowsOfHead> by_head(const Problem& p, const Views& views, const std::vector<RowId>& rows) {
  struct Asked {
    int64_t sequence, head, index, place;
  };
  std::vector<Asked> all;
  for (int64_t place = 0; place < static_cast<int64_t>(rows.size()); ++place)
    if (const auto at = place_of(p, views, rows[place]))
      if (const int64_t index = rows[place].row - at->first; index < rows_q(p, views, at->sequence).used)
        all.push_back({at->sequence, rows[place].head, index, place});
  const auto head_of = [](const Asked& x) { return std::pair(x.sequence, x.head); };
  std::ranges::stable_sort(all, {}, head_of);
  std::vector<RowsOfHead> heads;
  for (const Asked& x : all) {
    if (heads.empty() || std::pair(heads.back().sequence, heads.back().head) != head_of(x))
      heads.push_back({x.sequence, x.head, {}});
    heads.back().rows.push_back({x.index, x.place});
  }
  return heads;
}

Answers first_answers(const Problem& p, const Views& views, const std::vector<RowId>& rows) {
  constexpr double none = -std::numeric_limits<double>::infinity();
  Answers answers(tensors().size());
  std::vector<double>&o = answers[index_of(&Views::o)], &lse = answers[index_of(&Views::lse)];
  std::vector<double>& max_logit = answers[index_of(&Views::max_logit)];
  o.assign(rows.size() * p.dim_v, 0.0);
  lse.assign(rows.size(), none);
  if (p.max_logit) max_logit.assign(p.batch * p.heads_q, none);
  if (!p.merges_lse()) return answers;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& [batch, row, head] = rows[i];
    const float* const held = views.o.as<float>() + views.o.at(batch, row, head);
    std::copy(held, held + p.dim_v, &o[i * p.dim_v]);
    lse[i] = views.lse.as<float>()[views.lse.at(batch, row, head)];
  }
  std::copy_n(views.max_logit.as<float>(), max_logit.size(), max_logit.begin());
  return answers;
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
  return compute(p, views, query_rows(p));
}

Answers compute(const Problem& p, const Views& views, const std::vector<RowId>& rows) {
  return attend<double, /*rounds=*/false>(p, views, rows);
}

Answers compute_same_precision(const Problem& p, const Views& views) {
  if (p.backward()) return gradients_same_precision(p, views);
  return compute_same_precision(p, views, query_rows(p));
}

Answers compute_same_precision(const Problem& p, const Views& views, const std::vector<RowId>& rows) {
  return attend<float, /*rounds=*/true>(p, views, rows);
}

}  // namespace froghopper::oracle
