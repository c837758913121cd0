// SPDX-License-Identifier: Apache-2.0
// problem: whether scales of 8-bit numbers are some. Reads them, so it is for host memory; a kernel on a GPU computes
// with what is there.
#include "src/base/text.hpp"
#include "src/problem/tensors.hpp"

namespace froghopper {
namespace {

using RowsOf = Rows (*)(const Problem&, const Views&, int64_t sequence);

std::string wrong_scale(const Problem& p, const Views& views, const char* name, const View& scales, RowsOf rows_of) {
  if (scales.empty()) return {};  // also where there may be any number of sequences
  for (int64_t b = 0; b < scales.batch; ++b) {
    const int64_t blocks = std::min(scales.seq, p.scale_blocks(rows_of(p, views, b).used));
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t head = 0; head < scales.heads; ++head) {
        for (int64_t column = 0; column < scales.dim; ++column) {
          const float scale = scales.as<float>()[scales.at(b, block, head) + column];
          if (!(scale >= 0x1p-126f && scale <= 0x1p126f))  // so that one over it is such a number too
            return text(
                "{}[{}, {}, {}, {}] is {}; a scale is positive, from 1.2e-38 to 8.5e37 (2^-126 to 2^126). Use 1 "
                "for numbers that stand for themselves.",
                name, b, block, head, column, scale);
        }
      }
    }
  }
  return {};
}

}  // namespace

Result<void> check_scales(const Problem& p, const Views& views) {
  const struct {
    const char* name;
    const View& view;
    RowsOf rows;
  } all[] = {
      {"scale_q", views.scale_q, rows_q}, {"scale_k", views.scale_k, rows_kv}, {"scale_v", views.scale_v, rows_kv}};
  for (const auto& scales : all) {
    std::string wrong = wrong_scale(p, views, scales.name, scales.view, scales.rows);
    if (!wrong.empty()) return Failure{FH_INVALID_TENSOR, std::move(wrong)};
  }
  return {};
}

}  // namespace froghopper
