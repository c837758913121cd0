// SPDX-License-Identifier: Apache-2.0
// cp: rows of several documents in calls of the library: each call has sequences that lie end to end, as varlen has
// them.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "src/cp/piece.hpp"

namespace froghopper::cp {

// A window as fh_problem has it: of queries at the end of keys, and of those at their beginning. A call has either for
// all of its sequences; one that does not fit them all is nothing.
struct Window {
  int64_t left, right;
  bool operator==(const Window&) const = default;
};
struct Masks {
  std::optional<Window> at_end, at_begin;
};

// One call: sequences whose queries lie one after the other in the shard, from row `row` on, and whose keys do so in a
// buffer, from row `key` on. Rows and keys between them may be out of the call: then seqused says how many are in it.
struct Run {
  int64_t row, key;
  std::vector<Piece> sequences;  // of each: its rows and keys, and its mask as in a call of its own
  Masks masks;                   // at least one where there are several
  bool own;                      // the rows' own keys are among the keys: so in one run for each row

  int64_t rows() const { return sequences.back().row + sequences.back().rows - row; }
  int64_t keys() const { return sequences.back().key + sequences.back().keys - key; }
  int64_t used_rows() const;
  bool gaps() const;
  double pairs() const;
};

// The keys that rows attend to, in their own documents where there are any; they have no gap. Nothing where no row has
// a key. keys: of all ranks, the rows' own, or others.
std::optional<Range> attended_keys(const Job& job, Range rows, Range keys);

// The documents that have a row of these, from the first row of the first to the end of the last; without documents all
// rows.
Range documents_with(const Job& job, Range rows);

// How a shard's rows attend to keys of their documents, with as few calls as masks allow. buffer: the keys' ranges that
// lie in it, in order. gaps: a call may leave rows out that lie between its own, as calls that merge can.
std::vector<Run> runs_of(const Job& job, const std::vector<Range>& shard, const std::vector<Range>& buffer,
                         bool gaps);

// A call's sequences before it is known which call each is in.
struct Sequence {
  Piece piece;
  Masks masks;
  bool own;
};
// The calls with gaps.
std::vector<Run> runs_with_gaps(const fh_problem& whole, const std::vector<Sequence>& sequences);

Masks both(Masks a, const Masks& b);

// The problem of a run: that of its piece where it has one sequence, else a varlen one.
fh_problem problem_of(const fh_problem& whole, const Run& run);

// cu_seqlens of the run's queries and of its keys, and what seqused is where there are gaps.
std::vector<int32_t> query_ends(const Run& run);
std::vector<int32_t> key_ends(const Run& run);
std::vector<int32_t> used_queries(const Run& run);
std::vector<int32_t> used_keys(const Run& run);

}  // namespace froghopper::cp
