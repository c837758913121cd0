// SPDX-License-Identifier: Apache-2.0
// cp: in how many chunks the keys of other ranks may arrive in an all-gather.
#pragma once
#include <vector>

#include "src/cp/job.hpp"

namespace froghopper::cp {

// The values of Job::chunks that are considered for a scheme, the fewest first.
std::vector<Chunks> chunks_of(const Job& job, fh_cp_scheme scheme);

// Reads what the environment sets it to into the job.
Result<void> take_chunks(Job& job);

}  // namespace froghopper::cp
