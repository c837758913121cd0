// SPDX-License-Identifier: Apache-2.0
// tests: query rows of one sequence, computed alone and in any company: what a problem with `invariant` promises is
// that their bits do not change.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "froghopper/froghopper.h"
#include "src/base/result.hpp"
#include "src/base/storage.hpp"
#include "src/base/text.hpp"
#include "src/problem/problem.hpp"

namespace froghopper::test {

// Rows [first, first + rows) of a sequence of queries, with its keys [0, keys).
struct Piece {
  int64_t first, rows, keys;
  unsigned sequence = 0;  // which one; 0: the one that is looked at
};

struct Company {
  std::string name;
  std::vector<Piece> pieces;
  bool varlen = true;  // else all pieces have as many rows and keys
  int64_t beyond = 0;  // how far the bounds on rows and keys lie above the longest
  int64_t max_sms = 0;
  int64_t unused = 0;  // rows and keys of every piece that do not count: seqused
};

struct Found {
  std::vector<char> o;     // of the first piece, [row][head][dim_v]
  std::vector<float> lse;  // [row][head]
};

// Where tensors lie: on the host as they are, or copied to a GPU and back.
using RunCall = std::function<Result<void>(const fh_problem&, fh_tensors)>;

class RowsAlone {
 public:
  // options: a forward problem of one sequence, with all of its rows and keys.
  explicit RowsAlone(const std::string& line) : line_(line), p_(fh_problem_init()) {
    EXPECT_EQ(fh_problem_parse(line.c_str(), &p_), FH_OK) << fh_last_error();
    dim_v_ = p_.dim_v ? p_.dim_v : p_.dim_qk;
    const auto problem = Problem::from(p_);
    EXPECT_TRUE(problem) << problem.failure().text;
    of_q_ = element_of(problem->dtype), of_kv_ = element_of(problem->dtype_kv),
    element_ = element_of(problem->dtype_o);
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (int64_t h = 0; h < p_.heads_q; ++h) sink_.push_back(normal(random));
  }

  const fh_problem& problem() const { return p_; }

  Result<Found> run(const Company& company, const RunCall& call) const {
    fh_problem p = p_;
    const auto& pieces = company.pieces;
    std::vector<int32_t> cu_q{0}, cu_kv{0}, used_q, used_kv;
    p.seq_q = p.seq_kv = 0;
    std::vector<char> q, k, v;
    for (const Piece& piece : pieces) {
      const int64_t rows = piece.rows + company.unused, keys = piece.keys + company.unused;
      append(q, of_q_, piece.sequence * 3, piece.first, rows, p.heads_q, p.dim_qk, /*grows=*/true);
      append(k, of_kv_, piece.sequence * 3 + 1, 0, keys, p.heads_kv, p.dim_qk, false);
      append(v, of_kv_, piece.sequence * 3 + 2, 0, keys, p.heads_kv, dim_v_, false);
      cu_q.push_back(static_cast<int32_t>(cu_q.back() + rows));
      cu_kv.push_back(static_cast<int32_t>(cu_kv.back() + keys));
      used_q.push_back(static_cast<int32_t>(piece.rows)), used_kv.push_back(static_cast<int32_t>(piece.keys));
      p.seq_q = std::max(p.seq_q, rows), p.seq_kv = std::max(p.seq_kv, keys);
    }
    const int64_t rows_q = cu_q.back(), size = static_cast<int64_t>(size_of(element_));
    p.batch = static_cast<int64_t>(pieces.size()), p.max_sms = company.max_sms;
    if (company.varlen) {
      p.varlen = 1, p.total_q = rows_q, p.total_kv = cu_kv.back();
      p.seq_q += company.beyond, p.seq_kv += company.beyond;
    }
    std::vector<char> o(rows_q * p.heads_q * dim_v_ * size);
    std::vector<float> lse(rows_q * p.heads_q);
    fh_tensors t = fh_tensors_init();
    const auto dense = [&](std::vector<char>& x, int64_t heads, int64_t dim, int64_t seq) {
      return fh_tensor{x.data(), company.varlen ? 0 : seq * heads * dim, heads * dim, dim};
    };
    t.q = dense(q, p.heads_q, p.dim_qk, p.seq_q), t.o = dense(o, p.heads_q, dim_v_, p.seq_q);
    t.k = dense(k, p.heads_kv, p.dim_qk, p.seq_kv), t.v = dense(v, p.heads_kv, dim_v_, p.seq_kv);
    t.lse = lse.data();
    if (company.varlen) t.cu_seqlens_q = cu_q.data(), t.cu_seqlens_kv = cu_kv.data();
    if (p.sink) t.sink = const_cast<float*>(sink_.data());
    if (company.unused > 0) p.seqused = 1, t.seqused_q = used_q.data(), t.seqused_kv = used_kv.data();
    std::vector<float> scale_q, scale_k, scale_v, mean_k, mean_v;
    const auto numbers = [&](std::vector<float>& x, unsigned tensor, int64_t seq, int64_t heads, int64_t dim) {
      const int64_t blocks = seq == 0 ? 1 : p.scale_rows > 0 ? (seq + p.scale_rows - 1) / p.scale_rows : 1;
      for (const Piece& piece : pieces)
        append_scales(x, piece.sequence * 5 + tensor, piece.first, blocks, heads, dim);
      return fh_tensor{x.data(), blocks * heads * dim, heads * dim, dim};
    };
    if (size_of(of_q_) == 1) t.scale_q = numbers(scale_q, 0, p.seq_q, p.heads_q, 1);
    if (size_of(of_kv_) == 1) {
      t.scale_k = numbers(scale_k, 1, p.seq_kv, p.heads_kv, 1);
      t.scale_v = numbers(scale_v, 2, p.scale_v_columns ? 0 : p.seq_kv, p.heads_kv, p.scale_v_columns ? dim_v_ : 1);
      if (p.smooth) t.mean_k = numbers(mean_k, 3, 0, p.heads_kv, p.dim_qk);
      if (p.smooth) t.mean_v = numbers(mean_v, 4, 0, p.heads_kv, dim_v_);
    }
    if (auto done = call(p, t); !done) return done.failure();
    Found found;
    const int64_t rows = pieces[0].rows, row_of_lse = company.varlen ? rows_q : p.seq_q;
    found.o.assign(o.begin(), o.begin() + rows * p.heads_q * dim_v_ * size);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t h = 0; h < p.heads_q; ++h) found.lse.push_back(lse[h * row_of_lse + r]);
    return found;
  }

  // Bits of `some`, whose first piece is of rows that `all`, alone with all rows, has too.
  void expect_same(const Found& all, const Found& some, const Company& company) const {
    const Piece& piece = company.pieces[0];
    const size_t row_of_o = p_.heads_q * dim_v_ * size_of(element_), row_of_lse = p_.heads_q;
    int64_t differ = 0, first = -1;
    for (int64_t r = 0; r < piece.rows; ++r) {
      const bool same = std::memcmp(&all.o[(piece.first + r) * row_of_o], &some.o[r * row_of_o], row_of_o) == 0 &&
                        std::memcmp(&all.lse[(piece.first + r) * row_of_lse], &some.lse[r * row_of_lse],
                                    row_of_lse * sizeof(float)) == 0;
      if (!same && differ++ == 0) first = piece.first + r;
    }
    EXPECT_EQ(differ, 0) << line_ << ": " << company.name << ": of " << piece.rows << " rows, row " << first
                         << " first";
  }

 private:
  // Numbers that follow from a sequence, a row, a head and a column alone. grows: some rows have large scores.
  void append(std::vector<char>& to, Element element, unsigned tensor, int64_t first, int64_t rows, int64_t heads,
              int64_t dim, bool grows) const {
    const size_t size = size_of(element);
    size_t at = to.size();
    to.resize(at + rows * heads * dim * size);
    for (int64_t r = first; r < first + rows; ++r) {
      std::minstd_rand random(static_cast<unsigned>(1 + r * 31 + tensor * 100003));
      random.discard(3);
      const float large = !grows || r % 7 ? 1.0f : r % 21 ? 30.0f : 3000.0f;
      for (int64_t i = 0; i < heads * dim; ++i, at += size) {
        const float x = large * (static_cast<float>(random() % 4096) / 1024.0f - 2.0f);
        store(&to[at], 0, element, x);
      }
    }
  }

  // Likewise of a block of rows, or of a column; first: of tensor 0, q, the row that the blocks count from.
  void append_scales(std::vector<float>& to, unsigned tensor, int64_t first, int64_t blocks, int64_t heads,
                     int64_t dim) const {
    const int64_t before = tensor % 5 == 0 && p_.scale_rows > 0 ? first / p_.scale_rows : 0;
    for (int64_t block = before; block < before + blocks; ++block) {
      std::minstd_rand random(static_cast<unsigned>(1 + block * 37 + tensor * 100019));
      random.discard(3);
      for (int64_t i = 0; i < heads * dim; ++i) to.push_back(0.1f + static_cast<float>(random() % 4096) / 4096.0f);
    }
  }

  std::string line_;
  fh_problem p_;
  int64_t dim_v_ = 0;
  Element of_q_, of_kv_, element_;  // element_: of o
  std::vector<float> sink_;
};

// All rows alone, first; then the same rows, or some of them, in all kinds of company. unused: also beside rows of
// their own sequence that do not count.
inline std::vector<Company> companies(const fh_problem& p, bool unused = false) {
  const int64_t rows = p.seq_q, keys = p.seq_kv, most = p.max_sms;
  const Piece all{0, rows, keys}, last{rows - 1, 1, keys}, end{rows - rows / 3, rows / 3, keys};
  std::vector<Company> found{
      {"alone", {all}, false},
      {"alone, few SMs", {all}, false, 0, 3},
      {"in a batch", {all, {0, rows, keys, 1}, {0, rows, keys, 2}}, false},
      {"packed, alone", {all}},
      {"packed, larger bounds", {all}, true, 5000},
      {"packed with others", {all, {0, 5, 700, 1}, {0, 300, 300, 2}, {0, 1, 9, 3}}, true, 0, 7},
      {"the last row alone", {last}, false},
      {"the last row alone, few SMs", {last}, false, 0, 5},
      {"the last row in a batch", {last, {0, 1, keys, 1}, {0, 1, keys, 2}, {0, 1, keys, 3}}, false},
      {"the last row packed, larger bounds", {last, {0, 1, 33, 1}}, true, 9000},
      {"the last row packed with long ones", {last, {0, 400, 1500, 1}, {0, 1, 40, 2}}},
      {"the last row packed with one row each", {last, {0, 1, 1500, 1}, {0, 1, 40, 2}, {0, 1, 4000, 3}}},
      {"the last rows", {end}, false},
      {"the last rows packed with others", {end, {0, 90, 90, 1}}},
      {"the last three rows", {{rows - 3, 3, keys}}, false}};
  // Where no row sees beyond its own key, earlier rows need no later keys: a prefill in chunks.
  if ((p.causal || p.window_right == 0) && rows == keys)
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 100}, {100, 77}, {177, 1}, {178, rows - 400}})
      found.push_back(
          {text("rows {} to {} as a chunk", first, first + count), {{first, count, first + count}}, false});
  for (const int64_t count : unused ? std::vector<int64_t>{1, 70} : std::vector<int64_t>{})
    for (const bool varlen : {false, true})
      for (const Piece& piece : {all, last, end})
        found.push_back({text("{} rows from row {} on, {}before {} that do not count", piece.rows, piece.first,
                              varlen ? "packed, " : "", count),
                         {piece, {0, piece.rows, piece.keys, 1}},
                         varlen,
                         0,
                         0,
                         count});
  // A row has the scale of its block, so blocks have to begin at the same rows.
  const int64_t block = p.scale_rows;
  if (block > 0) std::erase_if(found, [&](const Company& company) { return company.pieces[0].first % block != 0; });
  for (Company& company : found)
    if (most > 0 && company.max_sms > most) company.max_sms = most;
  return found;
}

inline void expect_invariant(const RowsAlone& rows, const RunCall& call, bool unused = false) {
  Found all;
  for (const Company& company : companies(rows.problem(), unused)) {
    const auto found = rows.run(company, call);
    ASSERT_TRUE(found) << company.name << ": " << found.failure().text;
    if (all.o.empty()) all = *found;
    rows.expect_same(all, *found, company);
  }
}

}  // namespace froghopper::test
