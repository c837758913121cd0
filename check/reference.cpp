// SPDX-License-Identifier: Apache-2.0
// check: the oracle's answers, for all rows or, where that would take minutes, for some of them. Some rows of
// gradients: groups.cpp.
#include <algorithm>
#include <cmath>

#include "check/compare.hpp"
#include "check/data.hpp"
#include "check/groups.hpp"
#include "check/quantised.hpp"
#include "check/tensor_core.hpp"
#include "src/base/text.hpp"
#include "src/oracle/oracle.hpp"
#include "src/problem/mask.hpp"

namespace froghopper::check {

std::vector<RowId> rows_of(const Shape& shape) {
  std::vector<RowId> rows;
  if (shape.seq == 0 || shape.heads == 0) return rows;  // there may be any number of sequences without rows
  for (int64_t b = 0; b < shape.batch; ++b)
    for (int64_t row = 0; row < shape.seq; ++row)
      for (int64_t head = 0; head < shape.heads; ++head) rows.push_back({b, row, head});
  return rows;
}

namespace {

// The oracle's answers are dense and in the order of rows, as the reference is.
Reference all_rows(const Problem& p, const Views& views, PlainLoops plain_loops) {
  oracle::Answers exact = oracle::compute(p, views), same_precision = plain_loops(p, views);
  Reference r = written_tensors(p);
  for (Expected& expected : r) {
    const size_t i = index_of(expected.tensor->view);
    expected.rows = rows_of(expected.tensor->shape(p));
    expected.exact = std::move(exact[i]);
    expected.same_precision = std::move(same_precision[i]);
  }
  return r;
}

Reference all_gradients(const Problem& p, const Views& views) {
  oracle::Gradients g = oracle::compute_gradients(p, views);
  oracle::Answers same_precision = oracle::compute_same_precision(p, views);
  Reference r = written_tensors(p);
  for (Expected& expected : r) {
    const size_t i = index_of(expected.tensor->view);
    expected.rows = rows_of(expected.tensor->shape(p));
    expected.exact = std::move(g.exact[i]);
    expected.same_precision = std::move(same_precision[i]);
    expected.rounded = std::move(g.rounded[i]);
    expected.summed = std::move(g.summed[i]);
    expected.largest_lse = largest_lse(p, views);
  }
  return r;
}

// Rows at both ends of the tensor and pseudo-random ones between. So many miss an error in a 64th of all rows in 2 of
// 100 cases, (63/64)^256, and each row costs the oracle little more than its keys.
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

// One row is a problem of its own: one query, the keys that it sees, no mask.
struct RowProblem {
  Problem problem;
  Views views;
  std::vector<float> scale_q, scale_k, scale_v;  // of 8-bit types, for each row
};

View one_head(const View& x, int64_t batch, int64_t row, int64_t head, int64_t rows) {
  View one = x;
  one.data = x.address(batch, row, head);
  one.batch = one.heads = 1;
  one.seq = rows;
  one.stride_batch = one.stride_head = 0;
  if (rows <= 1) one.stride_seq = 0;
  return one;
}

// Where a query row belongs and what it sees. A row of no sequence, or one that does not count, has no sequence.
struct Seen {
  bool counts = false;  // false: o = 0 and lse = -inf, whatever the sink
  int64_t batch_kv = 0, first = 0, count = 0;
  int64_t sequence = 0, row = 0, begin = 0;  // the row in it, and the first key
};

Seen keys_of_row(const Problem& p, const Views& views, const RowId& id) {
  int64_t sequence = id.batch, row = id.row;
  if (p.varlen) {
    const auto* const cu = views.cu_seqlens_q.as<int32_t>();
    sequence = std::upper_bound(cu, cu + p.batch + 1, static_cast<int32_t>(id.row)) - cu - 1;
    if (sequence == p.batch) return {};
    row -= cu[sequence];
  }
  const Rows q = rows_q(p, views, sequence), kv = rows_kv(p, views, sequence);
  if (row >= q.used) return {};
  const Visible keys = visible_keys(p, q.used, kv.used, row);
  if (keys.end <= keys.begin) return {.counts = true, .sequence = sequence, .row = row};
  return {.counts = true,
          .batch_kv = kv.batch,
          .first = kv.first + keys.begin,
          .count = keys.end - keys.begin,
          .sequence = sequence,
          .row = row,
          .begin = keys.begin};
}

// Blocks of rows do not begin where the keys of a row do, so each key gets its scale.
View scales_of_rows(const Problem& p, const View& all, int64_t sequence, int64_t first, int64_t rows, int64_t head,
                    std::vector<float>& numbers) {
  if (!all.data || rows == 0) return {};
  if (all.dim > 1) return one_head(all, sequence, 0, head, 1);
  const Scales scales(p, all, sequence, head);
  for (int64_t i = 0; i < rows; ++i) numbers.push_back(scales.at(first + i, 0));
  return {.data = numbers.data(),
          .element = Element::f32,
          .batch = 1,
          .seq = rows,
          .heads = 1,
          .dim = 1,
          .stride_seq = 1};
}

RowProblem problem_of_row(const Problem& p, const Views& views, const RowId& id) {
  const Seen seen = keys_of_row(p, views, id);
  const int64_t head_kv = id.head / (p.heads_q / p.heads_kv);
  RowProblem r;
  r.problem = p;
  Problem& one = r.problem;
  one.batch = one.heads_q = one.heads_kv = one.seq_q = 1;
  one.seq_kv = seen.count;
  one.varlen = one.seqused = false;
  one.total_q = one.total_kv = 0;
  one.align = FH_BOTTOM_RIGHT;
  one.window_left = one.window_right = all_keys;
  one.attention_chunk = 0;
  one.sink = p.sink && seen.counts;
  r.views.q = one_head(views.q, id.batch, id.row, id.head, 1);
  r.views.k = one_head(views.k, seen.batch_kv, seen.first, head_kv, seen.count);
  r.views.v = one_head(views.v, seen.batch_kv, seen.first, head_kv, seen.count);
  if (one.sink) r.views.sink = one_head(views.sink, 0, 0, id.head, 1);
  if (one.merges()) {
    r.views.o = one_head(views.o, id.batch, id.row, id.head, 1);
    r.views.lse = one_head(views.lse, id.batch, id.row, id.head, 1);
  }
  if (!is_8_bit(p.dtype_kv) || !seen.counts) return r;
  r.views.scale_q = scales_of_rows(p, views.scale_q, seen.sequence, seen.row, 1, id.head, r.scale_q);
  r.views.scale_k = scales_of_rows(p, views.scale_k, seen.sequence, seen.begin, seen.count, head_kv, r.scale_k);
  r.views.scale_v = scales_of_rows(p, views.scale_v, seen.sequence, seen.begin, seen.count, head_kv, r.scale_v);
  if (p.smooth) {
    r.views.mean_k = one_head(views.mean_k, seen.sequence, 0, head_kv, 1);
    r.views.mean_v = one_head(views.mean_v, seen.sequence, 0, head_kv, 1);
  }
  one.scale_rows = 1;
  return r;
}

struct RowAnswers {
  oracle::Answers exact, same_precision;
};

// The oracle shares a problem's heads among the cores; a row is one head, so here the rows are shared.
std::vector<RowAnswers> answers_of(const Problem& p, const Views& views, const std::vector<RowId>& rows,
                                   PlainLoops plain_loops) {
  std::vector<RowAnswers> answers(rows.size());
  oracle::for_each(static_cast<int64_t>(rows.size()), [&](int64_t i) {
    const RowProblem one = problem_of_row(p, views, rows[i]);
    answers[i] = {oracle::compute(one.problem, one.views), plain_loops(one.problem, one.views)};
  });
  return answers;
}

Reference some_rows(const Problem& p, const Views& views, PlainLoops plain_loops) {
  Reference r = written_tensors(p);
  const std::vector<RowId> rows = choose_rows(p);
  const std::vector<RowAnswers> answers = answers_of(p, views, rows, plain_loops);
  for (Expected& expected : r) {
    const size_t tensor = index_of(expected.tensor->view);
    expected.rows = rows;
    for (const auto& [exact, same_precision] : answers) {
      expected.exact.insert(expected.exact.end(), exact[tensor].begin(), exact[tensor].end());
      expected.same_precision.insert(expected.same_precision.end(), same_precision[tensor].begin(),
                                     same_precision[tensor].end());
    }
  }
  return r;
}

}  // namespace

Reference written_tensors(const Problem& p) {
  Reference r;
  for (const Tensor& tensor : tensors())
    if (is_written(tensor.use(p))) r.push_back({.tensor = &tensor});
  return r;
}

// Of the rows that count; the others hold NaN.
double largest_lse(const Problem& p, const Views& views) {
  double largest = 0;
  if (views.lse.empty()) return largest;
  for (int64_t b = 0; b < p.batch; ++b) {
    const Rows rows = rows_q(p, views, b);
    for (int64_t i = 0; i < rows.used; ++i)
      for (int64_t head = 0; head < p.heads_q; ++head)
        if (const float lse = views.lse.as<float>()[views.lse.at(rows.batch, rows.first + i, head)];
            std::isfinite(lse))
          largest = std::max<double>(largest, std::fabs(lse));
  }
  return largest;
}

Result<void> can_be_judged(const Case& c, const Views& views) {
  // A row becomes a problem of the keys that it sees, where distances would be others.
  if (c.problem.alibi && c.sample_rows && !c.problem.backward())
    return Failure{FH_UNSUPPORTED, "rows=sample does not know how far keys are, which alibi asks. Leave rows out."};
  if (c.problem.max_logit && c.sample_rows)
    return Failure{FH_UNSUPPORTED,
                   "rows=sample knows the scores of some rows alone, and max_logit is the largest of all. Leave rows "
                   "out."};
  if (!c.problem.backward()) return {};
  // Weights are exp(s - lse): with an lse of 2^18 they are known to 8 u32 2^18, an eighth, and tell nothing.
  if (const double lse = largest_lse(c.problem, views); lse > 0x1p18)
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
  if (p.backward()) return c.sample_rows ? gradients_of_groups(p, views) : all_gradients(p, views);
  const PlainLoops plain_loops = plain_loops_for(backend);
  return c.sample_rows ? some_rows(p, views, plain_loops) : all_rows(p, views, plain_loops);
}

}  // namespace froghopper::check
