// SPDX-License-Identifier: Apache-2.0
// check: the judge of append problems. As of quantise problems, what must be stored is known.
//
// Let x be a number in exact arithmetic, S the sum of the magnitudes that its rotation adds up, |x| without one, and c
// its scale: the one that is given or, where rows have their own, the one that was written; 1 without scales. fp32
// knows x to d = 8 u32 S, and with norm to 64 u32 S: the row's sum of squares has up to 512 values, one after the
// other at worst. What is stored may be off by one more rounding,
//
//   d/c + max(u (|x/c| + d/c), s/2)
//
// with u and s of the stored type: the largest relative error of a rounding, and the smallest number above 0. A scale
// is the row's largest |x| over the type's largest value, known to 2 d of the row's largest S in the same unit.
#include "check/appended.hpp"

#include <algorithm>
#include <cmath>

#include "check/judge_scales.hpp"
#include "contract/quantise.h"
#include "src/base/storage.hpp"
#include "src/base/text.hpp"

namespace froghopper::check {
namespace {

double arithmetic(const Problem& p) { return (p.norm ? 64 : 8) * unit_roundoff(Element::f32); }

double smallest_above_0(Element e) {
  switch (e) {
    case Element::f16: return 0x1p-24;
    case Element::e4m3: return 0x1p-9;
    case Element::e5m2: return 0x1p-16;
    default: return 0x1p-133;
  }
}

bool is_scale(const Expected& expected) {
  return expected.tensor->view == &Views::scale_k || expected.tensor->view == &Views::scale_v;
}

std::string judge_values(const Problem& p, const Expected& expected, const std::vector<double>& found,
                         const std::vector<double>& scales, Measures& m) {
  const Element element = expected.tensor->shape(p).element;
  const double u = unit_roundoff(element), least = smallest_above_0(element);
  const double most = is_8_bit(p.dtype_kv) && !scales.empty() ? largest_of(p.dtype_kv) : HUGE_VAL;
  const size_t dim = expected.rows.empty() ? 1 : expected.exact.size() / expected.rows.size();
  double all_error = 0, all_norm = 0, along = 0;
  std::string why;
  for (size_t i = 0; i < expected.exact.size(); ++i) {
    const double scale = scales.empty() ? 1 : scales[i / dim];
    const double exact = std::clamp(expected.exact[i] / scale, -most, most);
    const double before = arithmetic(p) * expected.summed[i] / scale;
    const double allowed = before + std::max(u * (std::fabs(exact) + before), least / 2);
    const double off = found[i] - exact, plain = rounded(static_cast<float>(exact), *dtype_of(element)) - exact;
    m.error = std::max(m.error, std::fabs(off) * scale);
    m.plain_error = std::max(m.plain_error, std::fabs(plain) * scale);
    m.allowed = std::max(m.allowed, allowed * scale);
    all_error += off * off * scale * scale, all_norm += exact * exact * scale * scale;
    along += off * exact * scale * scale;
    if (!(std::fabs(off) <= allowed) && why.empty())
      why = text("{} column {}: {} is {}, exact {} within {}", place_of(expected, i / dim), i % dim, m.tensor,
                 found[i], exact, allowed);
  }
  if (all_norm > 0) m.relative = std::sqrt(all_error / all_norm), m.mean_gain = along / all_norm;
  if (!found.empty()) m.rmse = std::sqrt(all_error / static_cast<double>(found.size()));
  return why;
}

}  // namespace

Reference appended_rows(const Problem& p, const Views& views) {
  const std::vector<oracle::AppendedRow> rows = oracle::appended(p, views);
  Reference r;
  for (View Views::*const view : {&Views::q_out, &Views::cache_k, &Views::cache_v}) {
    if (!(views.*view).data) continue;  // left out
    Expected values{.tensor = &tensors()[index_of(view)], .others_stay = true};
    Expected scales{.tensor = nullptr, .others_stay = true};
    for (const oracle::AppendedRow& row : rows) {
      if (row.to != view) continue;
      values.rows.push_back(row.at);
      values.exact.insert(values.exact.end(), row.exact.begin(), row.exact.end());
      values.summed.insert(values.summed.end(), row.sizes.begin(), row.sizes.end());
      if (row.scales == nullptr || !(views.*row.scales).data) continue;
      scales.tensor = &tensors()[index_of(row.scales)];
      scales.rows.push_back(row.at);
      scales.exact.push_back(row.scale);
      scales.summed.push_back(std::ranges::max(row.sizes) / largest_of(p.dtype_kv));
    }
    const bool of_rows = p.scale_tokens && scales.tensor != nullptr;
    if (!of_rows) values.divisors = scales.exact;
    if (of_rows) r.push_back(std::move(scales));
    r.push_back(std::move(values));
  }
  return r;
}

void compare_appended(const Problem& p, const Reference& reference, const Found& found, Outcome& out) {
  const auto allowed_scale = [&](double exact, double summed) { return 2 * arithmetic(p) * std::max(exact, summed); };
  for (size_t i = 0; i < reference.size(); ++i) {
    const Expected& expected = reference[i];
    Measures& m = out.measures.emplace_back();
    m.tensor = expected.tensor->name;
    const bool has_own = i > 0 && is_scale(reference[i - 1]);
    const std::string why = is_scale(expected)
                                ? judge_scales(expected, found[i], m, allowed_scale)
                                : judge_values(p, expected, found[i], has_own ? found[i - 1] : expected.divisors, m);
    if (out.why.empty()) out.why = why;
  }
  out.passed = out.why.empty();
}

}  // namespace froghopper::check
