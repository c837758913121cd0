// SPDX-License-Identifier: Apache-2.0
// cp: calls that leave rows out. A rank of the layout that divides each document has two chunks of every document, and
// to a later rank's keys only the second of each attends. Calls that merge do not touch rows that are not theirs, so
// one call has the second chunks of all documents.
#include "src/cp/documents.hpp"

namespace froghopper::cp {
namespace {

bool full(const Piece& piece) { return piece.left == FH_ALL && piece.right == FH_ALL; }

// All keys and one row: the library's causal mask says the same.
bool ends_level(const Piece& piece) { return causal(piece) || (full(piece) && piece.rows == 1); }

// Rows that follow those of a sequence and attend to the same keys, or under a causal mask those and their own.
bool join_rows(Sequence& last, const Sequence& next) {
  Piece& a = last.piece;
  const Piece& b = next.piece;
  if (last.own != next.own || a.row + a.rows != b.row || a.key != b.key) return false;
  const bool same = full(a) && full(b) && a.keys == b.keys;
  const bool goes_on = ends_level(a) && ends_level(b) && b.keys - b.rows == a.keys;
  if (!same && !goes_on) return false;
  if (goes_on) a.right = a.keys - a.rows;
  a.rows += b.rows, a.keys = b.keys;
  last.masks = both(last.masks, next.masks);
  return true;
}

// The keys of each row as one sequence where the library has a mask for it, then rows that may share a sequence.
std::vector<Sequence> joined(const std::vector<Sequence>& sequences) {
  std::vector<Sequence> by_keys, all;
  for (const Sequence& next : sequences)
    if (!by_keys.empty() && join(by_keys.back().piece, next.piece)) {
      by_keys.back().own |= next.own;
      by_keys.back().masks = both(by_keys.back().masks, next.masks);
    } else {
      by_keys.push_back(next);
    }
  for (const Sequence& next : by_keys)
    if (all.empty() || !join_rows(all.back(), next)) all.push_back(next);
  return all;
}

// Without a window all sequences are full or causal, whatever lies between their rows and their keys.
Masks masks_of(const fh_problem& whole, const Sequence& sequence) {
  const Piece& piece = sequence.piece;
  const Window causal_window{FH_ALL, 0}, none{FH_ALL, FH_ALL};
  if (whole.window_left != FH_ALL || whole.window_right > 0) return sequence.masks;
  if (full(piece)) return {piece.rows == 1 ? causal_window : none, none};
  return {causal(piece) ? std::optional(causal_window) : sequence.masks.at_end, sequence.masks.at_begin};
}

bool follows(Run& run, const Sequence& next, const Masks& masks) {
  const Masks left = both(run.masks, masks);
  if (run.own != next.own || (!left.at_end && !left.at_begin)) return false;
  if (next.piece.row < run.row + run.rows() || next.piece.key < run.key + run.keys()) return false;
  run.masks = left;
  run.sequences.push_back(next.piece);
  return true;
}

}  // namespace

// Each sequence goes into the first call that it follows.
std::vector<Run> runs_with_gaps(const fh_problem& whole, const std::vector<Sequence>& sequences) {
  std::vector<Run> runs;
  for (const Sequence& next : joined(sequences)) {
    const Masks masks = masks_of(whole, next);
    const auto fits = [&](Run& run) { return follows(run, next, masks); };
    if (std::none_of(runs.begin(), runs.end(), fits))
      runs.push_back({next.piece.row, next.piece.key, {next.piece}, masks, next.own});
  }
  return runs;
}

}  // namespace froghopper::cp
