// SPDX-License-Identifier: Apache-2.0
// cp: a plan as lines of text.
#include "src/base/counted.hpp"
#include "src/base/text.hpp"
#include "src/cp/grid.hpp"
#include "src/cp/plan.hpp"
#include "src/cp/ranges.hpp"
#include "src/cp/time.hpp"

namespace froghopper::cp {
namespace {

constexpr size_t most_lines = 400;  // of a plan for thousands of ranks

// How much goes to or comes from each peer, peers in the order of transfers.
std::string peers(const std::vector<Transfer>& transfers) {
  std::vector<std::pair<int64_t, int64_t>> sums;
  for (const Transfer& t : transfers) {
    const auto found = std::find_if(sums.begin(), sums.end(), [&](const auto& sum) { return sum.first == t.peer; });
    if (found == sums.end())
      sums.emplace_back(t.peer, t.bytes);
    else
      found->second += t.bytes;
  }
  constexpr size_t most = 8;
  std::string all;
  for (size_t i = 0; i < sums.size() && i < most; ++i)
    all += text("{}{}: {}", i == 0 ? "" : ", ", sums[i].first, sums[i].second);
  if (sums.size() > most) all += text(", and {} more", sums.size() - most);
  return all.empty() ? "nothing" : all;
}

const char* name_of(Buffer buffer) {
  constexpr const char* names[buffer_count] = {"none",   "workspace", "q",         "k",      "v",        "o",
                                               "lse",    "sink",      "slopes",    "grad_o", "grad_lse", "grad_q",
                                               "grad_k", "grad_v",    "grad_sink", "tables", "scale_k",  "scale_v"};
  return names[static_cast<int>(buffer)];
}

int64_t longest_document(const Job& job) {
  int64_t most = 0;
  for (size_t i = 1; i < job.documents.size(); ++i) most = std::max(most, job.documents[i] - job.documents[i - 1]);
  return most;
}

const char* name_of(fh_cp_layout layout) {
  return layout == FH_CP_ZIGZAG ? "zigzag" : layout == FH_CP_BY_DOCUMENT ? "by_document" : "contiguous";
}

// Where heads are exchanged, ranks share the work of their group; where one group is all ranks, they have equal work.
std::string documents_line(const fh_cp_plan& plan) {
  const Job& job = plan.job;
  std::string line = text("  {}, the longest of {}", counted(job.documents.size() - 1, "document"),
                          counted(longest_document(job), "row"));
  if (const Job groups = job_between_groups(job, heads_parts(job, plan.scheme)); groups.ranks > 1) {
    const Balance balance = balance_of(groups);
    line += text("; a rank has {:.2f} to {:.2f} of the mean pairs of a query and a key", balance.least, balance.most);
  }
  return line + "\n";
}

std::string rows_held(const Job& job, int64_t rank) {
  constexpr size_t most = 16;
  const std::vector<Range> ranges = joined(ranges_of(job, rank));
  std::string all;
  for (size_t i = 0; i < ranges.size() && i < most; ++i) all += text(" {} to {}", ranges[i].begin, ranges[i].end);
  if (ranges.size() > most) all += text(" and {} more, {}", ranges.size() - most, counted(rows_of(ranges), "row"));
  return all.empty() ? " none" : all;
}

std::string mask(const fh_problem& p) {
  const std::string left = p.window_left == FH_ALL ? "all" : text("{}", p.window_left);
  const std::string right = p.window_right == FH_ALL ? "all" : text("{}", p.window_right);
  if (p.window_left == FH_ALL && p.window_right == FH_ALL) return p.causal ? "causal" : "all pairs";
  return p.causal ? text("causal, window {}", left) : text("window {} to {}", left, right);
}

const char* merged(const fh_problem& p) {
  switch (p.phase) {
    case FH_PHASE_FIRST: return ", first of its calls";
    case FH_PHASE_MIDDLE: return ", merged";
    case FH_PHASE_LAST: return ", merged and rounded";
    default: return p.phase != FH_PHASE_ONLY && p.accumulate ? ", merged" : "";
  }
}

struct Line {
  const fh_cp_plan& plan;
  std::string operator()(const Exchange& s) const {
    return text("exchange {}: from {}; to {} bytes", s.what, peers(s.recvs), peers(s.sends));
  }
  std::string operator()(const Wait&) const { return "wait for the oldest exchange"; }
  std::string operator()(const Fill& s) const {
    return text("fill {}, {}", name_of(s.to.buffer), counted(s.words, "word"));
  }
  std::string operator()(const Copy& s) const {
    return text("copy {} to {}, {} of {}", name_of(s.from.buffer), name_of(s.to.buffer), counted(s.rows, "row"),
                counted(s.bytes, "byte"));
  }
  std::string operator()(const Add& s) const {
    return text("add to {}, {}", name_of(s.into.buffer), counted(s.count, "value"));
  }
  std::string operator()(const Convert& s) const {
    return text("round to {}, {}", name_of(s.to.buffer), counted(s.count, "value"));
  }
  std::string operator()(const Spread& s) const {
    return text("spread sink to lse, {} of {}", counted(s.rows, "row"), counted(s.columns, "value"));
  }
  std::string operator()(const Attend& s) const {
    const fh_problem& p = plan.steps.problems[s.problem];
    const char* const what = p.op == FH_BACKWARD ? "gradients of" : "attend";
    const bool rounds = p.op == FH_BACKWARD && p.phase != FH_PHASE_NONE && !p.accumulate;
    const std::string how =
        text("{}{}{}: {:.3g} FLOP", mask(p), merged(p), rounds ? ", dk and dv rounded" : "", flops_of(p, s.pairs));
    if (p.varlen)
      return text("{} {} from {} on in {}, {} from {} on, {}", what, counted(s.rows, "row"), s.row,
                  counted(p.batch, "document"), counted(p.total_kv, "key"), s.key, how);
    return text("{} rows {} to {}, {} from {} on, {}", what, s.row, s.row + p.seq_q, counted(p.seq_kv, "key"), s.key,
                how);
  }
};

}  // namespace

std::string printed(const fh_cp_plan& plan, const std::vector<std::string>& why) {
  const Job& job = plan.job;
  std::string all =
      text("{} {} rank {} of {}, {} layout, {} of workspace, in {} and out {} bytes, {:.1f} us\n",
           plan.on_gpu ? "gpu" : "cpu", name_of(job, plan.scheme), plan.rank, job.ranks, name_of(job.layout),
           counted(plan.workspace, "byte"), plan.steps.bytes_in, plan.steps.bytes_out, plan.seconds * 1e6);
  if (job.packed()) all += documents_line(plan);
  if (job.kv_has_8_bits())
    all += text("  k and v move and are attended to in {}, with one scale for each head\n",
                job.whole.dtype_kv == FH_E4M3 ? "e4m3" : "e5m2");
  all += topology_line(job, plan.on_gpu);
  for (const std::string& line : why) all += "  " + line + "\n";
  all += "  rows" + rows_held(job, plan.rank) + "\n";
  size_t number = 0;
  for (const Step& step : plan.steps.steps) {
    if (number == most_lines) {
      all += text("  and {}\n", counted(plan.steps.steps.size() - number, "more step"));
      break;
    }
    all += text("  {:4} {:10.2f} us  {}\n", number++,
                seconds_alone(job, plan.steps, step, plan.rank, plan.on_gpu) * 1e6, std::visit(Line{plan}, step));
  }
  all.pop_back();  // as fh_explain has it
  return all;
}

}  // namespace froghopper::cp
