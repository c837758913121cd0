// SPDX-License-Identifier: Apache-2.0
// oracle: gradients in the arithmetic of the storage type, by the formulas of backward.cpp.
#include <array>

#include "src/oracle/gradients.hpp"
#include "src/oracle/terms.hpp"

namespace froghopper::oracle {
namespace {

// plain: its scores without alibi.
void add_row_same_precision(const Problem& p, const Views& views, const Sequence& s, const BothWays<float>& head,
                            int64_t i, const Visible& visible, const std::vector<float>& plain, int64_t sink_number,
                            Sums<float>& sums) {
  Given<float> given(views, s, head.index, i);
  const Rows row{s.batch, s.first_q + i, 1, 1};
  const std::vector<float> o = read<float>(views.o, {views.o, row, {}, s.index}, 1, head.index, {p, {}, 0, 0}).values;
  const float lse = views.lse.as<float>()[views.lse.at(s.batch, s.first_q + i, head.index)];
  const float delta = dot(given.grad_o.data(), o.data(), p.dim_v) - given.grad_lse;
  if (p.sink) sums.sink[sink_number] -= weight_of_sink(views, head.index, lse) * delta;

  const Dense dense(p);
  const Gate<float> gate(p, views, s, head.index, i);
  for (int64_t c = 0; p.gate && visible.begin < visible.end && c < p.dim_v; ++c) {
    sums.gate[dense.q(s, i, head.index, p.dim_v) + c] = given.grad_o[c] * o[c] * gate.rest[c];
    given.grad_o[c] = rounded(given.grad_o[c] * gate.sigmoid[c], p.dtype);
  }
  float* const grad_q = sums.q.data() + dense.q(s, i, head.index, p.dim_qk);
  const std::vector<float> all_s = with_alibi(head, i, visible, plain);
  const std::vector<float> dp = dots<float>({given.grad_o.data()}, head.v_columns, {visible})[0];
  std::vector<Term<float>> of_q;
  const auto add_one = [](float* sums, float factor, const float* x, int64_t count) {
    add<float>(sums, std::array{Term<float>{factor, x}}, count, product);
  };
  for (int64_t j = visible.begin; j < visible.end; ++j) {
    const float s_j = all_s[j - visible.begin], grad_weight = dp[j - visible.begin];
    const float weight = weight_below(lse, s_j);
    const float ds = rounded(weight * (grad_weight - delta) * slope_of(p, plain[j - visible.begin]), p.dtype);
    const float factor = rounded(weight, p.dtype);
    float* const grad_k = sums.k.data() + dense.kv(s, j, head.index_kv, p.dim_qk);
    float* const grad_v = sums.v.data() + dense.kv(s, j, head.index_kv, p.dim_v);
    add_one(grad_v, factor, given.grad_o.data(), p.dim_v);
    add_one(grad_k, ds, head.q.row(i), p.dim_qk);
    of_q.push_back({ds, head.k.row(j)});
  }
  add<float>(grad_q, of_q, p.dim_qk, product);
}

}  // namespace

Answers gradients_same_precision(const Problem& p, const Views& views) {
  Sums<float> sums(p);
  each_group(p, views, [&](const Sequence& s, int64_t index, int64_t head_kv) {
    each_head<float>(p, views, s, index, head_kv, [&](const BothWays<float>& head, int64_t sink_number) {
      for (int64_t first = 0; first < s.rows_q; first += rows_at_once) {
        std::vector<int64_t> rows;
        std::vector<Visible> keys;
        for (int64_t i = first; i < std::min(first + rows_at_once, s.rows_q); ++i)
          rows.push_back(i), keys.push_back(keys_of(p, s, i));
        const auto plain = plain_scores(p, head, rows, keys);
        for (size_t n = 0; n < rows.size(); ++n)
          add_row_same_precision(p, views, s, head, rows[n], keys[n], plain[n], sink_number, sums);
      }
    });
  });
  return answers_of(p, views, sums, [&](float x, float held, Element element) -> double {
    return element == Element::f32 ? held + x : rounded(x, p.dtype);
  });
}

}  // namespace froghopper::oracle
