// SPDX-License-Identifier: Apache-2.0
// cp: which documents a range of rows meets, what its rows see of each, and which of these go into one call.
#include "src/cp/documents.hpp"

#include "src/cp/builder.hpp"

namespace froghopper::cp {
namespace {

// The document that has a row: the last one that begins there or before, as empty ones have none.
size_t document_of(const Job& job, int64_t row) {
  const auto after = std::upper_bound(job.documents.begin(), job.documents.end(), row);
  return static_cast<size_t>(after - job.documents.begin()) - 1;
}

Range document(const Job& job, size_t at) { return {job.documents[at], job.documents[at + 1]}; }

Masks masks_of(const fh_problem& whole, Range rows, Range keys) {
  const int64_t ahead = rows.begin - keys.begin, behind = keys.end - rows.end;
  const auto moved = [](int64_t bound, int64_t by) { return bound == FH_ALL ? FH_ALL : bound + by; };
  const int64_t left = whole.window_left, right = whole.window_right;
  return {Window{moved(left, behind), moved(right, -behind)}, Window{moved(left, -ahead), moved(right, ahead)}};
}

// Whether the sequence goes on where the run ends, under a mask of the run; the masks that remain are kept.
bool join(Run& run, const Piece& next, const Masks& masks) {
  if (run.row + run.rows() != next.row || run.key + run.keys() != next.key) return false;
  Masks both = run.masks;
  if (both.at_end != masks.at_end) both.at_end.reset();
  if (both.at_begin != masks.at_begin) both.at_begin.reset();
  if (!both.at_end && !both.at_begin) return false;
  run.masks = both;
  run.sequences.push_back(next);
  run.sequences.back().part = run.sequences.front().part;
  return true;
}

template <class Extent>
std::vector<int32_t> ends(const Run& run, Extent extent) {
  std::vector<int32_t> all{0};
  for (const Piece& piece : run.sequences) all.push_back(all.back() + static_cast<int32_t>(extent(piece)));
  return all;
}

}  // namespace

double Run::pairs() const {
  double sum = 0;
  for (const Piece& piece : sequences) sum += piece.pairs();
  return sum;
}

std::optional<Range> seen_keys(const Job& job, Range rows) {
  if (rows.empty()) return std::nullopt;
  const auto of = [&](int64_t row) {
    const Range all = document(job, document_of(job, row));
    return sight(job.whole, common(rows, all), all)->keys;
  };
  return Range{of(rows.begin).begin, of(rows.end - 1).end};
}

std::vector<Run> runs_of(const Job& job, const std::vector<Range>& shard, const std::vector<Range>& buffer) {
  std::vector<Run> runs;
  int64_t row = 0;
  for (const Range& range : shard)
    for (size_t at = document_of(job, range.begin); at + 1 < job.documents.size() && job.documents[at] < range.end;
         ++at) {
      const Range all = document(job, at), rows = common(range, all);
      if (rows.empty()) continue;
      const Sight s = *sight(job.whole, rows, all);
      const Piece piece{runs.size(), row, rows.rows(), row_in(buffer, s.keys.begin), s.keys.rows(), s.left, s.right};
      row += rows.rows();
      const Masks masks = masks_of(job.whole, rows, s.keys);
      if (runs.empty() || !join(runs.back(), piece, masks)) runs.push_back({piece.row, piece.key, {piece}, masks});
    }
  return runs;
}

fh_problem problem_of(const fh_problem& whole, const Run& run) {
  if (run.sequences.size() == 1) return problem_of(whole, run.sequences.front());
  fh_problem p = whole;
  p.varlen = 1, p.batch = static_cast<int64_t>(run.sequences.size());
  p.total_q = run.rows(), p.total_kv = run.keys();
  p.seq_q = p.seq_kv = 0;
  bool cuts_left = false, cuts_right = false;
  for (const Piece& piece : run.sequences) {
    p.seq_q = std::max(p.seq_q, piece.rows), p.seq_kv = std::max(p.seq_kv, piece.keys);
    cuts_left |= piece.left != FH_ALL, cuts_right |= piece.right != FH_ALL;
  }
  p.align = run.masks.at_end ? FH_BOTTOM_RIGHT : FH_TOP_LEFT;
  const Window window = run.masks.at_end ? *run.masks.at_end : *run.masks.at_begin;
  p.window_left = cuts_left ? window.left : FH_ALL, p.window_right = cuts_right ? window.right : FH_ALL;
  if (p.align == FH_BOTTOM_RIGHT && p.window_right == 0) p.window_right = FH_ALL, p.causal = 1;
  return p;
}

std::vector<int32_t> query_ends(const Run& run) {
  return ends(run, [](const Piece& piece) { return piece.rows; });
}
std::vector<int32_t> key_ends(const Run& run) {
  return ends(run, [](const Piece& piece) { return piece.keys; });
}

}  // namespace froghopper::cp
