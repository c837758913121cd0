// SPDX-License-Identifier: Apache-2.0
// cli: what a problem is counted as. Every figure of the command line and of the tables uses this function and that of
// src/problem/bytes.hpp; bench/measure/work.py has the same rules for the scripts.
//
// FLOPs are 2 (dim_qk + dim_v) a visible pair of query and key, and 2.5 times that of a backward problem, as
// everybody's tables count its five products. On the causal diagonal a pair counts half, so a square causal problem
// counts exactly half of the full one, as usual; a window counts the pairs it shows. To quantise or to append has no
// FLOPs.
//
// Bytes of a forward problem are those of rows that count, of k and v those that a row sees, so that the share of the
// memory's speed is one where sequences are shorter than the problem's bounds, or windows than sequences.
#pragma once
#include <algorithm>

#include "src/problem/bytes.hpp"
#include "src/problem/mask.hpp"
#include "src/problem/tensors.hpp"

namespace froghopper::cli {

// Pairs of one head in a sequence with these many rows.
inline double visible_pairs(const Problem& p, int64_t rows_q, int64_t rows_kv) {
  if (!p.masked()) return double(rows_q) * double(rows_kv);
  double pairs = 0;
  for (int64_t row = 0; row < rows_q; ++row) {
    const Visible seen = visible_keys(p, rows_q, rows_kv, row);
    if (seen.end <= seen.begin) continue;
    const int64_t level = row + p.diagonal(rows_q, rows_kv);
    const bool ends_on_diagonal = p.causal() && seen.end == level + 1;
    pairs += double(seen.end - seen.begin) - (ends_on_diagonal ? 0.5 : 0.0);
  }
  return pairs;
}

// lengths: host memory, read where sequences have lengths of their own.
inline double flops(const Problem& p, const Views& lengths) {
  if (p.batch == 0 || p.rows_q() == 0 || p.quantises() || p.appends())
    return 0;  // no row needs memory then, so seq or batch may be beyond counting
  double pairs = 0;
  if (p.varlen || p.seqused) {
    for (int64_t b = 0; b < p.batch; ++b)
      pairs += visible_pairs(p, rows_q(p, lengths, b).used, rows_kv(p, lengths, b).used);
  } else {
    pairs = double(p.batch) * visible_pairs(p, p.seq_q, p.seq_kv);
  }
  return 2.0 * double(p.dim_qk + p.dim_v) * double(p.heads_q) * pairs * (p.op == FH_BACKWARD ? 2.5 : 1.0);
}

// Keys of a sequence with these many rows from the first that a row sees to the last.
inline int64_t keys_seen(const Problem& p, int64_t rows_q, int64_t rows_kv) {
  if (rows_q == 0) return 0;
  const int64_t begin = std::max<int64_t>(0, visible_keys(p, rows_q, rows_kv, 0).begin);
  return std::max<int64_t>(0, visible_keys(p, rows_q, rows_kv, rows_q - 1).end - begin);
}

// lengths: as above.
inline double bytes(const Problem& p, const Views& lengths) {
  if (p.op != FH_FORWARD || p.batch == 0 || p.rows_q() == 0) return bytes_moved(p);
  if (!p.varlen && !p.seqused)
    return bytes_moved(p, double(p.rows_q()), double(p.batch) * double(keys_seen(p, p.seq_q, p.seq_kv)));
  double all_rows_q = 0, all_rows_kv = 0;
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t used = rows_q(p, lengths, b).used;
    all_rows_q += double(used), all_rows_kv += double(keys_seen(p, used, rows_kv(p, lengths, b).used));
  }
  return bytes_moved(p, all_rows_q, all_rows_kv);
}

}  // namespace froghopper::cli
