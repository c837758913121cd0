// SPDX-License-Identifier: Apache-2.0
// cp: which of some keys some query rows attend to, as a mask that the library has.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "src/cp/job.hpp"

namespace froghopper::cp {

// Query i of `rows` attends to key j of keys.rows() where i - left <= j <= i + right; FH_ALL is no bound. Every other
// row and key of the whole sequence is masked or not here.
struct MaskRange {
  Range keys;  // of the whole sequence: those that any row attends to
  int64_t left = FH_ALL, right = FH_ALL;
  bool full() const { return left == FH_ALL && right == FH_ALL; }
};

// Nothing where no row attends to a key. The rows' first key may not lie after those of the first row: the ring is
// refused for masks where it would.
std::optional<MaskRange> mask_range(const fh_problem& whole, Range rows, Range keys);

// Keys that lie one after the other in a buffer, from row `at` of it on.
struct Part {
  Range keys;
  int64_t at;
};

// One call of the library: `rows` queries from row `row` of the shard on, `keys` keys from row `key` of the buffer on.
struct Piece {
  size_t part;  // which of the shard's parts, Builder::parts
  int64_t row, rows, key, keys, left, right;
  double pairs() const;
};

// Whether its last row's last key is the last one under the library's causal mask.
bool causal(const Piece& piece);
// Whether the keys of `next`, which the same rows attend to, go into the call of `last`; then they are there.
bool join(Piece& last, const Piece& next);

// How each range of a shard attends to parts in a buffer, with as few calls as the masks allow. Of calls for the same
// rows that of their own keys comes first: the sink's gradient is taken in the first one, and a row without a key in it
// would have the sink as its whole denominator there.
std::vector<Piece> pieces_of(const fh_problem& whole, const std::vector<Range>& shard,
                             const std::vector<Part>& parts);

// Of each of the owner's ranges the keys that any range of the shard attends to; the empty ones are left out.
std::vector<Range> needed(const Job& job, const std::vector<Range>& shard, const std::vector<Range>& owner);

// The problem of a piece: its extents and mask put into the whole one's options.
fh_problem problem_of(const fh_problem& whole, const Piece& piece);

}  // namespace froghopper::cp
