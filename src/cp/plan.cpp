// SPDX-License-Identifier: Apache-2.0
// cp: from a description to a plan: the scheme is chosen, its steps are written, and the library plans its calls.
#include "src/cp/plan.hpp"

#include <algorithm>
#include <numeric>

#include "src/base/counted.hpp"
#include "src/base/text.hpp"
#include "src/cp/agreement.hpp"
#include "src/cp/chunks.hpp"
#include "src/cp/errors.hpp"
#include "src/cp/grid.hpp"
#include "src/cp/schemes.hpp"
#include "src/cp/time.hpp"

namespace froghopper::cp {
namespace {

Failure of_library(fh_status status) { return {status, words_of_library()}; }

struct Candidate {
  Job job;  // with heads_ranks and chunks
  fh_cp_scheme scheme;
  double seconds;
  uint64_t bytes;  // of workspace, without what attention itself needs
};

// Of the slowest of these ranks, and of that which needs most.
Candidate measure(const Job& job, fh_cp_scheme scheme, bool on_gpu) {
  Candidate c{job, scheme, 0, 0};
  for (const int64_t rank : looked_at(job)) {
    const Steps steps = steps_of(job, scheme, rank);
    c.seconds = std::max(c.seconds, seconds_of(job, steps, rank, on_gpu));
    c.bytes = std::max(c.bytes, static_cast<uint64_t>(steps.workspace));
  }
  return c;
}

// With the fastest number of chunks; where memory is limited, also with that which needs least of it.
std::vector<Candidate> measured(Job job, fh_cp_scheme scheme, bool on_gpu) {
  std::vector<Candidate> all;
  for (const Chunks& chunks : chunks_of(job, scheme)) {
    job.chunks = chunks;
    all.push_back(measure(job, scheme, on_gpu));
  }
  const auto fastest =
      std::min_element(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  const auto least =
      std::min_element(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  if (job.workspace_limit > 0 && least->bytes < fastest->bytes) return {*fastest, *least};
  return {*fastest};
}

Result<Attention> planned(const fh_problem& problem, const char* target) {
  fh_plan* plan = nullptr;
  if (const fh_status status = fh_plan_create(&problem, target, &plan); status != FH_OK) return of_library(status);
  return Attention(plan);
}

// Attention's own workspace, where its calls need `bytes`, by problem.
struct OwnWorkspace {
  uint64_t shared = 0;
  std::vector<uint64_t> slots;

  OwnWorkspace(const Steps& steps, const std::vector<uint64_t>& bytes) : slots(static_cast<size_t>(steps.slots)) {
    for (const Step& step : steps.steps) {
      const Attend* const a = std::get_if<Attend>(&step);
      if (a == nullptr) continue;
      uint64_t& its = a->slot < 0 ? shared : slots[static_cast<size_t>(a->slot)];
      its = std::max(its, aligned(bytes[a->problem]));
    }
  }
  uint64_t all() const { return std::accumulate(slots.begin(), slots.end(), shared); }
};

// Workspace of the rank that needs most, with what attention itself needs there.
Result<uint64_t> whole_workspace(const Job& job, fh_cp_scheme scheme, const char* target) {
  uint64_t most = 0;
  for (const int64_t rank : looked_at(job)) {
    const Steps steps = steps_of(job, scheme, rank);
    std::vector<uint64_t> bytes;
    for (const fh_problem& p : steps.problems) {
      const Result<Attention> plan = planned(p, target);
      if (!plan) return plan.failure();
      bytes.push_back(fh_plan_workspace_bytes(plan->get()));
    }
    most = std::max(most, static_cast<uint64_t>(steps.workspace) + OwnWorkspace(steps, bytes).all());
  }
  return most;
}

// What the caller leaves open: the scheme, heads_ranks or chunks. Why a scheme is none of them goes to `why` and,
// as sentences, to `refusals`.
Result<std::vector<Candidate>> candidates(const Job& job, bool on_gpu, std::vector<std::string>& why,
                                          std::string& refusals) {
  std::vector<Candidate> all;
  for (const fh_cp_scheme scheme : schemes) {
    if (job.scheme != FH_CP_AUTO && job.scheme != scheme) continue;
    for (const int64_t heads_ranks : heads_ranks_of(job, scheme)) {
      Job with = job;
      with.heads_ranks = heads_ranks;
      if (const std::string no = why_not(with, scheme); !no.empty()) {
        if (job.scheme != FH_CP_AUTO) return Failure{FH_UNSUPPORTED, text("{} {}", no, way_out(job))};
        why.push_back(text("{}: no, {}", name_of(with, scheme), no));
        refusals += text(" {}: {}", name_of(with, scheme), no);
        continue;
      }
      for (Candidate& c : measured(std::move(with), scheme, on_gpu)) all.push_back(std::move(c));
    }
  }
  return all;
}

// With as many K/V heads as query heads, forward, the ring takes what the model of time predicts, and an all-gather 2
// to 7 % more: on 2 H200 with copies, 16 heads, 131072 rows, 51.3 ms where 50.8 are predicted and 53.4 where 50.5 are
// (bench/results/context_parallel). The model does not know why, so it takes the ring where the two are that close.
// With fewer K/V heads, and backward, both are as predicted.
constexpr double close_to_a_ring = 1.02;

double compared_seconds(const Candidate& c) {
  const fh_problem& whole = c.job.whole;
  const bool longer = whole.op == FH_FORWARD && whole.heads_q == whole.heads_kv && c.scheme != FH_CP_RING;
  return longer ? c.seconds * close_to_a_ring : c.seconds;
}

// A limit that the candidate with the smallest buffers keeps to.
Result<uint64_t> least_limit(const std::vector<Candidate>& all, const char* target) {
  const auto least =
      std::min_element(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  return whole_workspace(least->job, least->scheme, target);
}

// The fastest that keeps to the limit, which only FH_CP_AUTO has. Attention is planned, for which kernels may have to
// be compiled, only for a scheme that would be taken.
Result<Candidate> choose(const Job& job, const char* target, bool on_gpu, std::vector<std::string>& why) {
  std::string refusals;
  Result<std::vector<Candidate>> found = candidates(job, on_gpu, why, refusals);
  if (!found) return found.failure();
  std::vector<Candidate>& all = *found;
  if (all.size() > 1 || job.scheme == FH_CP_AUTO)
    for (const Candidate& c : all)
      why.push_back(text("{}: {:.1f} us, workspace of {} in addition to attention's own", name_of(c.job, c.scheme),
                         c.seconds * 1e6, counted(c.bytes, "byte")));
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return compared_seconds(a) < compared_seconds(b); });
  if (job.scheme != FH_CP_AUTO) return all.front();
  for (const Candidate& c : all) {
    uint64_t bytes = c.bytes;
    if (job.workspace_limit > 0 && bytes <= job.workspace_limit) {
      const Result<uint64_t> whole = whole_workspace(c.job, c.scheme, target);
      if (!whole) return whole.failure();
      bytes = *whole;
    }
    if (job.workspace_limit == 0 || bytes <= job.workspace_limit) return c;
    why.push_back(text("{}: over the limit, with {}", name_of(c.job, c.scheme), counted(bytes, "byte")));
    refusals += text(" {}: workspace of {}.", name_of(c.job, c.scheme), counted(bytes, "byte"));
  }
  if (all.empty()) return Failure{FH_UNSUPPORTED, text("no scheme computes this.{} {}", refusals, way_out(job))};
  const Result<uint64_t> enough = least_limit(all, target);
  if (!enough) return enough.failure();
  return Failure{FH_UNSUPPORTED,
                 text("no scheme computes this within workspace_limit, {}.{} Set workspace_limit to at "
                      "least {}, or to 0 for no limit.",
                      counted(job.workspace_limit, "byte"), refusals, *enough)};
}

// Where calls will run.
struct Target {
  bool on_gpu;
  bool is_here;  // not a GPU that was only named: without tensors, its plans say that before anything else
};

// The library's plan of the whole problem, whose refusals name what the user gave, in words for one rank.
Result<Target> checked_by_library(const fh_problem& whole, const char* target) {
  const Result<Attention> plan = planned(whole, target);
  if (!plan) return plan.failure();
  const bool on_gpu = fh_plan_on_gpu(plan->get()) != 0;
  const fh_tensors none = fh_tensors_init();
  return Target{on_gpu, !on_gpu || fh_plan_run(plan->get(), &none, nullptr, 0, nullptr) != FH_NO_DEVICE};
}

Result<void> plan_attention(fh_cp_plan& plan, const char* target) {
  std::vector<uint64_t> bytes;
  for (const fh_problem& p : plan.steps.problems) {
    Result<Attention> made = planned(p, target);
    if (!made) return made.failure();
    plan.attention.push_back(std::move(*made));
    const fh_plan* const attention = plan.attention.back().get();
    bytes.push_back(fh_plan_workspace_bytes(attention));
    if ((fh_plan_on_gpu(attention) != 0) != plan.on_gpu)
      return Failure{FH_UNSUPPORTED,
                     "some calls of the plan run on a GPU and others on the CPU. Name the target, "
                     "\"cpu\" or \"hopper\"."};
  }
  const OwnWorkspace own(plan.steps, bytes);
  uint64_t at = static_cast<uint64_t>(plan.steps.workspace) + own.shared;
  for (const uint64_t slot : own.slots) plan.slots.push_back(at), at += slot;
  plan.workspace = at;
  return {};
}

Result<std::unique_ptr<fh_cp_plan>> plan_of(const Candidate& chosen, int64_t rank, const char* target, bool on_gpu) {
  auto plan = std::make_unique<fh_cp_plan>();
  plan->job = chosen.job;
  plan->rank = rank;
  plan->scheme = chosen.scheme;
  plan->on_gpu = on_gpu;
  plan->seconds = chosen.seconds;
  plan->steps = steps_of(plan->job, chosen.scheme, rank);
  if (plan->job.peer_copies)
    if (Result<void> found = find_peer_places(plan->job, chosen.scheme, rank, plan->steps); !found)
      return found.failure();
  plan->digest = digest_of_plan(plan->job, chosen.scheme);
  if (Result<void> planned = plan_attention(*plan, target); !planned) return planned.failure();
  return plan;
}

}  // namespace

const char* name_of(fh_cp_scheme scheme) {
  switch (scheme) {
    case FH_CP_AUTO: return "auto";
    case FH_CP_RING: return "ring";
    case FH_CP_ALL_GATHER: return "all_gather";
    case FH_CP_ALL_TO_ALL: return "all_to_all";
    case FH_CP_ALL_TO_ALL_RING: return "all_to_all_ring";
    case FH_CP_ALL_TO_ALL_GATHER: return "all_to_all_gather";
  }
  return "unknown";
}

Result<std::unique_ptr<fh_cp_plan>> make_plan(const fh_cp_problem& problem, const char* target) {
  Result<Job> job = job_of(problem);
  if (!job) return job.failure();
  const Result<Target> where = checked_by_library(job->whole, target);
  if (!where) return where.failure();
  std::vector<std::string> why;
  Result<Candidate> chosen = choose(*job, target, where->on_gpu, why);
  if (!chosen) return chosen.failure();
  Result<std::unique_ptr<fh_cp_plan>> plan = plan_of(*chosen, problem.rank, target, where->on_gpu);
  if (!plan) return plan;
  (*plan)->runs_here = where->is_here;
  (*plan)->text = printed(**plan, why);
  return plan;
}

}  // namespace froghopper::cp
