// SPDX-License-Identifier: Apache-2.0
// check: attention by plain loops that add 8-bit products as a Hopper tensor core does.
//
// One wgmma of 8-bit types adds 32 products to each sum. What it does was found out by others with chosen inputs
// (DeepSeek-V3 technical report, 3.5.2; SageAttention2; Khattak and Mikaitis, Accurate Models of NVIDIA Tensor Cores;
// Microsoft's MMA-Sim has it as a program), and our own kernel on an H200 agrees (tests/tensor_core_test.cpp):
//
//   1. The 32 products and the sum so far are aligned to the largest exponent among them. A product has the sum of its
//      factors' exponents, which is its own or one less; a value that is not normal has that of the smallest one that
//      is.
//   2. Of each, 13 bits after that exponent are kept and the rest is cut off, towards 0.
//   3. They are added exactly, and of the result 13 bits after its own exponent are kept, again towards 0.
//
// So a sum is known to 2^-13 of its largest part, not to 2^-24, and products that are small compared with it vanish.
// How the kernel lives with that is in these loops too: k and v are multiplied without their scales, weights bring v's
// along, and O is put aside in fp32 every promotion_tiles tiles of keys, by parts where the kernel does so. Means of k
// and v come to the finished sums, in fp32.
#include "check/tensor_core.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "contract/fwd_variant.h"
#include "src/oracle/rows.hpp"

namespace froghopper::check {
namespace {

constexpr int64_t products_at_once = 32;
constexpr float kept = 0x1p13f;
constexpr int64_t tile = scale_block;  // keys

float power_of(float x) { return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0x7f800000u); }
float cut_off(float x) { return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & ~0x3ffu); }  // 13 of 23 bits

// The rows of one head of one sequence that count, as they are stored, or their columns.
Stored stored(const View& view, const KvRows& place, int64_t rows, int64_t head, bool transposed) {
  std::array<Stored::Value, 256> all;
  for (size_t bits = 0; bits < all.size(); ++bits) {
    const auto byte = static_cast<uint8_t>(bits);
    all[bits] =
        Stored::value_of(view.element == Element::e5m2 ? e5m2_to_float(byte) : e4m3_to_float(byte), view.element);
  }
  Stored m(transposed ? view.dim : rows, transposed ? rows : view.dim);
  for (int64_t i = 0; i < rows; ++i) {
    const auto* const row = view.as<const uint8_t>() + place.at(i, head);
    for (int64_t c = 0; c < view.dim; ++c) m.set(transposed ? c * rows + i : i * view.dim + c, all[row[c]]);
  }
  return m;
}

// What one query head of one sequence reads.
struct Head {
  int64_t index;
  Stored q, k_columns, v;
  Scales scale_q, scale_k, scale_v;
  const float *mean_k, *mean_v;  // null: none

  Head(const Problem& p, const Views& views, const oracle::Sequence& s, int64_t head)
      : Head(p, views, s, head, head / (p.heads_q / p.heads_kv)) {}

 private:
  Head(const Problem& p, const Views& views, const oracle::Sequence& s, int64_t head, int64_t head_kv)
      : index(head),
        q(stored(views.q, {views.q, s.of_q(), {}, s.index}, s.rows_q, head, /*transposed=*/false)),
        k_columns(stored(views.k, k_rows(views, s.of_kv(), s.index), s.rows_kv, head_kv, /*transposed=*/true)),
        v(stored(views.v, v_rows(views, s.of_kv(), s.index), s.rows_kv, head_kv, /*transposed=*/false)),
        scale_q(p, views.scale_q, s.index, head),
        scale_k(p, views.scale_k, s.index, head_kv),
        scale_v(p, views.scale_v, s.index, head_kv),
        mean_k(oracle::mean_of(views.mean_k, s, head_kv)),
        mean_v(oracle::mean_of(views.mean_v, s, head_kv)) {}
};

std::vector<float> scores_of(const Problem& p, const Head& head, int64_t i, const Visible& keys) {
  std::vector<float> all(keys.end - keys.begin, 0.0f);
  for (int64_t c = 0; c < p.dim_qk; c += products_at_once)
    add_products(head.q, i * p.dim_qk + c, head.k_columns, c, std::min(products_at_once, p.dim_qk - c), keys.begin,
                 all);
  const float scale = p.scale * head.scale_q.at(i, 0);
  for (size_t j = 0; j < all.size(); ++j) {
    all[j] *= scale * head.scale_k.at(keys.begin + static_cast<int64_t>(j), 0);
    if (p.softcap != 0) all[j] = p.softcap * std::tanh(all[j] / p.softcap);
  }
  return all;
}

// By how much the mean of k raises all scores of a row.
float raised_by_mean(const Problem& p, const Head& head, int64_t i) {
  float sum = 0;
  for (int64_t c = 0; head.mean_k && c < p.dim_qk; ++c) sum += head.q.values[i * p.dim_qk + c] * head.mean_k[c];
  return sum * p.scale * head.scale_q.at(i, 0);
}

// Sums of weights times v, in units of v's scale where that belongs to a column. Kernels walk the keys from the last
// tile to the first; of several slices of O one is put aside before every tile whose number is a multiple of step.
std::vector<float> outputs_of(const Problem& p, const Head& head, const Stored& weights, int64_t first) {
  std::vector<float> all(p.dim_v, 0.0f), sums(p.dim_v, 0.0f);
  const auto keys = static_cast<int64_t>(weights.values.size());
  const int slices = promotion_slices(static_cast<int>(p.dim_v), p.masked());
  constexpr int64_t columns = 256;  // of the kernel that has slices
  const int64_t last = (keys - 1) / tile, step = promotion_tiles / slices;
  for (int64_t at = last; at >= 0; --at) {
    const int64_t end = std::min(keys, (at + 1) * tile), next = at - 1;
    for (int64_t j = at * tile; j < end; j += products_at_once)
      add_products(weights, j, head.v, first + j, std::min(products_at_once, end - j), 0, sums);
    const bool due = next > 0 && next % step == 0 && last > promotion_tiles;
    for (int64_t c = 0; c < p.dim_v; ++c)
      if (at == 0 || (due && next % promotion_tiles / step == c * slices / columns))
        all[c] += std::exchange(sums[c], 0.0f);
  }
  return all;
}

// raised: raised_by_mean() of this row.
void attend_row(const Problem& p, const Views& views, const Head& head, const std::vector<float>& scores,
                float raised, const Visible& keys, const std::vector<float>& gate, double* o, double* lse) {
  const float its_sink = p.sink ? views.sink.as<float>()[head.index] : 0;
  if (scores.empty()) {  // no output; only the sink is in the denominator
    if (p.sink) *lse = its_sink;
    return;
  }
  const float sink = its_sink - raised;

  float largest = *std::ranges::max_element(scores), largest_scale = 0;
  if (p.sink) largest = std::max(largest, sink);
  // A scale of a column is the same for all keys and is taken at the end; others belong to the weights.
  const auto scale_of = [&](int64_t j) { return head.scale_v.by_column() ? 1.0f : head.scale_v.at(j, 0); };
  for (int64_t j = keys.begin; j < keys.end; ++j) largest_scale = std::max(largest_scale, scale_of(j));

  // The largest weight is 256: the larger the values, the fewer of the small ones vanish, and e4m3 ends at 448. The
  // sum is of unrounded ones.
  constexpr float largest_weight = 256;
  const float of_sink = p.sink ? oracle::weight_below(largest, sink) : 0;
  float of_keys = 0;
  Stored weights(1, keys.end - keys.begin);
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    const float weight = oracle::weight_below(largest, scores[j - keys.begin]);
    of_keys += weight;
    const float with_v_scale = largest_weight * weight * (scale_of(j) / largest_scale);
    weights.set(j - keys.begin, Stored::value_of(rounded(with_v_scale, Dtype::e4m3), Element::e4m3));
  }
  const float denominator = of_keys + of_sink;
  const std::vector<float> sums = outputs_of(p, head, weights, keys.begin);
  for (int64_t c = 0; c < p.dim_v; ++c) {
    const float unit = head.scale_v.by_column() ? head.scale_v.at(0, c) : largest_scale;
    const float mean = head.mean_v ? head.mean_v[c] * (of_keys / denominator) : 0;
    o[c] = rounded((sums[c] / denominator * (unit / largest_weight) + mean) * gate[c], p.dtype_o);
  }
  *lse = largest + std::log(denominator) + raised;
}

}  // namespace

Stored::Value Stored::value_of(float number, Element type) {
  const float least = type == Element::e5m2 ? 0x1p-14f : 0x1p-6f;
  return {number, number == 0 ? 0 : std::max(power_of(number), least)};
}

void add_products(const Stored& x, int64_t at, const Stored& rows, int64_t first, int64_t count, int64_t begin,
                  std::vector<float>& sums) {
  const size_t lanes = sums.size();
  std::vector<float> largest(lanes);
  std::vector<int32_t> total(lanes);
  for (size_t i = 0; i < lanes; ++i) largest[i] = power_of(sums[i]);
  for (int64_t j = 0; j < count; ++j) {
    const float power = x.powers[at + j];
    const float* const row = &rows.powers[(first + j) * rows.columns + begin];
    for (size_t i = 0; i < lanes; ++i) largest[i] = std::max(largest[i], power * row[i]);
  }
  // From here on in units of the last bit that is kept. All 0: any unit will do.
  for (float& power : largest) power = kept / std::max(power, std::numeric_limits<float>::min());
  for (size_t i = 0; i < lanes; ++i) total[i] = static_cast<int32_t>(sums[i] * largest[i]);
  for (int64_t j = 0; j < count; ++j) {
    const float number = x.values[at + j];
    const float* const row = &rows.values[(first + j) * rows.columns + begin];
    for (size_t i = 0; i < lanes; ++i) total[i] += static_cast<int32_t>(number * row[i] * largest[i]);
  }
  for (size_t i = 0; i < lanes; ++i) sums[i] = cut_off(static_cast<float>(total[i]) / largest[i]);
}

namespace {

oracle::Answers as_tensor_cores_add(const Problem& p, const Views& views, const std::vector<oracle::RowId>& rows) {
  return oracle::attend_rows<Head>(p, views, rows,
                                   [&](const oracle::Sequence& s, const Head& head,
                                       std::span<const oracle::RowsOfHead::Row> some, double* o, double* lse) {
                                     std::vector<std::vector<float>> all;
                                     for (const auto& [i, place] : some) {
                                       const Visible keys = oracle::keys_of(p, s, i);
                                       std::vector<float> scores = scores_of(p, head, i, keys);
                                       const float raised = raised_by_mean(p, head, i);
                                       const oracle::Gate<float> gate(p, views, s, head.index, i);
                                       attend_row(p, views, head, scores, raised, keys, gate.sigmoid,
                                                  o + place * p.dim_v, lse + place);
                                       for (float& score : scores) score += raised;
                                       all.push_back(std::move(scores));
                                     }
                                     return all;
                                   });
}

}  // namespace

oracle::Answers plain_loops(Backend backend, const Problem& p, const Views& views) {
  if (p.backward()) return oracle::compute_same_precision(p, views);
  return plain_loops(backend, p, views, oracle::query_rows(p));
}

oracle::Answers plain_loops(Backend backend, const Problem& p, const Views& views,
                            const std::vector<oracle::RowId>& rows) {
  if (backend == Backend::hopper && is_8_bit(p.dtype)) return as_tensor_cores_add(p, views, rows);
  return oracle::compute_same_precision(p, views, rows);
}

}  // namespace froghopper::check
