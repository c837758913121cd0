// SPDX-License-Identifier: Apache-2.0
// check: the judge of quantise problems. Nothing is measured against plain loops here: what must be stored is known.
//
// Let y be a number, rotated in exact arithmetic, and c the scale that was written for its block. In fp32 y is known to
//
//   d = (16 + log2 b) u32 S + 4 u32 |y|
//
// S being the sum of the magnitudes that the rotation adds up, 0 without one, and b its block: each of log2(b)
// butterflies rounds by u32 of S at most; a tensor core does four of them at once and cuts its 16 products off, each by
// u32 of S. The other four are for factors and the division. What is stored is a value that rounding to nearest even
// makes of some number between (y - d)/c and (y + d)/c: except for ties that close it is one number. The scale is known
// to as much of its block's largest y.
//
// Where k and v are smoothed, y has no mean: that which was written, whatever it is. It must be the mean of the rows to
// as much as above, with S the mean of their magnitudes; and S of y includes it, since it is rotated too.
#include "check/quantised.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "check/judge_scales.hpp"
#include "contract/quantise.h"
#include "src/base/storage.hpp"
#include "src/base/text.hpp"
#include "src/oracle/oracle.hpp"

namespace froghopper::check {
namespace {

struct Part {
  View Views::*to, Views::*scale, Views::*mean;
  Rows (*rows)(const Problem&, const Views&, int64_t);
};
constexpr Part parts[] = {{&Views::quantised_q, &Views::scale_q, nullptr, rows_q},
                          {&Views::quantised_k, &Views::scale_k, &Views::mean_k, rows_kv},
                          {&Views::quantised_v, &Views::scale_v, &Views::mean_v, rows_kv}};

// Which row of the scales goes with each row of the values; 0 where the row does not count.
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

// The same for means, of which each sequence and head has one.
std::vector<size_t> means_of_rows(const Problem& p, const Views& views, const Part& part) {
  const View& scale = views.*part.scale;
  std::vector<size_t> places = scales_of_rows(p, views, part);
  const auto heads = static_cast<size_t>(scale.heads), of_sequence = static_cast<size_t>(scale.seq) * heads;
  for (size_t& place : places) place = of_sequence == 0 ? 0 : place / of_sequence * heads + place % heads;
  return places;
}

double rounding(const Problem& p, double exact, double summed) {
  const double steps = 16 + std::log2(rotation_block(static_cast<int>(p.dim_qk)));
  return (steps * summed + 4 * std::fabs(exact)) * unit_roundoff(Element::f32);
}

std::string judge_means(const Problem& p, const Expected& expected, const std::vector<double>& found, Measures& m) {
  std::string why;
  const size_t dim = expected.rows.empty() ? 1 : expected.exact.size() / expected.rows.size();
  for (size_t i = 0; i < expected.exact.size(); ++i) {
    const double off = std::fabs(found[i] - expected.exact[i]);
    const double allowed = rounding(p, expected.exact[i], expected.summed[i]);
    m.error = std::max(m.error, off), m.allowed = std::max(m.allowed, allowed);
    if (!(off <= allowed) && why.empty())
      why = text("{} column {}: {} is {}, exact {}", place_of(expected, i / dim), i % dim, m.tensor, found[i],
                 expected.exact[i]);
  }
  return why;
}

// By how much the mean that was written is above the exact one, of each sequence, head and column; empty: none.
using Above = std::vector<double>;

std::string judge_values(const Problem& p, const Expected& expected, const std::vector<double>& found,
                         const std::vector<double>& scales, const Above& above, Measures& m) {
  std::string why;
  const size_t dim = expected.rows.empty() ? 1 : expected.exact.size() / expected.rows.size();
  double all_error = 0, all_norm = 0, along = 0, counted = 0;
  for (size_t i = 0; i < expected.exact.size(); ++i) {
    if (std::isnan(expected.exact[i])) continue;  // of no sequence: there may be no scale at all
    const double scale = scales[expected.scale_of_row[i / dim]];
    const double exact =
        expected.exact[i] - (above.empty() ? 0 : above[expected.mean_of_row[i / dim] * dim + i % dim]);
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
    const bool smooth = p.smooth && part.mean && (views.*part.mean).data;
    for (View Views::*const view : {smooth ? part.mean : nullptr, part.scale, part.to}) {
      if (view == nullptr) continue;
      const size_t i = index_of(view);
      Expected& expected = r.emplace_back(Expected{.tensor = &tensors()[i]});
      expected.rows = rows_of(expected.tensor->shape(p));
      expected.exact = std::move(answers.exact[i]);
      expected.summed = std::move(answers.summed[i]);
    }
    r.back().scale_of_row = scales_of_rows(p, views, part);
    if (smooth) r.back().mean_of_row = means_of_rows(p, views, part);
  }
  return r;
}

// The mean of a tensor comes before its scales, and these before its values.
void compare_quantised(const Problem& p, const Reference& reference, const Found& found, Outcome& out) {
  Above above;
  for (size_t i = 0; i < reference.size(); ++i) {
    const Expected& expected = reference[i];
    Measures& m = out.measures.emplace_back();
    m.tensor = expected.tensor->name;
    const View Views::*const tensor = expected.tensor->view;
    std::string why;
    if (tensor == &Views::mean_k || tensor == &Views::mean_v) {
      above = found[i];
      for (size_t j = 0; j < above.size(); ++j) above[j] -= expected.exact[j];
      why = judge_means(p, expected, found[i], m);
    } else if (expected.scale_of_row.empty()) {
      why = judge_scales(expected, found[i], m,
                         [&](double exact, double summed) { return rounding(p, exact, summed); });
    } else {
      why = judge_values(p, expected, found[i], found[i - 1], above, m);
      above.clear();
    }
    if (out.why.empty()) out.why = why;
  }
  out.passed = out.why.empty();
}

}  // namespace froghopper::check
