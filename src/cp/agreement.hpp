// SPDX-License-Identifier: Apache-2.0
// cp: what ranks must have alike. They compare one digest of it; where that differs, they compare the fields one by
// one, so that each rank can name the first that differs.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "src/cp/plan.hpp"

namespace froghopper::cp {

// Of a plan; never 0.
uint64_t digest_of_plan(const Job& job, fh_cp_scheme scheme);
// Of a run of it, with these tensors.
uint64_t digest_of_run(const fh_cp_plan& plan, const fh_cp_tensors& tensors);

// Tells all ranks a word of this one, and gives those of all ranks. All ranks make the same rounds.
using Round = std::function<Result<std::vector<uint64_t>>(uint64_t mine)>;

// Where digests of runs differ: the field that does, with its values on rank 0 and on the first rank that has another;
// "" where none is found. All ranks whose digests differ call it, and make the same rounds, as each sees the words of
// all.
Result<std::string> difference(const fh_cp_plan& plan, const fh_cp_tensors& tensors, const Round& round);

}  // namespace froghopper::cp
