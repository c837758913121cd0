// SPDX-License-Identifier: Apache-2.0
// cli: the support table. Every word in it is an answer of cpu::plan or make_gpu_plan to a problem made for the
// question, so the table cannot promise what the library refuses, nor the other way round.
#include "cli/support.hpp"

#include <functional>
#include <optional>
#include <vector>

#include "src/base/text.hpp"
#include "src/cpu/cpu.hpp"
#include "src/plan/plan.hpp"

namespace froghopper::cli {

namespace {

// The reason of a refusal; nothing where it is computed.
using Backend = std::function<std::optional<std::string>(const Problem&)>;

std::optional<std::string> refused_by_cpu(const Problem& p) {
  const auto plan = cpu::plan(p);
  return plan ? std::nullopt : std::optional(plan.failure().text);
}

std::optional<std::string> refused_by_hopper(const Problem& p) {
  const auto plan = make_gpu_plan(p, known_device("h200"));
  return plan ? std::nullopt : std::optional(plan.failure().text);
}

constexpr int64_t dim_step = 8, dim_most = 256;

Problem plain(fh_op op, Dtype dtype, int64_t dim_qk, int64_t dim_v) {
  Problem p;
  p.op = op;
  p.dtype = p.dtype_kv = p.dtype_o = dtype;
  p.batch = 2;
  p.heads_q = p.heads_kv = 4;
  p.seq_q = p.seq_kv = 1024;
  p.dim_qk = dim_qk;
  p.dim_v = dim_v;
  p.scale = default_scale(dim_qk);
  return p;
}

// What can be asked for besides shapes, and how.
struct Feature {
  const char* name;
  void (*ask)(Problem&);
  bool backward_only = false;
};
constexpr Feature features[] = {
    {"no mask", [](Problem&) {}},
    {"causal", [](Problem& p) { p.window_right = 0; }},
    {"causal, top left", [](Problem& p) { p.window_right = 0, p.align = FH_TOP_LEFT; }},
    {"sliding window, both sides", [](Problem& p) { p.window_left = 100, p.window_right = 50; }},
    {"window to the left, causal", [](Problem& p) { p.window_left = 100, p.window_right = 0; }},
    {"window to the right alone", [](Problem& p) { p.window_right = 50; }},
    {"grouped query heads (GQA)", [](Problem& p) { p.heads_kv = 2; }},
    {"one key head (MQA)", [](Problem& p) { p.heads_kv = 1; }},
    {"packed sequences (varlen)", [](Problem& p) { p.varlen = true, p.total_q = p.total_kv = 2000; }},
    {"used lengths (seqused)", [](Problem& p) { p.seqused = true; }},
    {"varlen, seqused, causal",
     [](Problem& p) { p.varlen = p.seqused = true, p.total_q = p.total_kv = 2000, p.window_right = 0; }},
    {"softcap", [](Problem& p) { p.softcap = 20; }},
    {"sink", [](Problem& p) { p.sink = true; }},
    {"scale of your own", [](Problem& p) { p.scale = 0.5f; }},
    {"deterministic", [](Problem& p) { p.deterministic = true; }},
    {"max_sms", [](Problem& p) { p.max_sms = 2; }},  // gradients of more than 128 columns take two
    {"no queries", [](Problem& p) { p.seq_q = 0; }},
    {"no keys", [](Problem& p) { p.seq_kv = 0; }},
    {"gradients added to what is there", [](Problem& p) { p.accumulate = true; }, true},
};

// Numbers in steps of 8 as "8 to 64, 128".
std::string ranges(const std::vector<int64_t>& dims) {
  std::string all;
  for (size_t i = 0; i < dims.size();) {
    size_t last = i;
    while (last + 1 < dims.size() && dims[last + 1] == dims[last] + dim_step) ++last;
    if (!all.empty()) all += ", ";
    all += last == i ? text("{}", dims[i]) : text("{} to {}", dims[i], dims[last]);
    i = last + 1;
  }
  return all.empty() ? "none" : all;
}

// "yes", or for which head dims, or why not.
std::string answer(const Backend& refusal, fh_op op, Dtype dtype, void (*ask)(Problem&)) {
  std::vector<int64_t> dims, all;
  std::string why;
  for (int64_t dim = dim_step; dim <= dim_most; dim += dim_step) {
    Problem p = plain(op, dtype, dim, dim);
    ask(p);
    all.push_back(dim);
    if (const auto reason = refusal(p)) {
      why = *reason;
    } else {
      dims.push_back(dim);
    }
  }
  if (dims == all) return "yes";
  return dims.empty() ? "no: " + why : "dims " + ranges(dims);
}

// Pairs of unequal dims: which dim_v go with every dim_qk.
std::string pairs(const Backend& refusal, fh_op op) {
  std::vector<int64_t> with_all;
  for (int64_t v = dim_step; v <= dim_most; v += dim_step) {
    bool all = true;
    for (int64_t qk = dim_step; qk <= dim_most; qk += dim_step) all = all && !refusal(plain(op, Dtype::f16, qk, v));
    if (all) with_all.push_back(v);
  }
  if (with_all.empty()) return "no";
  return with_all.size() == dim_most / dim_step ? "yes, any pair"
                                                : "dim_v " + ranges(with_all) + " with every dim_qk";
}

std::string table_of(fh_op op) {
  std::string table = "| | CPU fp32 | CPU fp16 | CPU bf16 | Hopper fp16 | Hopper bf16 |\n|---|---|---|---|---|---|\n";
  for (const Feature& f : features) {
    if (f.backward_only && op != FH_BACKWARD) continue;
    table +=
        text("| {} | {} | {} | {} | {} | {} |\n", f.name, answer(refused_by_cpu, op, Dtype::f32, f.ask),
             answer(refused_by_cpu, op, Dtype::f16, f.ask), answer(refused_by_cpu, op, Dtype::bf16, f.ask),
             answer(refused_by_hopper, op, Dtype::f16, f.ask), answer(refused_by_hopper, op, Dtype::bf16, f.ask));
  }
  const std::string cpu = pairs(refused_by_cpu, op), hopper = pairs(refused_by_hopper, op);
  table += text("| dim_v unlike dim_qk | {} | {} | {} | {} | {} |\n", cpu, cpu, cpu, hopper, hopper);
  return table + text("\nHopper fp32: {}\n", answer(refused_by_hopper, op, Dtype::f32, features[0].ask));
}

}  // namespace

std::string support_table() {
  return "Head dims are all multiples of 8 from 8 to 256 unless a cell says otherwise.\n\n## Forward\n\n" +
         table_of(FH_FORWARD) + "\n## Backward\n\n" + table_of(FH_BACKWARD);
}

}  // namespace froghopper::cli
