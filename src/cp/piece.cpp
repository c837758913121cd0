// SPDX-License-Identifier: Apache-2.0
// cp: masks of the whole sequence cut down to some queries and some keys.
#include "src/cp/piece.hpp"

#include <algorithm>
#include <cstddef>

#include "src/cp/documents.hpp"
#include "src/cp/ranges.hpp"

namespace froghopper::cp {
namespace {

// Sum over i below rows of i + shift, held to 0 .. keys: how many keys j < i + shift there are.
double keys_below(double rows, double keys, double shift) {
  const double first = std::clamp(-shift, 0.0, rows);         // the first row that has any
  const double last = std::clamp(keys - shift, first, rows);  // the first row that has all
  const double rising = last - first;
  return rising * (first + last - 1) / 2 + rising * shift + (rows - last) * keys;
}

// The next part goes into the same call: both lie together, the first is attended to in full, and the second in full or
// as the end of a causal mask.
bool joins(const Piece& a, const Piece& b) {
  return a.left == FH_ALL && a.right == FH_ALL && a.key + a.keys == b.key && b.left == FH_ALL &&
         (b.right == FH_ALL || causal(b));
}

}  // namespace

bool causal(const Piece& piece) { return piece.left == FH_ALL && piece.right == piece.keys - piece.rows; }

bool join(Piece& last, const Piece& next) {
  if (last.row != next.row || last.rows != next.rows || !joins(last, next)) return false;
  if (next.right != FH_ALL) last.right = next.right + last.keys;
  last.keys += next.keys;
  return true;
}

std::optional<MaskRange> mask_range(const fh_problem& whole, Range rows, Range keys) {
  MaskRange s;
  const int64_t left = whole.window_left, right = whole.window_right;
  s.keys = keys;
  if (left != FH_ALL && left < rows.begin) s.keys.begin = std::max(keys.begin, rows.begin - left);
  if (right != FH_ALL && right < keys.end) s.keys.end = std::min(keys.end, rows.end + right);
  if (rows.empty() || s.keys.empty()) return std::nullopt;
  const int64_t ahead = rows.begin - s.keys.begin;  // how far the first row is behind the first key
  if (left != FH_ALL && rows.rows() - 1 > left - ahead) s.left = left - ahead;
  if (right != FH_ALL && s.keys.rows() - 1 > right + ahead) s.right = right + ahead;
  return s;
}

double Piece::pairs() const {
  const double r = static_cast<double>(rows), k = static_cast<double>(keys);
  const double until = right == FH_ALL ? r * k : keys_below(r, k, static_cast<double>(right) + 1);
  const double before = left == FH_ALL ? 0 : keys_below(r, k, -static_cast<double>(left));
  return until - before;
}

std::vector<Piece> pieces_of(const fh_problem& whole, const std::vector<Range>& shard,
                             const std::vector<Part>& parts) {
  std::vector<Piece> pieces;
  int64_t row = 0;
  for (size_t chunk = 0; chunk < shard.size(); row += shard[chunk].rows(), ++chunk) {
    const size_t first = pieces.size();
    size_t own = first;  // where the chunk's own keys are, of which each row attends to one at least
    for (const Part& part : parts) {
      const std::optional<MaskRange> s = mask_range(whole, shard[chunk], part.keys);
      if (!s) continue;
      Piece piece{chunk,   row,     shard[chunk].rows(), part.at + s->keys.begin - part.keys.begin, s->keys.rows(),
                  s->left, s->right};
      if (pieces.size() == first || !join(pieces.back(), piece)) pieces.push_back(piece);
      if (part.keys.begin <= shard[chunk].begin && shard[chunk].end <= part.keys.end) own = pieces.size() - 1;
    }
    const auto at = [&](size_t i) { return pieces.begin() + static_cast<std::ptrdiff_t>(i); };
    if (own < pieces.size()) std::rotate(at(first), at(own), at(own + 1));
  }
  return pieces;
}

std::vector<Range> needed(const Job& job, const std::vector<Range>& shard, const std::vector<Range>& owner) {
  std::vector<Range> all;
  for (const Range& keys : owner) {
    Range hull{keys.end, keys.begin};
    for (const Range& rows : meeting(shard, documents_with(job, keys))) {
      const std::optional<Range> s = attended_keys(job, rows, keys);
      if (s) hull = {std::min(hull.begin, s->begin), std::max(hull.end, s->end)};
    }
    if (!hull.empty()) all.push_back(hull);
  }
  return all;
}

fh_problem problem_of(const fh_problem& whole, const Piece& piece) {
  fh_problem p = whole;
  p.seq_q = piece.rows, p.seq_kv = piece.keys;
  p.window_left = piece.left, p.window_right = piece.right, p.align = FH_TOP_LEFT;
  // Kernels are made for masks aligned at the end, and alibi counts from there.
  const int64_t shift = piece.keys - piece.rows;
  const bool ends_level = piece.right == FH_ALL || piece.right == shift;
  if (ends_level && (piece.left == FH_ALL || piece.left + shift >= 0)) {
    p.align = FH_BOTTOM_RIGHT;
    if (piece.left != FH_ALL) p.window_left = piece.left + shift;
    if (piece.right != FH_ALL) p.window_right = FH_ALL, p.causal = 1;
  }
  return p;
}

}  // namespace froghopper::cp
