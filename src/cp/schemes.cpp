// SPDX-License-Identifier: Apache-2.0
// cp: advice is asked of why_not, as a plan is, so that what it names is computed.
#include "src/cp/schemes.hpp"

#include <algorithm>
#include <functional>
#include <vector>

#include "src/base/text.hpp"
#include "src/cp/enumerators.hpp"
#include "src/cp/grid.hpp"

namespace froghopper::cp {
namespace {

constexpr size_t most_numbers = 3;  // that are named
constexpr const char* causal = "a causal mask";

// By the scheme that it names; of FH_CP_AUTO by any.
bool is_computed(const Job& job) {
  const bool no_groups = job.scheme != FH_CP_AUTO && !on_grid(job.scheme);
  if (job.heads_ranks != 0 && (no_groups || job.heads_ranks < 0 || job.ranks % job.heads_ranks != 0)) return false;
  for (const fh_cp_scheme scheme : schemes) {
    if (job.scheme != FH_CP_AUTO && job.scheme != scheme) continue;
    for (const int64_t heads_ranks : heads_ranks_of(job, scheme)) {
      Job with = job;
      with.heads_ranks = heads_ranks;
      if (why_not(with, scheme).empty()) return true;
    }
  }
  return false;
}

Job with_scheme(Job job, fh_cp_scheme scheme) {
  job.scheme = scheme;
  settle_layout(job);
  return job;
}
Job with_heads_ranks(Job job, int64_t heads_ranks) { return job.heads_ranks = heads_ranks, job; }
Job with_ranks(Job job, int64_t ranks) { return job.ranks = ranks, job; }
Job with_causal_mask(Job job) {
  job.whole.window_right = 0;
  settle_layout(job);
  return job;
}
Job with_layout(Job job, fh_cp_layout layout) { return job.layout = layout, job.layout_is_open = false, job; }

// "2, 3 or 6"
std::string one_of(const std::vector<std::string>& all) {
  std::string said = all.front();
  for (size_t i = 1; i < all.size(); ++i) said += (i + 1 < all.size() ? ", " : " or ") + all[i];
  return said;
}

// Other schemes that compute a job: those of no grid first, but for who asks for one; and where there are such, no
// grids, which have them as their ends.
std::vector<fh_cp_scheme> others(const Job& job) {
  std::vector<fh_cp_scheme> all;
  const bool grid_first = on_grid(job.scheme) || job.heads_ranks != 0;
  for (const bool grid : {grid_first, !grid_first}) {
    if (!all.empty()) break;
    for (const fh_cp_scheme scheme : schemes)
      if (scheme != job.scheme && on_grid(scheme) == grid && is_computed(with_scheme(job, scheme)))
        all.push_back(scheme);
  }
  return all;
}

// The words for a job that was changed, if a scheme computes it then: the change alone, or other schemes with it.
std::string said_of(const Job& changed, const std::string& change) {
  if (is_computed(changed)) return change;
  std::vector<std::string> names;
  if (changed.scheme != FH_CP_AUTO)
    for (const fh_cp_scheme scheme : others(changed)) names.push_back(c_name(scheme));
  if (names.empty()) return {};
  return change.empty() ? one_of(names) : text("{} with {}", one_of(names), change);
}

// The nearest numbers that are fine.
std::vector<std::string> near(int64_t number, int64_t least, int64_t most, const std::function<bool(int64_t)>& fine) {
  std::vector<int64_t> all;
  for (int64_t by = 1; all.size() < most_numbers && (number - by >= least || number + by <= most); ++by)
    for (const int64_t other : {number - by, number + by})
      if (other >= least && other <= most && all.size() < most_numbers && fine(other)) all.push_back(other);
  std::ranges::sort(all);
  std::vector<std::string> said;
  for (const int64_t one : all) said.push_back(text("{}", one));
  return said;
}

std::string other_heads_ranks(const Job& job) {
  std::vector<std::string> all =
      near(job.heads_ranks, 1, job.ranks, [&](int64_t n) { return is_computed(with_heads_ranks(job, n)); });
  const bool may_be_open = is_computed(with_heads_ranks(job, 0));
  if (may_be_open) all.push_back(all.empty() ? "0" : "0 for the fastest");
  return all.empty() ? std::string() : "heads_ranks " + one_of(all);
}

// Peers that copy are on one host, of which no more ranks are known.
std::string other_numbers_of_ranks(const Job& job) {
  const int64_t most =
      std::min(job.peer_copies ? job.ranks_per_host : most_ranks, std::max(job.ranks, job.whole.heads_q));
  const auto numbers = [&](const Job& asked) {
    return near(job.ranks, 2, most, [&](int64_t ranks) { return is_computed(with_ranks(asked, ranks)); });
  };
  if (const auto all = numbers(job); !all.empty()) return one_of(all) + " ranks";
  for (const fh_cp_scheme scheme : schemes) {
    if (job.scheme == FH_CP_AUTO || scheme == job.scheme) continue;
    if (const auto all = numbers(with_scheme(job, scheme)); !all.empty())
      return text("{} with {} ranks", c_name(scheme), one_of(all));
  }
  return {};
}

}  // namespace

std::string why_not(const Job& job, fh_cp_scheme scheme) {
  const fh_problem& p = job.whole;
  if (job.ranks == 1) return {};
  const bool ring = scheme == FH_CP_RING || scheme == FH_CP_ALL_TO_ALL_RING,
             gather = scheme == FH_CP_ALL_GATHER || scheme == FH_CP_ALL_TO_ALL_GATHER;
  if (ring && p.window_right > 0)
    return text("window_right is {}: the ring takes no window to the right other than 0 and FH_ALL.", p.window_right);
  if (ring && p.alibi) return "alibi is set: blocks of the ring do not keep the distances of keys.";
  if (gather && p.alibi && p.window_right != 0)
    return "alibi is set without a causal mask: the keys fetched do not keep their distances.";
  if ((scheme == FH_CP_ALL_TO_ALL || on_grid(scheme)) && job.by_document() && job.document_count() > most_documents)
    return text(
        "documents is {}, but must be at most {} for an all-to-all in FH_CP_BY_DOCUMENT, which moves each "
        "piece of each by itself.",
        job.document_count(), most_documents);
  const int64_t parts = heads_parts(job, scheme);
  if (parts <= 1) return {};
  const char* const name = on_grid(scheme) ? "heads_ranks" : "ranks";
  if (p.heads_q % parts != 0) return text("heads_q is {}, which {}, {}, does not divide.", p.heads_q, name, parts);
  if (p.heads_kv % parts != 0 && parts % p.heads_kv != 0)
    return text("heads_kv is {} and {} is {}; one must divide the other.", p.heads_kv, name, parts);
  return {};
}

std::string way_out(const Job& job) {
  std::vector<std::string> ways;
  const auto add = [&](std::string way) {
    if (!way.empty()) ways.push_back(std::move(way));
  };
  if (job.heads_ranks != 0) add(other_heads_ranks(job));
  add(said_of(job, {}));
  if (job.heads_ranks != 0 && ways.empty()) add(said_of(with_heads_ranks(job, 0), "heads_ranks 0"));
  std::string said;
  if (ways.empty()) {
    const bool of_alibi = job.whole.alibi != 0 && job.whole.window_right != 0 && job.scheme != FH_CP_ALL_GATHER &&
                          job.scheme != FH_CP_ALL_TO_ALL_GATHER;  // whose own reason that is
    if (job.scheme != FH_CP_AUTO)
      said = text("No other scheme computes it either{}. ", of_alibi ? ", as alibi has no causal mask" : "");
    const Job open = with_heads_ranks(job, 0);
    add(other_numbers_of_ranks(open));
    if (job.by_document()) add(said_of(with_layout(open, FH_CP_CONTIGUOUS), c_name(FH_CP_CONTIGUOUS)));
    if (job.whole.window_right != 0) add(said_of(with_causal_mask(open), causal));
    for (std::string& way : ways)
      if (job.heads_ranks != 0) way += " and heads_ranks 0";
  }
  for (const std::string& way : ways) said += (&way == &ways.front() ? "Use " : ", or ") + way;
  return said + ".";
}

}  // namespace froghopper::cp
