// SPDX-License-Identifier: Apache-2.0
// check: the oracle's answers, for all rows or, where that would take minutes, for some of them.
#include <algorithm>
#include <cmath>
#include <limits>

#include "check/compare.hpp"
#include "check/data.hpp"
#include "src/base/storage.hpp"
#include "src/oracle/oracle.hpp"

namespace froghopper::check {

namespace {

// The oracle keeps rows of o in the order of RowId, but lse by head first.
Answer in_row_order(const Problem& p, oracle::Forward dense, const std::vector<RowId>& rows) {
  const int64_t seq = p.varlen ? p.total_q : p.seq_q;
  Answer a{std::move(dense.o), std::vector<double>(rows.size())};
  for (size_t i = 0; i < rows.size(); ++i) {
    a.lse[i] = dense.lse[(rows[i].batch * p.heads_q + rows[i].head) * seq + rows[i].row];
  }
  return a;
}

Reference all_rows(const Problem& p, const Views& views) {
  Reference r;
  for (int64_t b = 0; b < (p.varlen ? 1 : p.batch); ++b) {
    for (int64_t row = 0; row < (p.varlen ? p.total_q : p.seq_q); ++row) {
      for (int64_t head = 0; head < p.heads_q; ++head) r.rows.push_back({b, row, head});
    }
  }
  r.exact = in_row_order(p, oracle::forward(p, views), r.rows);
  r.same_precision = in_row_order(p, oracle::forward_same_precision(p, views), r.rows);
  return r;
}

// Rows at both ends of the tensor and pseudo-random ones between.
std::vector<RowId> choose_rows(const Problem& p) {
  constexpr uint64_t count = 256;
  const auto batch = static_cast<uint64_t>(p.varlen ? 1 : p.batch), heads = static_cast<uint64_t>(p.heads_q);
  const auto seq = static_cast<uint64_t>(p.varlen ? p.total_q : p.seq_q), all = batch * seq * heads;
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
};

View one_head(const View& x, Dtype type, int64_t batch, int64_t row, int64_t head, int64_t rows) {
  const int64_t at = batch * x.stride_batch + row * x.stride_seq + head * x.stride_head;
  return {.data = static_cast<unsigned char*>(x.data) + at * size_of(type),
          .batch = 1,
          .seq = rows,
          .heads = 1,
          .dim = x.dim,
          .stride_seq = rows > 1 ? x.stride_seq : 0};
}

RowProblem problem_of_row(const Problem& p, const Views& views, const RowId& id) {
  // The sequence that the row belongs to; rows of no sequence see no key.
  int64_t sequence = id.batch, row = id.row;
  if (p.varlen) {
    const int32_t* end = views.cu_seqlens_q + p.batch + 1;
    sequence = std::upper_bound(views.cu_seqlens_q, end, static_cast<int32_t>(id.row)) - views.cu_seqlens_q - 1;
    if (sequence < p.batch) row -= views.cu_seqlens_q[sequence];
  }
  Visible keys{0, 0};
  Rows kv{};
  if (sequence < p.batch) {
    const Rows q = rows_q(p, views, sequence);
    kv = rows_kv(p, views, sequence);
    if (row < q.used) keys = visible_keys(p, q.used, kv.used, row);
  }
  const int64_t count = std::max<int64_t>(0, keys.end - keys.begin), first = count ? kv.first + keys.begin : 0;
  const int64_t head_kv = id.head / (p.heads_q / p.heads_kv), batch_kv = p.varlen ? 0 : sequence;

  RowProblem r;
  r.problem = p;
  Problem& one = r.problem;
  one.batch = one.heads_q = one.heads_kv = one.seq_q = 1;
  one.seq_kv = count;
  one.varlen = one.seqused = false;
  one.total_q = one.total_kv = 0;
  one.align = FH_BOTTOM_RIGHT;
  one.window_left = one.window_right = all_keys;
  r.views.q = one_head(views.q, p.dtype, id.batch, id.row, id.head, 1);
  r.views.k = one_head(views.k, p.dtype, batch_kv, first, head_kv, count);
  r.views.v = one_head(views.v, p.dtype, batch_kv, first, head_kv, count);
  if (p.sink) r.views.sink = views.sink + id.head;
  return r;
}

void append(Answer& all, const oracle::Forward& one) {
  all.o.insert(all.o.end(), one.o.begin(), one.o.end());
  all.lse.push_back(one.lse[0]);
}

Reference some_rows(const Problem& p, const Views& views) {
  Reference r;
  r.rows = choose_rows(p);
  for (const RowId& id : r.rows) {
    const RowProblem one = problem_of_row(p, views, id);
    append(r.exact, oracle::forward(one.problem, one.views));
    append(r.same_precision, oracle::forward_same_precision(one.problem, one.views));
  }
  return r;
}

}  // namespace

Reference make_reference(const Case& c, const Views& views) {
  return c.sample_rows ? some_rows(c.problem, views) : all_rows(c.problem, views);
}

}  // namespace froghopper::check
