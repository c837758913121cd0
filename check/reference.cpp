// SPDX-License-Identifier: Apache-2.0
// check: the oracle's answers, for all rows or, where that would take minutes, for some of them. Some rows of
// gradients: groups.cpp.
#include <algorithm>
#include <cmath>

#include "check/appended.hpp"
#include "check/compare.hpp"
#include "check/data.hpp"
#include "check/groups.hpp"
#include "check/quantised.hpp"
#include "check/tensor_core.hpp"
#include "src/base/text.hpp"
#include "src/oracle/oracle.hpp"

namespace froghopper::check {

namespace {

void put(Expected& expected, std::vector<RowId> rows, oracle::Answers& exact, oracle::Answers& same_precision) {
  const size_t i = index_of(expected.tensor->view);
  expected.rows = std::move(rows);
  expected.exact = std::move(exact[i]);
  expected.same_precision = std::move(same_precision[i]);
}

Reference all_gradients(const Problem& p, const Views& views) {
  oracle::Gradients g = oracle::compute_gradients(p, views);
  oracle::Answers same_precision = oracle::compute_same_precision(p, views);
  Reference r = written_tensors(p);
  for (Expected& expected : r) {
    const size_t i = index_of(expected.tensor->view);
    put(expected, rows_of(expected.tensor->shape(p)), g.exact, same_precision);
    expected.rounded = std::move(g.rounded[i]);
    expected.summed = std::move(g.summed[i]);
    expected.largest_lse = largest_lse(p, views);
  }
  return r;
}

// Rows at both ends of the tensor and pseudo-random ones between. So many miss an error in a 64th of all rows in 2 of
// 100 cases, (63/64)^256, and reading the keys and values of their heads costs the oracle most.
std::vector<RowId> choose_rows(const Problem& p) {
  constexpr uint64_t count = 256;
  const auto heads = static_cast<uint64_t>(p.heads_q), seq = static_cast<uint64_t>(p.extent_q());
  const uint64_t all = static_cast<uint64_t>(p.batches()) * seq * heads;
  std::vector<RowId> rows;
  for (uint64_t i = 0; i < std::min(count, all); ++i) {
    const uint64_t at = i == 0 ? 0 : i == 1 ? all - 1 : random_bits(9, i) % all;
    rows.push_back({static_cast<int64_t>(at / heads / seq), static_cast<int64_t>(at / heads % seq),
                    static_cast<int64_t>(at % heads)});
  }
  std::ranges::sort(rows);
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

// rows: of o and of lse.
Reference of_rows(const Problem& p, const Views& views, const std::vector<RowId>& rows, Backend backend) {
  oracle::Answers exact = oracle::compute(p, views, rows), same_precision = plain_loops(backend, p, views, rows);
  Reference r = written_tensors(p);
  for (Expected& expected : r) {
    const bool of_queries = expected.tensor->view != &Views::max_logit;
    put(expected, of_queries ? rows : rows_of(expected.tensor->shape(p)), exact, same_precision);
  }
  return r;
}

}  // namespace

// Weights are exp(s - lse): with an lse of 2^18 they are known to 8 u32 2^18, an eighth, and tell nothing.
constexpr float largest_known = 0x1p18f;

Reference written_tensors(const Problem& p) {
  Reference r;
  for (const Tensor& tensor : tensors())
    if (is_written(tensor.use(p))) r.push_back({.tensor = &tensor});
  return r;
}

// Of the rows that count; the others hold NaN. Where a large sink is all of lse, weights are known: they are 0.
double largest_lse(const Problem& p, const Views& views) {
  double largest = 0;
  if (views.lse.empty()) return largest;
  for (int64_t b = 0; b < p.batch; ++b) {
    const Rows rows = rows_q(p, views, b);
    for (int64_t i = 0; i < rows.used; ++i)
      for (int64_t head = 0; head < p.heads_q; ++head)
        if (const float lse = views.lse.as<float>()[views.lse.at(rows.batch, rows.first + i, head)];
            std::isfinite(lse) && !(p.sink && lse == views.sink.as<float>()[head] && std::fabs(lse) > largest_known))
          largest = std::max<double>(largest, std::fabs(lse));
  }
  return largest;
}

Result<void> can_be_judged(const Case& c, const Views& views) {
  if (c.problem.max_logit && c.sample_rows)
    return Failure{FH_UNSUPPORTED,
                   "rows=sample knows only the scores of some rows, and max_logit is the largest of all. Leave rows "
                   "out."};
  if (!c.problem.backward()) return {};
  if (const double lse = largest_lse(c.problem, views); lse > largest_known)
    return Failure{FH_UNSUPPORTED, text("lse reaches {:.3g} in this case; in fp32 it has no digit left there that "
                                        "exp(s - lse) could be told from. Choose other data.",
                                        lse)};
  if (c.sample_rows && some_groups(c.problem, views).empty())
    return Failure{FH_UNSUPPORTED,
                   "each key head of a sequence is too large for the oracle, which computes all rows "
                   "of it. Choose a smaller problem."};
  return {};
}

Reference make_reference(const Case& c, const Views& views, Backend backend) {
  const Problem& p = c.problem;
  if (p.quantises()) return quantised_rows(p, views);
  if (p.appends()) return appended_rows(p, views);
  if (p.backward()) return c.sample_rows ? gradients_of_groups(p, views) : all_gradients(p, views);
  return of_rows(p, views, c.sample_rows ? choose_rows(p) : oracle::query_rows(p), backend);
}

}  // namespace froghopper::check
