// SPDX-License-Identifier: Apache-2.0
// cp: the grid of ranks, as a smaller job between groups.
#include "src/cp/grid.hpp"

#include "src/base/counted.hpp"
#include "src/base/text.hpp"
#include "src/cp/plan.hpp"
#include "src/cp/schemes.hpp"

namespace froghopper::cp {

int64_t heads_parts(const Job& job, fh_cp_scheme scheme) {
  return scheme == FH_CP_ALL_TO_ALL ? job.ranks : on_grid(scheme) ? job.heads_ranks : 1;
}

Job job_between_groups(const Job& job, int64_t parts) {
  Job between = job;
  between.ranks = job.ranks / parts, between.members = job.members * parts, between.heads_ranks = 0;
  between.whole.heads_q = job.whole.heads_q / parts;
  between.whole.heads_kv = std::max<int64_t>(1, job.whole.heads_kv / parts);
  // Several ranks contribute to dK and dV of a head that they share; these, and dQ with them, are rounded at home.
  if (job.backward() && job.whole.heads_kv % parts != 0) between.out = FH_F32;
  return between;
}

fh_cp_scheme scheme_between_groups(fh_cp_scheme scheme) {
  return scheme == FH_CP_ALL_TO_ALL_RING ? FH_CP_RING : FH_CP_ALL_GATHER;
}

std::vector<int64_t> heads_ranks_of(const Job& job, fh_cp_scheme scheme) {
  if (!on_grid(scheme) || job.heads_ranks > 0) return {on_grid(scheme) ? job.heads_ranks : 0};
  std::vector<int64_t> all;
  const int64_t ends = job.scheme == FH_CP_AUTO ? 1 : 0;
  for (int64_t n = 1 + ends; n <= job.ranks - ends; ++n) {
    if (job.ranks % n != 0) continue;
    Job with = job;
    with.heads_ranks = n;
    if (why_not(with, scheme).empty()) all.push_back(n);
  }
  if (all.empty() && job.scheme != FH_CP_AUTO) all.push_back(0);  // why_not has a reason that holds for every number
  return all;
}

std::string name_of(const Job& job, fh_cp_scheme scheme) {
  std::string name = name_of(scheme);
  if (on_grid(scheme) && job.heads_ranks > 0)
    name += text(" of {} x {}", job.heads_ranks, job.ranks / job.heads_ranks);
  return job.chunks.count > 0 ? text("{} in {}", name, counted(job.chunks.count, "chunk")) : name;
}

}  // namespace froghopper::cp
