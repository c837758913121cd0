// SPDX-License-Identifier: Apache-2.0
// cp: ranks as a grid of two levels. Groups of heads_ranks neighbours exchange heads, so that each rank has the rows of
// its group for some heads. Ranks at the same place of their groups then attend as the ranks of a smaller job do: the
// shard of its g-th rank is what the ranks of group g hold. In FH_CP_CONTIGUOUS and FH_CP_ZIGZAG that is the shard of
// the same layout for as many ranks as there are groups, since chunks are cut at multiples of the length over their
// number: 2 ranks chunks of a zigzag are heads_ranks to a chunk of the zigzag over groups. In FH_CP_BY_DOCUMENT the
// cuts are those of all ranks, and pieces of a group's ranks lie side by side: two of each document, as a rank has.
#pragma once
#include <string>
#include <vector>

#include "src/cp/steps.hpp"

namespace froghopper::cp {

inline bool on_grid(fh_cp_scheme scheme) {
  return scheme == FH_CP_ALL_TO_ALL_RING || scheme == FH_CP_ALL_TO_ALL_GATHER;
}

// Where the schemes exchange heads: of how many ranks' heads a rank gets one part. 1: they do not.
int64_t heads_parts(const Job& job, fh_cp_scheme scheme);

// What ranks at one place of their groups compute: fewer heads and ranks, more rows. Its plan needs no heads_ranks.
Job job_between_groups(const Job& job, int64_t parts);
fh_cp_scheme scheme_between_groups(fh_cp_scheme scheme);

// The values of heads_ranks that are considered for a scheme that the caller names, or for FH_CP_AUTO, which has the
// ends of the scale as schemes of their own. {0} where the scheme has no grid.
std::vector<int64_t> heads_ranks_of(const Job& job, fh_cp_scheme scheme);

// "all_to_all_ring of 8 x 4": heads_ranks, then groups.
std::string name_of(const Job& job, fh_cp_scheme scheme);

}  // namespace froghopper::cp
