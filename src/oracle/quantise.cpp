// SPDX-License-Identifier: Apache-2.0
// oracle: what a quantise problem stands for, in double: q and k rotated and v, without their means where they are
// smoothed, as values, not divided by a scale; the means; and the scales. What is stored is each value divided by the
// scale that was written, rounded: that is the judge's. The rotation is its matrix, contract/quantise.h, one product
// after the other.
#include <algorithm>
#include <limits>

#include "contract/quantise.h"
#include "src/oracle/rows.hpp"

namespace froghopper::oracle {
namespace {

constexpr double nothing = std::numeric_limits<double>::quiet_NaN();  // of rows that do not count

struct Row {
  std::vector<double> values, summed;
};

Row rotated(const std::vector<double>& row, uint32_t seed) {
  const int dim = static_cast<int>(row.size()), block = rotation_block(dim);
  Row out{std::vector<double>(dim, 0.0), std::vector<double>(dim, 0.0)};
  for (int i = 0; i < dim; ++i) {
    const int first = i / block * block;
    for (int j = first; j < first + block; ++j) {
      const bool flips = rotation_flips(seed, j) != hadamard_flips(i - first, j - first);
      out.values[i] += flips ? -row[j] : row[j];
      out.summed[i] += std::fabs(row[j]);
    }
    out.values[i] /= std::sqrt(static_cast<double>(block));
    out.summed[i] /= std::sqrt(static_cast<double>(block));
  }
  return out;
}

struct Part {
  View Views::*from, Views::*to, Views::*scale, Views::*mean;
  Rows (*rows)(const Problem&, const Views&, int64_t);
  bool rotates;
};
constexpr Part parts[] = {{&Views::q, &Views::quantised_q, &Views::scale_q, nullptr, rows_q, true},
                          {&Views::k, &Views::quantised_k, &Views::scale_k, &Views::mean_k, rows_kv, true},
                          {&Views::v, &Views::quantised_v, &Views::scale_v, &Views::mean_v, rows_kv, false}};

Row row_of(const Problem& p, const View& from, bool rotates, int64_t begin) {
  Row row{std::vector<double>(from.dim), std::vector<double>(from.dim, 0.0)};
  load_row(from.data, begin, from.dim, from.element, row.values.data());
  return rotates ? rotated(row.values, p.rotate_seed) : row;
}

// Of these rows, each value and the magnitudes it is made of, its own where nothing is rotated.
Row mean_of(const Problem& p, const View& from, bool rotates, const Rows& rows, int64_t head) {
  Row mean{std::vector<double>(from.dim, 0.0), std::vector<double>(from.dim, 0.0)};
  const auto count = static_cast<double>(rows.used);
  for (int64_t i = 0; i < rows.used; ++i) {
    const Row row = row_of(p, from, rotates, from.at(rows.batch, rows.first + i, head));
    for (int64_t c = 0; c < from.dim; ++c) {
      mean.values[c] += row.values[c] / count;
      mean.summed[c] += (rotates ? row.summed[c] : std::fabs(row.values[c])) / count;
    }
  }
  return mean;
}

void compute(const Problem& p, const Views& views, const Part& part, Quantised& answers) {
  const View &from = views.*part.from, &scale = views.*part.scale;
  const size_t to = index_of(part.to), of_scale = index_of(part.scale);
  std::vector<double>&values = answers.exact[to], &scales = answers.exact[of_scale];
  std::vector<double>&summed = answers.summed[to], &scales_summed = answers.summed[of_scale];
  values.assign(from.batch * from.seq * from.heads * from.dim, nothing);
  summed.assign(values.size(), 0.0);
  scales.assign(scale.batch * scale.seq * scale.heads, 0.0);
  scales_summed.assign(scales.size(), 0.0);
  const bool smooth = p.smooth && part.mean;
  const size_t of_mean = smooth ? index_of(part.mean) : 0;
  for (std::vector<double>* const means : {&answers.exact[of_mean], &answers.summed[of_mean]})
    if (smooth) means->assign(p.batch * p.heads_kv * from.dim, 0.0);
  const double largest_stored = largest_of(p.dtype_kv);
  for_each(from.empty() && scale.empty() ? 0 : p.batch * from.heads, [&](int64_t pair) {
    const int64_t sequence = pair / from.heads, head = pair % from.heads;
    const Rows rows = part.rows(p, views, sequence);
    const bool rotates = p.rotate && part.rotates;
    const Row mean = smooth ? mean_of(p, from, rotates, rows, head) : Row();
    if (smooth) {
      std::ranges::copy(mean.values, &answers.exact[of_mean][pair * from.dim]);
      std::ranges::copy(mean.summed, &answers.summed[of_mean][pair * from.dim]);
    }
    const auto place_of_block = [&](int64_t block) { return (sequence * scale.seq + block) * scale.heads + head; };
    for (int64_t i = 0; i < rows.used; ++i) {
      Row row = row_of(p, from, rotates, from.at(rows.batch, rows.first + i, head));
      for (int64_t c = 0; smooth && c < from.dim; ++c) {
        row.values[c] -= mean.values[c];
        if (rotates) row.summed[c] += mean.summed[c];
      }
      const int64_t block = place_of_block(p.scale_rows > 0 ? i / p.scale_rows : 0);
      for (const double value : row.values)
        scales[block] = std::max(scales[block], std::fabs(value) / largest_stored);
      for (int64_t c = 0; c < from.dim; ++c)
        scales_summed[block] =
            std::max(scales_summed[block], (row.summed[c] + (smooth ? mean.summed[c] : 0)) / largest_stored);
      const int64_t place = ((rows.batch * from.seq + rows.first + i) * from.heads + head) * from.dim;
      std::ranges::copy(row.values, &values[place]);
      std::ranges::copy(row.summed, &summed[place]);
    }
    for (int64_t block = 0; block < scale.seq; ++block) {
      double& its = scales[place_of_block(block)];
      its = its > 0 ? std::max<double>(its, smallest_scale) : 1;
    }
  });
}

}  // namespace

Quantised quantised(const Problem& p, const Views& views) {
  Quantised answers{Answers(tensors().size()), Answers(tensors().size())};
  for (const Part& part : parts)
    if ((views.*part.to).data || (views.*part.scale).data || (part.mean && (views.*part.mean).data))
      compute(p, views, part, answers);  // without rows there are scales and means all the same
  return answers;
}

}  // namespace froghopper::oracle
