// SPDX-License-Identifier: Apache-2.0
// check: the judge of quantise problems. Nothing is measured against plain loops here: what must be stored is known.
//
// Let y be a number, rotated in exact arithmetic, and c the scale that was written for its block. In fp32 y is known to
//
//   d = (16 + log2 b) u32 S + 4 u32 |y|
//
// S being the sum of the magnitudes that the rotation adds up, 0 without one, and b its block: each of log2(b)
// butterflies rounds by u32 of S at most; a tensor core does four of them at once and cuts its 16 products off, each by
// u32 of S. The other four are for factors and the division. What is stored is a number that rounding to nearest even
// makes of some number between (y - d)/c and (y + d)/c: but for ties that close it is one number. The scale is known to
// as much of its block's largest y.
#include "check/quantised.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "contract/quantise.h"
#include "src/base/storage.hpp"
#include "src/base/text.hpp"
#include "src/oracle/oracle.hpp"

namespace froghopper::check {
namespace {

struct Part {
  View Views::*to, Views::*scale;
  Rows (*rows)(const Problem&, const Views&, int64_t);
};
constexpr Part parts[] = {{&Views::quantised_q, &Views::scale_q, rows_q},
                          {&Views::quantised_k, &Views::scale_k, rows_kv},
                          {&Views::quantised_v, &Views::scale_v, rows_kv}};

// Which row of the scales goes with each row of the numbers; 0 where the row does not count.
std::vector<size_t> scales_of_rows(const Problem& p, const Views& views, const Part& part) {
  const View &to = views.*part.to, &scale = views.*part.scale;
  std::vector<size_t> places(static_cast<size_t>(to.batch * to.seq * to.heads), 0);
  for (int64_t b = 0; b < p.batch && !to.empty(); ++b) {
    const Rows rows = part.rows(p, views, b);
    for (int64_t i = 0; i < rows.used; ++i)
      for (int64_t head = 0; head < to.heads; ++head) {
        const int64_t block = p.scale_rows > 0 ? i / p.scale_rows : 0;
        places[static_cast<size_t>((rows.batch * to.seq + rows.first + i) * to.heads + head)] =
            static_cast<size_t>((b * scale.seq + block) * scale.heads + head);
      }
  }
  return places;
}

double rounding(const Problem& p, double exact, double summed) {
  const double steps = 16 + std::log2(rotation_block(static_cast<int>(p.dim_qk)));
  return (steps * summed + 4 * std::fabs(exact)) * unit_roundoff(Element::f32);
}

std::string place_of(const Expected& expected, size_t row) {
  const RowId& id = expected.rows[row];
  return text("batch {} row {} head {}", id.batch, id.row, id.head);
}

std::string judge_scales(const Problem& p, const Expected& expected, const std::vector<double>& found, Measures& m) {
  std::string why;
  for (size_t i = 0; i < expected.exact.size(); ++i) {
    const double off = std::fabs(found[i] - expected.exact[i]), exact = expected.exact[i];
    m.error = std::max(m.error, off / exact);
    m.allowed = std::max(m.allowed, rounding(p, exact, expected.summed[i]) / exact);
    if (!(off <= rounding(p, exact, expected.summed[i])) && why.empty())
      why = text("{}: {} is {}, exact {}", place_of(expected, i), m.tensor, found[i], exact);
  }
  return why;
}

std::string judge_numbers(const Problem& p, const Expected& expected, const std::vector<double>& found,
                          const std::vector<double>& scales, Measures& m) {
  std::string why;
  const size_t dim = expected.rows.empty() ? 1 : expected.exact.size() / expected.rows.size();
  double all_error = 0, all_norm = 0, along = 0, counted = 0;
  for (size_t i = 0; i < expected.exact.size(); ++i) {
    const double exact = expected.exact[i], scale = scales[expected.scale_of_row[i / dim]];
    if (std::isnan(exact)) continue;
    const auto stored = [&](double y) { return rounded(static_cast<float>(y / scale), p.dtype_kv); };
    const double margin = rounding(p, exact, expected.summed[i]);
    const double off = found[i] * scale - exact, plain = stored(exact) * scale - exact;
    m.error = std::max(m.error, std::fabs(off));
    m.plain_error = std::max(m.plain_error, std::fabs(plain));
    all_error += off * off, all_norm += exact * exact, along += off * exact, ++counted;
    if (!(found[i] >= stored(exact - margin) && found[i] <= stored(exact + margin)) && why.empty())
      why = text("{} column {}: {} is {}, and {} / {} is rounded to {}", place_of(expected, i / dim), i % dim,
                 m.tensor, found[i], exact, scale, stored(exact));
  }
  m.allowed = m.plain_error;
  if (all_norm > 0) m.relative = std::sqrt(all_error / all_norm), m.mean_gain = along / all_norm;
  if (counted > 0) m.rmse = std::sqrt(all_error / counted);
  return why;
}

}  // namespace

Reference quantised_rows(const Problem& p, const Views& views) {
  oracle::Quantised answers = oracle::quantised(p, views);
  Reference r;
  for (const Part& part : parts) {
    if (!(views.*part.to).data && !(views.*part.to).empty()) continue;  // left out
    for (View Views::*const view : {part.scale, part.to}) {
      const size_t i = index_of(view);
      Expected& expected = r.emplace_back(Expected{.tensor = &tensors()[i]});
      expected.rows = rows_of(expected.tensor->shape(p));
      expected.exact = std::move(answers.exact[i]);
      expected.summed = std::move(answers.summed[i]);
    }
    r.back().scale_of_row = scales_of_rows(p, views, part);
  }
  return r;
}

void compare_quantised(const Problem& p, const Reference& reference, const Found& found, Outcome& out) {
  for (size_t i = 0; i < reference.size(); ++i) {
    const Expected& expected = reference[i];
    Measures& m = out.measures.emplace_back();
    m.tensor = expected.tensor->name;
    const std::string why = expected.scale_of_row.empty() ? judge_scales(p, expected, found[i], m)
                                                          : judge_numbers(p, expected, found[i], found[i - 1], m);
    if (out.why.empty()) out.why = why;
  }
  out.passed = out.why.empty();
}

}  // namespace froghopper::check
