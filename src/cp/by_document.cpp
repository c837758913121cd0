// SPDX-License-Identifier: Apache-2.0
// cp: the layout that divides each document by itself. A document's rows are dealt to 2 ranks pieces as cards are, and
// go on where those of the document before ended, so that no rank gets all of the rests. How many rows a piece got
// says where it lies; the rows of a piece are neighbours.
#include "src/cp/job.hpp"

namespace froghopper::cp {
namespace {

// How many t, begin <= t < end, have t mod `pieces` below `most`.
int64_t dealt(Range t, int64_t pieces, int64_t most) {
  const auto below = [&](int64_t end) { return end / pieces * most + std::min(end % pieces, most); };
  return below(t.end) - below(t.begin);
}

// Where piece i of a document begins. Pieces 0, 1, ... get t mod pieces = 0, 1, ..., and so do the last, the one
// before it, ... with ranks, ranks + 1, ...: a rank's two pieces get equal t mod ranks.
int64_t cut(Range document, int64_t ranks, int64_t i) {
  const int64_t pieces = 2 * ranks;
  if (i <= ranks) return document.begin + dealt(document, pieces, i);
  return document.end - (dealt(document, pieces, 3 * ranks - i) - dealt(document, pieces, ranks));
}

}  // namespace

std::vector<Range> ranges_by_document(const Job& job, int64_t ranks, int64_t rank) {
  std::vector<Range> ranges;
  for (size_t at = 0; at + 1 < job.documents.size(); ++at) {
    const Range document{job.documents[at], job.documents[at + 1]};
    for (const int64_t i : {rank, 2 * ranks - 1 - rank}) {
      const Range piece{cut(document, ranks, i), cut(document, ranks, i + 1)};
      if (piece.empty()) continue;
      const bool follows =
          i >= ranks && !ranges.empty() && ranges.back().begin >= document.begin && ranges.back().end == piece.begin;
      if (follows)
        ranges.back().end = piece.end;
      else
        ranges.push_back(piece);
    }
  }
  return ranges;
}

}  // namespace froghopper::cp
