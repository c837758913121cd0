// SPDX-License-Identifier: Apache-2.0
// cli: the support table. Every word in it is an answer of cpu::plan or make_gpu_plan to a problem made for the
// question, so the table cannot promise what the library refuses, nor the other way round.
#include "cli/support.hpp"

#include <functional>
#include <optional>
#include <span>
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

// A column of a table: who is asked, and for which types of q, and of k and v.
struct Column {
  const char* title;
  Backend refusal;
  Dtype q, kv;

  int64_t dim_step() const { return is_8_bit(kv) ? 16 : 8; }
};

const Column columns[] = {{"CPU fp32", refused_by_cpu, Dtype::f32, Dtype::f32},
                          {"CPU fp16", refused_by_cpu, Dtype::f16, Dtype::f16},
                          {"CPU bf16", refused_by_cpu, Dtype::bf16, Dtype::bf16},
                          {"Hopper fp32", refused_by_hopper, Dtype::f32, Dtype::f32},
                          {"Hopper fp16", refused_by_hopper, Dtype::f16, Dtype::f16},
                          {"Hopper bf16", refused_by_hopper, Dtype::bf16, Dtype::bf16}};
const Column columns_8_bit[] = {{"CPU e4m3", refused_by_cpu, Dtype::e4m3, Dtype::e4m3},
                                {"CPU e5m2", refused_by_cpu, Dtype::e5m2, Dtype::e5m2},
                                {"CPU bf16 q, e4m3 k and v", refused_by_cpu, Dtype::bf16, Dtype::e4m3},
                                {"Hopper e4m3", refused_by_hopper, Dtype::e4m3, Dtype::e4m3},
                                {"Hopper e5m2", refused_by_hopper, Dtype::e5m2, Dtype::e5m2},
                                {"Hopper bf16 q, e4m3 k and v", refused_by_hopper, Dtype::bf16, Dtype::e4m3}};
const Column columns_of_append[] = {{"CPU fp32", refused_by_cpu, Dtype::f32, Dtype::f32},
                                    {"CPU fp16", refused_by_cpu, Dtype::f16, Dtype::f16},
                                    {"CPU bf16", refused_by_cpu, Dtype::bf16, Dtype::bf16},
                                    {"CPU bf16 to e4m3", refused_by_cpu, Dtype::bf16, Dtype::e4m3},
                                    {"Hopper fp32", refused_by_hopper, Dtype::f32, Dtype::f32},
                                    {"Hopper fp16", refused_by_hopper, Dtype::f16, Dtype::f16},
                                    {"Hopper bf16", refused_by_hopper, Dtype::bf16, Dtype::bf16},
                                    {"Hopper bf16 to e4m3", refused_by_hopper, Dtype::bf16, Dtype::e4m3},
                                    {"Hopper bf16 to e5m2", refused_by_hopper, Dtype::bf16, Dtype::e5m2}};

Problem plain(fh_op op, const Column& column, int64_t dim_qk, int64_t dim_v) {
  Problem p;
  p.op = op;
  p.dtype = column.q;
  p.dtype_kv = column.kv;
  p.dtype_o = usual_output(column.q);
  p.batch = 2;
  p.heads_q = p.heads_kv = 4;
  p.seq_q = p.seq_kv = 1024;
  p.dim_qk = dim_qk;
  p.dim_v = dim_v;
  p.scale = default_scale(dim_qk);
  return p;
}

// The largest head dim of a column, where nothing else is asked for.
int64_t dim_most(fh_op op, const Column& column) {
  constexpr int64_t most = 512, usual = 256;
  if (op == FH_APPEND) return most;
  return is_8_bit(column.q) || column.refusal(plain(op, column, most, most)) ? usual : most;
}

// What can be asked for besides shapes, and how.
struct Feature {
  const char* name;
  void (*ask)(Problem&);
  bool backward_only = false, of_8_bits_only = false, forward_only = false;
};
constexpr Feature features[] = {
    {"no mask", [](Problem&) {}},
    {"causal", [](Problem& p) { p.window_right = 0; }},
    {"causal, top left", [](Problem& p) { p.window_right = 0, p.align = FH_TOP_LEFT; }},
    {"sliding window, both sides", [](Problem& p) { p.window_left = 100, p.window_right = 50; }},
    {"window to the left, causal", [](Problem& p) { p.window_left = 100, p.window_right = 0; }},
    {"window only to the right", [](Problem& p) { p.window_right = 50; }},
    {"attention chunk", [](Problem& p) { p.attention_chunk = 300; }},
    {"attention chunk, causal", [](Problem& p) { p.attention_chunk = 300, p.window_right = 0; }},
    {"grouped query heads (GQA)", [](Problem& p) { p.heads_kv = 2; }},
    {"one key head (MQA)", [](Problem& p) { p.heads_kv = 1; }},
    {"packed sequences (varlen)", [](Problem& p) { p.varlen = true, p.total_q = p.total_kv = 2000; }},
    {"used lengths (seqused)", [](Problem& p) { p.seqused = true; }},
    {"varlen, seqused, causal",
     [](Problem& p) { p.varlen = p.seqused = true, p.total_q = p.total_kv = 2000, p.window_right = 0; }},
    {"softcap", [](Problem& p) { p.softcap = 20; }},
    {"sink", [](Problem& p) { p.sink = true; }},
    {"ALiBi slopes", [](Problem& p) { p.alibi = true; }},
    {"output gate, o times the sigmoid of a tensor (gate)", [](Problem& p) { p.gate = true; }},
    {"scale of your own", [](Problem& p) { p.scale = 0.5f; }},
    {"deterministic", [](Problem& p) { p.deterministic = true; }},
    {"invariant", [](Problem& p) { p.invariant = true; }, false, false, true},
    {"max_sms", [](Problem& p) { p.max_sms = 2; }},  // gradients above head dim 128 take two
    {"no queries", [](Problem& p) { p.seq_q = 0; }},
    {"no keys", [](Problem& p) { p.seq_kv = 0; }},
    {"gradients added to what is there", [](Problem& p) { p.accumulate = true; }, true},
    {"K and V in pages (page_size, block_table)",
     [](Problem& p) { p.seqused = true, p.page_size = 16, p.pages = 1000, p.window_right = 0; }, false, false, true},
    {"the largest score of each head (max_logit)", [](Problem& p) { p.max_logit = true; }, false, false, true},
    {"o and lse merged with what is there", [](Problem& p) { p.accumulate = true, p.dtype_o = Dtype::f32; }, false,
     false, true},
    {"several calls, of which the last one rounds (phase)",
     [](Problem& p) { p.phase = FH_PHASE_LAST, p.accumulate = p.backward(); }},
    {"a scale for each 128 rows", [](Problem& p) { p.scale_rows = 128; }, false, true},
    {"without the means of k and v (smooth)", [](Problem& p) { p.smooth = true; }, false, true},
    {"a scale for each column of v", [](Problem& p) { p.scale_v_columns = true; }, false, true},
    {"a scale for each row and head (scale_tokens), not with smooth or invariant",
     [](Problem& p) { p.scale_tokens = true; }, false, true},
    {"o in fp16", [](Problem& p) { p.dtype_o = Dtype::f16; }, false, true},
    {"o in fp32", [](Problem& p) { p.dtype_o = Dtype::f32; }, false, true},
};

constexpr Feature features_of_append[] = {
    {"from the first row on", [](Problem&) {}},
    {"behind the rows of a sequence (seqused)", [](Problem& p) { p.seqused = true; }},
    {"packed new rows (varlen)", [](Problem& p) { p.varlen = true, p.total_q = 2000; }},
    {"pages of 16 (page_size, block_table)", [](Problem& p) { p.seqused = true, p.page_size = 16, p.pages = 1000; }},
    {"pages of 1", [](Problem& p) { p.seqused = true, p.page_size = 1, p.pages = 16000; }},
    {"slots (slot_mapping)", [](Problem& p) { p.slots = true, p.page_size = 16, p.pages = 1000, p.seq_kv = 0; }},
    {"RMS norm of q and k (norm)", [](Problem& p) { p.norm = true, p.norm_epsilon = 1e-6f; }},
    {"rotary embedding of a multiple of 16 columns",
     [](Problem& p) { p.rotary_dim = p.dim_qk / 16 * 16, p.rotary_rows = 4096; }},
    {"rotary embedding, interleaved, positions, tables in fp32",
     [](Problem& p) {
       p.rotary_dim = p.dim_qk / 16 * 16, p.rotary_rows = 4096, p.rotary_interleaved = p.positions = true;
       p.dtype_rotary = Dtype::f32;
     }},
    {"rotary embedding of 2 columns", [](Problem& p) { p.rotary_dim = 2, p.rotary_rows = 4096; }},
    {"a scale for each row and head (scale_tokens)", [](Problem& p) { p.scale_tokens = true; }, false, true},
};

// Numbers in steps as "8 to 64, 128".
std::string ranges(const std::vector<int64_t>& dims, int64_t step) {
  std::string all;
  for (size_t i = 0; i < dims.size();) {
    size_t last = i;
    while (last + 1 < dims.size() && dims[last + 1] == dims[last] + step) ++last;
    if (!all.empty()) all += ", ";
    all += last == i ? text("{}", dims[i]) : text("{} to {}", dims[i], dims[last]);
    i = last + 1;
  }
  return all.empty() ? "none" : all;
}

// "yes", or for which head dims, or why not.
std::string answer(const Column& column, fh_op op, void (*ask)(Problem&)) {
  std::vector<int64_t> dims, all;
  std::string why;
  const int64_t most = dim_most(op, column);
  for (int64_t dim = column.dim_step(); dim <= most; dim += column.dim_step()) {
    Problem p = plain(op, column, dim, dim);
    ask(p);
    all.push_back(dim);
    if (const auto reason = column.refusal(p)) {
      why = *reason;
    } else {
      dims.push_back(dim);
    }
  }
  if (dims == all) return "yes";
  return dims.empty() ? "no: " + why : "dims " + ranges(dims, column.dim_step());
}

// Pairs of unequal dims: which dim_v go with every dim_qk.
std::string pairs(const Column& column, fh_op op) {
  const int64_t step = column.dim_step(), most = dim_most(op, column);
  std::vector<int64_t> with_all;
  for (int64_t v = step; v <= most; v += step) {
    bool all = true;
    for (int64_t qk = step; qk <= most; qk += step) all = all && !column.refusal(plain(op, column, qk, v));
    if (all) with_all.push_back(v);
  }
  if (with_all.empty()) return "no";
  return static_cast<int64_t>(with_all.size()) == most / step
             ? "yes, any pair"
             : "dim_v " + ranges(with_all, step) + " with every dim_qk";
}

// Columns where nothing is computed are lines below the table.
std::string table_of(fh_op op, std::span<const Column> all, bool of_8_bits,
                     std::span<const Feature> features = froghopper::cli::features) {
  std::string titles = "|", rule = "|---|", last = "| dim_v unlike dim_qk |", below;
  std::vector<const Column*> shown;
  for (const Column& column : all) {
    if (const std::string plain = answer(column, op, features[0].ask); plain.starts_with("no: ")) {
      below += text("\n{}: {}\n", column.title, plain);
      continue;
    }
    shown.push_back(&column);
    titles += text(" | {}", column.title);
    rule += "---|";
    last += text(" {} |", pairs(column, op));
  }
  std::string table = titles + " |\n" + rule + "\n";
  for (const Feature& f : features) {
    if ((f.backward_only && op != FH_BACKWARD) || (f.forward_only && op != FH_FORWARD)) continue;
    if (f.of_8_bits_only && !of_8_bits) continue;
    table += text("| {} |", f.name);
    for (const Column* column : shown)
      table += f.of_8_bits_only && !is_8_bit(column->kv) ? " - |" : text(" {} |", answer(*column, op, f.ask));
    table += "\n";
  }
  return table + last + "\n" + below;
}

}  // namespace

std::string support_table() {
  return "Head dims are all multiples of 8 from 8 to 512; of 8-bit types of 16, to 256 where q is 8-bit; "
         "unless a cell says otherwise.\n\n"
         "## Forward\n\n" +
         table_of(FH_FORWARD, columns, false) + "\n## Forward, 8-bit types\n\n" +
         table_of(FH_FORWARD, columns_8_bit, true) + "\n## Backward\n\n" + table_of(FH_BACKWARD, columns, false) +
         "\n## Append, also 8-bit up to 512\n\n" + table_of(FH_APPEND, columns_of_append, true, features_of_append);
}

}  // namespace froghopper::cli
