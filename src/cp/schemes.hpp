// SPDX-License-Identifier: Apache-2.0
// cp: which schemes compute a job, why others do not, and what a user may change where the one that is asked for does
// not.
#pragma once
#include <string>

#include "src/cp/job.hpp"

namespace froghopper::cp {

constexpr fh_cp_scheme schemes[] = {FH_CP_RING, FH_CP_ALL_GATHER, FH_CP_ALL_TO_ALL, FH_CP_ALL_TO_ALL_RING,
                                    FH_CP_ALL_TO_ALL_GATHER};

// Why a scheme does not compute a job, as a sentence; empty: it does.
std::string why_not(const Job& job, fh_cp_scheme scheme);

// Of a job that its scheme (of FH_CP_AUTO: every scheme) does not compute: "Use FH_CP_RING or ...". What it names is
// computed: schemes, heads_ranks, and if there are none, numbers of ranks and options.
std::string way_out(const Job& job);

}  // namespace froghopper::cp
