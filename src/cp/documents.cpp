// SPDX-License-Identifier: Apache-2.0
// cp: which documents a range of rows meets, which keys of each its rows attend to, and which of these go into one
// call.
#include "src/cp/documents.hpp"

#include "src/cp/builder.hpp"
#include "src/cp/ranges.hpp"

namespace froghopper::cp {
namespace {

// The document that has a row: the last one that begins there or before, as empty ones have none.
size_t document_of(const Job& job, int64_t row) {
  const auto after = std::upper_bound(job.documents.begin(), job.documents.end(), row);
  return static_cast<size_t>(after - job.documents.begin()) - 1;
}

Range document(const Job& job, size_t at) { return {job.documents[at], job.documents[at + 1]}; }

std::optional<MaskRange> mask_range_in(const Job& job, size_t at, Range rows, Range keys) {
  const Range all = document(job, at);
  return mask_range(job.whole, common(rows, all), common(keys, all));
}

// Documents that may have rows of both: the first and the last one.
std::pair<size_t, size_t> documents_of(const Job& job, Range rows, Range keys) {
  return {document_of(job, std::max(rows.begin, keys.begin)), document_of(job, std::min(rows.end, keys.end) - 1)};
}

Masks masks_of(const fh_problem& whole, Range rows, Range keys) {
  const int64_t ahead = rows.begin - keys.begin, behind = keys.end - rows.end;
  const auto moved = [](int64_t left, int64_t right, int64_t by) -> std::optional<Window> {
    const Window w{left == FH_ALL ? FH_ALL : left + by, right == FH_ALL ? FH_ALL : right - by};
    const bool none = (left != FH_ALL && w.left < 0) || (right != FH_ALL && w.right < 0);
    return none ? std::nullopt : std::optional(w);
  };
  return {moved(whole.window_left, whole.window_right, behind), moved(whole.window_left, whole.window_right, -ahead)};
}

// Whether the rows of a run of one sequence attend to these keys too, which then go into the same call.
bool goes_on(Run& run, const Piece& more, const Masks& masks) {
  if (run.sequences.size() != 1 || !join(run.sequences.front(), more)) return false;
  run.masks = both(run.masks, masks);
  if (causal(run.sequences.front())) run.masks.at_end = Window{FH_ALL, 0};
  return true;
}

// Whether the sequence goes on where the run ends, under a mask of the run.
bool follows(Run& run, const Piece& next, const Masks& masks) {
  if (run.row + run.rows() != next.row || run.key + run.keys() != next.key) return false;
  const Masks left = both(run.masks, masks);
  if (!left.at_end && !left.at_begin) return false;
  run.masks = left;
  run.sequences.push_back(next);
  return true;
}

void add(std::vector<Run>& runs, const Sequence& next) {
  const auto& [piece, masks, own] = next;
  if (!runs.empty() && goes_on(runs.back(), piece, masks))
    runs.back().own |= own;
  else if (runs.empty() || runs.back().own != own || !follows(runs.back(), piece, masks))
    runs.push_back({piece.row, piece.key, {piece}, masks, own});
}

// The keys of their documents that a shard's rows attend to, in a buffer, row by row.
std::vector<Sequence> sequences_of(const Job& job, const std::vector<Range>& shard,
                                   const std::vector<Range>& buffer) {
  std::vector<Sequence> all;
  const std::vector<Part> parts = placed(buffer, buffer);
  int64_t row = 0;
  for (const Range& rows : shard) {
    const std::span<const Range> near = meeting(buffer, documents_with(job, rows));
    for (const Range& keys : near) {
      const int64_t key = parts[static_cast<size_t>(&keys - buffer.data())].at;
      const auto [first, last] = documents_of(job, rows, keys);
      for (size_t at = first; at <= last; ++at) {
        const std::optional<MaskRange> s = mask_range_in(job, at, rows, keys);
        if (!s) continue;
        const Range mine = common(rows, document(job, at));
        const Piece piece{0,
                          row + mine.begin - rows.begin,
                          mine.rows(),
                          key + s->keys.begin - keys.begin,
                          s->keys.rows(),
                          s->left,
                          s->right};
        const bool own = s->keys.begin <= mine.begin && mine.begin < s->keys.end;
        all.push_back({piece, masks_of(job.whole, mine, s->keys), own});
      }
    }
    row += rows.rows();
  }
  return all;
}

// Where sequences begin, and where the last one ends.
template <class Begin>
std::vector<int32_t> ends(const Run& run, Begin begin, int64_t rows) {
  std::vector<int32_t> all;
  for (const Piece& piece : run.sequences) all.push_back(static_cast<int32_t>(begin(piece)));
  all.push_back(static_cast<int32_t>(rows));
  return all;
}

template <class Extent>
std::vector<int32_t> used(const Run& run, Extent extent) {
  std::vector<int32_t> all;
  for (const Piece& piece : run.sequences) all.push_back(static_cast<int32_t>(extent(piece)));
  return all;
}

int64_t longest(const std::vector<int32_t>& ends) {
  int64_t most = 0;
  for (size_t i = 1; i < ends.size(); ++i) most = std::max<int64_t>(most, ends[i] - ends[i - 1]);
  return most;
}

}  // namespace

Masks both(Masks a, const Masks& b) {
  if (a.at_end != b.at_end) a.at_end.reset();
  if (a.at_begin != b.at_begin) a.at_begin.reset();
  return a;
}

Range documents_with(const Job& job, Range rows) {
  if (!job.packed() || rows.empty()) return {0, job.rows()};
  return {document(job, document_of(job, rows.begin)).begin, document(job, document_of(job, rows.end - 1)).end};
}

int64_t Run::used_rows() const {
  int64_t sum = 0;
  for (const Piece& piece : sequences) sum += piece.rows;
  return sum;
}

bool Run::gaps() const {
  int64_t sum = 0;
  for (const Piece& piece : sequences) sum += piece.keys;
  return used_rows() != rows() || sum != keys();
}

double Run::pairs() const {
  double sum = 0;
  for (const Piece& piece : sequences) sum += piece.pairs();
  return sum;
}

// Between two documents that both meet the rows and the keys, rows and keys are the same: they attend to their own.
std::optional<Range> attended_keys(const Job& job, Range rows, Range keys) {
  if (rows.empty() || keys.empty()) return std::nullopt;
  if (!job.packed()) {
    const std::optional<MaskRange> s = mask_range(job.whole, rows, keys);
    return s ? std::optional(s->keys) : std::nullopt;
  }
  std::optional<Range> hull;
  const auto [first, last] = documents_of(job, rows, keys);
  for (const size_t at : {first, last})
    if (const std::optional<MaskRange> s = mask_range_in(job, at, rows, keys))
      hull = hull ? Range{hull->begin, s->keys.end} : s->keys;
  return hull;
}

std::vector<Run> runs_of(const Job& job, const std::vector<Range>& shard, const std::vector<Range>& buffer,
                         bool gaps) {
  const std::vector<Sequence> sequences = sequences_of(job, shard, buffer);
  if (gaps) return runs_with_gaps(job.whole, sequences);
  std::vector<Run> runs;
  for (const Sequence& sequence : sequences) add(runs, sequence);
  return runs;
}

fh_problem problem_of(const fh_problem& whole, const Run& run) {
  if (run.sequences.size() == 1) return problem_of(whole, run.sequences.front());
  fh_problem p = whole;
  p.varlen = 1, p.batch = static_cast<int64_t>(run.sequences.size());
  p.total_q = run.rows(), p.total_kv = run.keys();
  p.seq_q = longest(query_ends(run)), p.seq_kv = longest(key_ends(run));
  p.seqused = run.gaps();
  bool cuts_left = false, cuts_right = false;
  for (const Piece& piece : run.sequences) cuts_left |= piece.left != FH_ALL, cuts_right |= piece.right != FH_ALL;
  p.align = run.masks.at_end ? FH_BOTTOM_RIGHT : FH_TOP_LEFT;
  const Window window = run.masks.at_end ? *run.masks.at_end : *run.masks.at_begin;
  p.window_left = cuts_left ? window.left : FH_ALL, p.window_right = cuts_right ? window.right : FH_ALL;
  if (p.align == FH_BOTTOM_RIGHT && p.window_right == 0) p.window_right = FH_ALL, p.causal = 1;
  return p;
}

std::vector<int32_t> query_ends(const Run& run) {
  return ends(
      run, [&](const Piece& piece) { return piece.row - run.row; }, run.rows());
}
std::vector<int32_t> key_ends(const Run& run) {
  return ends(
      run, [&](const Piece& piece) { return piece.key - run.key; }, run.keys());
}
std::vector<int32_t> used_queries(const Run& run) {
  return used(run, [](const Piece& piece) { return piece.rows; });
}
std::vector<int32_t> used_keys(const Run& run) {
  return used(run, [](const Piece& piece) { return piece.keys; });
}

}  // namespace froghopper::cp
