// SPDX-License-Identifier: Apache-2.0
// oracle: what an append problem writes, one row of a head after the other.
//
//   x      = the new row; with norm  x w / sqrt(mean of x^2 + epsilon)
//   rotated, of the pair of columns (a, b) and the angle of its position: (a cos - b sin, b cos + a sin)
//   stored = x / scale
#include <cmath>

#include "contract/quantise.h"
#include "src/base/storage.hpp"
#include "src/oracle/oracle.hpp"

namespace froghopper::oracle {
namespace {

std::vector<double> row_of(const View& view, int64_t batch, int64_t row, int64_t head) {
  std::vector<double> values(view.dim);
  load_row(view.data, view.at(batch, row, head), view.dim, view.element, values.data());
  return values;
}

void norm(const Problem& p, const View& weights, std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  const double root = std::sqrt(sum / static_cast<double>(x.size()) + p.norm_epsilon);
  const std::vector<double> w = weights.data ? row_of(weights, 0, 0, 0) : std::vector<double>(x.size(), 1.0);
  for (size_t c = 0; c < x.size(); ++c) x[c] *= w[c] / root;
}

// sizes: of what each value is a sum of.
void rotate(const Problem& p, const Views& views, int64_t position, std::vector<double>& x,
            std::vector<double>& sizes) {
  const std::vector<double> cos = row_of(views.rotary_cos, 0, position, 0),
                            sin = row_of(views.rotary_sin, 0, position, 0);
  for (int64_t i = 0; i < p.rotary_dim / 2; ++i) {
    const int64_t first = p.rotary_interleaved ? 2 * i : i;
    const int64_t second = p.rotary_interleaved ? 2 * i + 1 : i + p.rotary_dim / 2;
    const double a = x[first], b = x[second];
    x[first] = a * cos[i] - b * sin[i];
    x[second] = b * cos[i] + a * sin[i];
    sizes[first] = std::fabs(a * cos[i]) + std::fabs(b * sin[i]);
    sizes[second] = std::fabs(b * cos[i]) + std::fabs(a * sin[i]);
  }
}

double scale_of(const Problem& p, const View& scales, int64_t head, const std::vector<double>& x) {
  if (!scales.data) return 1;
  if (!p.scale_tokens) return scales.as<float>()[scales.at(0, 0, head)];
  double largest = 0;
  for (const double value : x) largest = std::max(largest, std::fabs(value));
  return largest > 0 ? std::max<double>(largest / largest_of(p.dtype_kv), smallest_scale) : 1;
}

}  // namespace

std::vector<AppendedRow> appended(const Problem& p, const Views& v) {
  std::vector<AppendedRow> rows;
  const auto add = [&](const View& from, View Views::*to, const PlaceOfRow& place, const View* weights, bool rotates,
                       View Views::*scales) {
    const bool unknown = rotates && (place.position < 0 || place.position >= p.rotary_rows);
    if (!from.data || unknown) return;
    const bool of_q = to == &Views::q_out;
    const int64_t batch = of_q ? place.batch : place.slot / p.extent_kv();
    const int64_t row = of_q ? place.row : place.slot % p.extent_kv();
    for (int64_t head = 0; head < from.heads; ++head) {
      AppendedRow made{.to = to, .scales = scales, .at = {batch, row, head}, .scale = 1, .exact = {}, .sizes = {}};
      made.exact = row_of(from, place.batch, place.row, head);
      if (weights && p.norm) norm(p, *weights, made.exact);
      for (const double x : made.exact) made.sizes.push_back(std::fabs(x));
      if (rotates) rotate(p, v, place.position, made.exact, made.sizes);
      if (!of_q) made.scale = scale_of(p, v.*scales, head, made.exact);
      rows.push_back(std::move(made));
    }
  };
  const bool rotates = p.rotary_dim > 0;
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t i = 0; i < rows_q(p, v, b).used; ++i) {
      const PlaceOfRow place = place_of_row(p, v, b, i);
      add(v.q, &Views::q_out, place, &v.norm_q, rotates, nullptr);
      if (place.slot < 0) continue;
      add(v.k, &Views::cache_k, place, &v.norm_k, rotates, &Views::scale_k);
      add(v.v, &Views::cache_v, place, nullptr, false, &Views::scale_v);
    }
  return rows;
}

}  // namespace froghopper::oracle
