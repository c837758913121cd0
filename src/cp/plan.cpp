// SPDX-License-Identifier: Apache-2.0
// cp: from a description to a plan: the scheme is chosen, its steps are written, and the library plans its calls.
#include "src/cp/plan.hpp"

#include <bit>
#include <optional>

#include "src/base/text.hpp"
#include "src/cp/time.hpp"

namespace froghopper::cp {
namespace {

constexpr fh_cp_scheme schemes[] = {FH_CP_RING, FH_CP_ALL_GATHER, FH_CP_ALL_TO_ALL};

Failure of_library(fh_status status) { return {status, fh_last_error()}; }

// Memory of the attention calls, without padding: what limits a scheme before the calls are planned.
struct Candidate {
  fh_cp_scheme scheme;
  double seconds;
  uint64_t bytes;
};

// Of the slowest of some ranks, which are the same ones whoever asks: all ranks choose alike.
Candidate measure(const Job& job, fh_cp_scheme scheme, bool on_gpu) {
  Candidate c{scheme, 0, 0};
  const int64_t all = job.ranks <= 8 ? job.ranks : 0;
  std::vector<int64_t> ranks{0, job.ranks / 2, job.ranks - 1};
  for (int64_t rank = 0; rank < all; ++rank) ranks.push_back(rank);
  for (const int64_t rank : ranks) {
    const Steps steps = steps_of(job, scheme, rank);
    c.seconds = std::max(c.seconds, seconds_of(job, steps, rank, on_gpu));
    c.bytes = std::max(c.bytes, static_cast<uint64_t>(steps.workspace));
  }
  return c;
}

Result<Candidate> choose(const Job& job, bool on_gpu, std::vector<std::string>& why) {
  if (job.scheme != FH_CP_AUTO) {
    if (std::string no = why_not(job, job.scheme); !no.empty()) return Failure{FH_UNSUPPORTED, std::move(no)};
    return measure(job, job.scheme, on_gpu);
  }
  std::optional<Candidate> best;
  std::string refusals;
  for (const fh_cp_scheme scheme : schemes) {
    if (const std::string no = why_not(job, scheme); !no.empty()) {
      why.push_back(text("{}: no, {}", name_of(scheme), no));
      refusals += text(" {}: {}", name_of(scheme), no);
      continue;
    }
    const Candidate c = measure(job, scheme, on_gpu);
    const bool fits = job.workspace_limit == 0 || c.bytes <= job.workspace_limit;
    why.push_back(text("{}: {:.1f} us, workspace {} bytes{}", name_of(scheme), c.seconds * 1e6, c.bytes,
                       fits ? "" : ", over the limit"));
    if (!fits) refusals += text(" {}: workspace of {} bytes.", name_of(scheme), c.bytes);
    if (fits && (!best || c.seconds < best->seconds)) best = c;
  }
  if (!best)
    return Failure{FH_UNSUPPORTED, text("no scheme computes this within workspace_limit, {} bytes.{}",
                                        job.workspace_limit, refusals)};
  return *best;
}

uint64_t digest_of(const Job& job, fh_cp_scheme scheme) {
  Digest digest;
  const fh_problem& p = job.whole;
  for (const int64_t word :
       {int64_t{p.op}, int64_t{p.dtype}, p.batch, p.heads_q, p.heads_kv, p.seq_q, p.seq_kv, p.dim_qk, p.dim_v,
        p.window_left, p.window_right, int64_t{p.sink != 0}, int64_t{p.alibi != 0}, job.ranks, int64_t{scheme},
        int64_t{job.layout}, int64_t{job.out}, int64_t{job.check_interval}})
    digest.add(static_cast<uint64_t>(word));
  digest.add(std::bit_cast<uint32_t>(p.scale));
  digest.add(std::bit_cast<uint32_t>(p.softcap));
  return digest.value();
}

// The library's plan of the whole problem, whose refusals name what the user gave, in words for one rank. It also
// tells where calls will run.
Result<bool> checked_by_library(const fh_problem& whole, const char* target) {
  fh_plan* plan = nullptr;
  if (const fh_status status = fh_plan_create(&whole, target, &plan); status != FH_OK) return of_library(status);
  const bool on_gpu = fh_plan_on_gpu(plan) != 0;
  fh_plan_destroy(plan);
  return on_gpu;
}

Result<void> plan_attention(fh_cp_plan& plan, const char* target) {
  for (const fh_problem& p : plan.steps.problems) {
    fh_plan* made = nullptr;
    if (const fh_status status = fh_plan_create(&p, target, &made); status != FH_OK) return of_library(status);
    plan.attention.emplace_back(made);
    plan.attention_workspace = std::max<uint64_t>(plan.attention_workspace, fh_plan_workspace_bytes(made));
    if ((fh_plan_on_gpu(made) != 0) != plan.on_gpu)
      return Failure{FH_UNSUPPORTED,
                     "some calls of the plan run on a GPU and others on the CPU. Name the target, "
                     "\"cpu\" or \"hopper\"."};
  }
  plan.workspace = static_cast<uint64_t>(plan.steps.workspace) + plan.attention_workspace;
  return {};
}

}  // namespace

const char* name_of(fh_cp_scheme scheme) {
  switch (scheme) {
    case FH_CP_AUTO: return "auto";
    case FH_CP_RING: return "ring";
    case FH_CP_ALL_GATHER: return "all_gather";
    case FH_CP_ALL_TO_ALL: return "all_to_all";
  }
  return "unknown";
}

Result<std::unique_ptr<fh_cp_plan>> make_plan(const fh_cp_problem& problem, const char* target) {
  Result<Job> job = job_of(problem);
  if (!job) return job.failure();
  Result<bool> on_gpu = checked_by_library(job->whole, target);
  if (!on_gpu) return on_gpu.failure();
  std::vector<std::string> why;
  Result<Candidate> chosen = choose(*job, *on_gpu, why);
  if (!chosen) return chosen.failure();
  auto plan = std::make_unique<fh_cp_plan>();
  plan->job = *job;
  plan->rank = problem.rank;
  plan->scheme = chosen->scheme;
  plan->on_gpu = *on_gpu;
  plan->seconds = chosen->seconds;
  plan->steps = steps_of(*job, chosen->scheme, problem.rank);
  plan->digest = digest_of(*job, chosen->scheme);
  if (Result<void> planned = plan_attention(*plan, target); !planned) return planned.failure();
  plan->text = printed(*plan, why);
  return plan;
}

}  // namespace froghopper::cp
