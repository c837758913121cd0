// SPDX-License-Identifier: Apache-2.0
// problem: whether scales of 8-bit values are some. Reads them, so it is for host memory; a kernel on a GPU computes
// with what is there.
#include "src/base/scale.hpp"
#include "src/base/text.hpp"
#include "src/problem/tensors.hpp"

namespace froghopper {
namespace {

using RowsOf = Rows (*)(const Problem&, const Views&, int64_t sequence);

// Which scale that is, of as many as its tensor has along an axis.
std::string place(int64_t sequence, const View& scales, int64_t block, int64_t head, int64_t column) {
  return text("sequence {}{}, head {}{}", sequence, scales.seq > 1 ? text(", block {}", block) : "", head,
              scales.dim > 1 ? text(", column {}", column) : "");
}

std::string wrong_scale(const Problem& p, const Views& views, const char* name, const View& scales, RowsOf rows_of) {
  if (scales.empty()) return {};  // also where there may be any number of sequences
  for (int64_t b = 0; b < scales.batch; ++b) {
    const int64_t blocks = std::min(scales.seq, p.scale_blocks(rows_of(p, views, b).used));
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t head = 0; head < scales.heads; ++head) {
        for (int64_t column = 0; column < scales.dim; ++column) {
          const float scale = scales.as<float>()[scales.at(b, block, head) + column];
          if (const std::string why = why_no_scale(scale); !why.empty())
            return text("{} of {} is {}", name, place(b, scales, block, head, column), why);
        }
      }
    }
  }
  return {};
}

// The same where each row of k and v has its own.
std::string wrong_scale_of_token(const Problem& p, const Views& views, const char* name, View Views::*of) {
  const View &scales = views.*of, &table = views.block_table;
  if (scales.empty()) return {};
  for (int64_t b = 0; b < p.batch; ++b) {
    const Rows rows = rows_kv(p, views, b);
    for (int64_t i = 0; i < rows.used; ++i) {
      const int64_t batch = p.paged() ? table.as<int32_t>()[table.at(b, i / p.page_size, 0)] : rows.batch,
                    row = p.paged() ? i % p.page_size : rows.first + i;
      for (int64_t head = 0; head < scales.heads; ++head)
        if (const std::string why = why_no_scale(scales.as<float>()[scales.at(batch, row, head)]); !why.empty())
          return text("{} of {} {}, row {}, head {} is {}", name, p.paged() ? "page" : "sequence", batch, row, head,
                      why);
    }
  }
  return {};
}

}  // namespace

Scales scales_of_kv(const Problem& p, const Views& views, View Views::*of, const Rows& rows, int64_t sequence,
                    int64_t head) {
  const View& scales = views.*of;
  if (p.scale_tokens && scales.data) return {scales, {scales, rows, views.block_table, sequence}, head};
  return {p, scales, sequence, head};
}

std::string why_no_scale(float x) {
  if (x >= 0x1p-126f && x <= 0x1p126f) return {};  // so that one over it is such a value too
  return text(
      "{}; a scale is positive, from 1.2e-38 to 8.5e37 (2^-126 to 2^126). Use 1 for values that stand for "
      "themselves.",
      x);
}

Result<void> check_scales(const Problem& p, const Views& views) {
  const struct {
    const char* name;
    View Views::*view;
    RowsOf rows;
  } all[] = {{"scale_q", &Views::scale_q, rows_q},
             {"scale_k", &Views::scale_k, rows_kv},
             {"scale_v", &Views::scale_v, rows_kv}};
  for (const auto& scales : all) {
    const bool of_tokens = p.scale_tokens && scales.view != &Views::scale_q;
    std::string wrong = of_tokens ? wrong_scale_of_token(p, views, scales.name, scales.view)
                                  : wrong_scale(p, views, scales.name, views.*scales.view, scales.rows);
    if (!wrong.empty()) return Failure{FH_INVALID_TENSOR, std::move(wrong)};
  }
  return {};
}

}  // namespace froghopper
