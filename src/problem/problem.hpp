// SPDX-License-Identifier: Apache-2.0
// problem: what is computed, as a value. Every default is filled in and every contradiction already rejected.
#pragma once
#include <cstdint>
#include <string>

#include "contract/types.h"
#include "src/base/ceil_div.hpp"
#include "src/base/result.hpp"

namespace froghopper {

inline constexpr int64_t all_keys = FH_ALL;  // a window without a bound on that side

struct Problem {
  fh_op op = FH_FORWARD;
  Dtype dtype = Dtype::bf16;
  int64_t batch = 1, heads_q = 1, heads_kv = 1;
  int64_t seq_q = 0, seq_kv = 0;  // rows; with varlen, an upper bound on the longest sequence's
  int64_t dim_qk = 128, dim_v = 128;
  bool varlen = false;
  int64_t total_q = 0, total_kv = 0;  // varlen: rows of the packed tensors; else 0
  bool seqused = false;
  fh_align align = FH_BOTTOM_RIGHT;  // FH_BOTTOM_RIGHT where nothing is aligned, so that equal problems are equal
  int64_t window_left = all_keys, window_right = all_keys;  // causal: all_keys, 0
  float scale = 0;                                          // the default is filled in: 0 is zero here
  float softcap = 0;
  bool sink = false;
  bool deterministic = false;
  int64_t max_sms = 0;
  bool accumulate = false;                              // gradients are added to what is there; forward: merges_lse()
  Dtype dtype_kv = Dtype::bf16, dtype_o = Dtype::bf16;  // of k and v; of o
  int64_t scale_rows = 0;        // of 8-bit types: rows of a sequence that share a scale; 0: all
  bool scale_v_columns = false;  // v has a scale for each column instead
  bool rotate = false;           // of a quantise problem: q and k
  uint32_t rotate_seed = 0;      // 0 where nothing is rotated
  bool smooth = false;           // 8-bit k and v lack the mean of their rows, which are tensors of their own
  bool alibi = false;
  int64_t attention_chunk = 0;     // 0: none
  bool invariant = false;          // forward: a row's bits do not depend on what it is computed with
  bool max_logit = false;          // forward: the largest score of each sequence and query head is written too
  bool gate = false;               // o is multiplied by the sigmoid of a tensor
  fh_phase phase = FH_PHASE_NONE;  // which of several calls, in which the same queries attend to other keys
  int64_t page_size = 0;           // rows of a page of k and v; 0: they are not in pages
  int64_t pages = 0;               // of the pool that k and v are then
  // Of an append problem.
  bool slots = false;                       // slot_mapping says where rows go
  bool positions = false;                   // those of rows are given
  int64_t rotary_dim = 0, rotary_rows = 0;  // columns that are rotated, 0: none; positions of the tables
  bool rotary_interleaved = false;
  bool norm = false;
  float norm_epsilon = 0;
  bool scale_tokens = false;  // every row of the cache has a scale of its own
  // Of cos and sin, of the norm's weights; Dtype::bf16 where there are none, so that equal problems are equal.
  Dtype dtype_rotary = Dtype::bf16, dtype_norm = Dtype::bf16;

  // problem/validate.cpp: all messages about a description live there.
  static Result<Problem> from(const fh_problem&);
  // problem/line.cpp: parse(p.line()) == p for every valid p, and line() has one spelling for every problem.
  static Result<Problem> parse(const std::string& line);
  std::string line() const;
  fh_problem user_struct() const;  // from(p.user_struct()) == p

  bool backward() const { return op == FH_BACKWARD; }
  bool quantises() const { return op == FH_QUANTISE; }
  bool appends() const { return op == FH_APPEND; }
  // The output is that over the keys of earlier calls too, which o and lse hold.
  bool merges_lse() const { return op == FH_FORWARD && (accumulate || in_phases()); }
  // One of at least two calls.
  bool in_phases() const { return phase != FH_PHASE_NONE && phase != FH_PHASE_ONLY; }
  // Gradients of the queries are added to f32 sums: the caller's, or those of all phases.
  bool adds_to_grad_q() const { return backward() && (accumulate || phase != FH_PHASE_NONE); }
  // The call that others follow, those that follow others: what it writes is not rounded yet, what it reads is a sum.
  bool begins() const { return phase != FH_PHASE_MIDDLE && phase != FH_PHASE_LAST; }
  bool ends() const { return phase != FH_PHASE_FIRST && phase != FH_PHASE_MIDDLE; }
  Problem forward() const {  // of a backward problem: the one whose o and lse it reads
    Problem p = *this;
    p.op = FH_FORWARD, p.accumulate = false, p.phase = FH_PHASE_NONE;
    return p;
  }
  bool causal() const { return window_left == all_keys && window_right == 0; }
  bool windowed() const { return window_left != all_keys || window_right != all_keys; }
  bool masked() const { return windowed() || attention_chunk > 0; }
  bool aligned() const { return masked() || alibi; }
  bool paged() const { return page_size > 0; }
  // Lengths of sequences are read where they are computed.
  bool ragged() const { return varlen || seqused || paged(); }
  // The key where the diagonal of query row 0 is, of a sequence with so many rows.
  int64_t diagonal(int64_t rows_q, int64_t rows_kv) const { return align == FH_TOP_LEFT ? 0 : rows_kv - rows_q; }
  int64_t rows_q() const { return batches() * extent_q(); }  // rows of q and o over all sequences
  int64_t rows_kv() const { return kv_is_packed() ? total_kv : batch * seq_kv; }  // likewise; in pages, at most

  // The tensors' extents: packed sequences are one long sequence as far as memory goes.
  int64_t batches() const { return varlen ? 1 : batch; }
  int64_t extent_q() const { return varlen ? total_q : seq_q; }
  bool kv_is_packed() const { return varlen && !paged() && !appends(); }
  int64_t batches_kv() const { return paged() ? pages : kv_is_packed() ? 1 : batch; }
  int64_t extent_kv() const { return paged() ? page_size : kv_is_packed() ? total_kv : seq_kv; }
  int64_t table_columns() const { return paged() ? ceil_div(seq_kv, page_size) : 0; }  // of block_table

  // Scales of 8-bit types lie in blocks of scale_rows rows of each sequence, or in one of all rows. Of no rows none is
  // read, but that one is written.
  int64_t scale_blocks(int64_t rows) const {
    if (scale_rows > 0) return ceil_div(rows, scale_rows);
    return quantises() || rows > 0 ? 1 : 0;
  }

  bool operator==(const Problem&) const = default;
};

Result<fh_problem> whole_problem(const fh_problem&);  // in this library's size, see sized.hpp

float default_scale(int64_t dim_qk);  // 1/sqrt(dim_qk), rounded once
// of o where the description does not say
constexpr Dtype usual_output(Dtype of_q, bool merges = false) {
  if (merges) return Dtype::f32;
  return is_8_bit(of_q) ? Dtype::bf16 : of_q;
}

}  // namespace froghopper
