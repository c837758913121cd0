// SPDX-License-Identifier: Apache-2.0
// api: what each backend makes of a problem, for people. The numbers are read off the plan, none is decided here.
#include <cmath>

#include "contract/fwd_smem.h"
#include "contract/mask.h"
#include "src/api/run.hpp"
#include "src/base/counted.hpp"
#include "src/base/text.hpp"
#include "src/plan/time.hpp"
#include "src/problem/nothing.hpp"
#include "src/runtime/runtime.hpp"

namespace froghopper {
namespace {

std::string registers_of(const KernelSpec& kernel) {
  auto resources = runtime::resources(kernel);
  if (!resources) return text("unknown: {}", resources.failure().text);
  return text("{} a thread when it starts, {} spilled ({})", resources->registers,
              counted(resources->spill_bytes, "byte"), resources->origin);
}

std::string fetching_of(const Order& order, bool has_tickets) {
  if (!has_tickets) return "one for each CTA, without a ticket";
  if (order.deferred_tiles == 0) return "deferred fetch";
  if (order.deferred_tiles == no_bound<int>) return "eager fetch";
  return text("deferred fetch after items of {} and more", counted(order.deferred_tiles, "kv tile"));
}

std::string order_line(const Order& order, const char* head, bool has_tickets = true) {
  std::string line =
      text("\n  order      {}, {}; in sections of {} of {}", counted(order.items, "work item"),
           fetching_of(order, has_tickets), order.section, counted(order.pairs, text("(sequence, {}) pair", head)));
  if (order.in_sections < order.pairs) line += text(", the last {} as one", order.pairs - order.in_sections);
  return line;
}

std::string step_lines(const ForwardStep& step) {
  const FwdVariant& v = step.variant;
  const Order& order = step.order;
  std::string lines = text("\n  tiles      {} query rows x {} keys, dims {} and {}; {}, {} Q", v.tiles.q, v.tiles.kv,
                           v.dims.qk, v.dims.v, counted(v.tiles.stages, "K and V stage"), fwd_q_stages(v));
  lines += text("\n  warps      {}, {} of {} query rows{}", counted(fwd_producer_warpgroups(v), "producer warpgroup"),
                counted(fwd_consumers(v), "consumer"), m_tile_rows,
                fwd_consumers_per_m_tile(v) > 1 ? ", the same ones, each with half of o's columns" : "");
  if (fwd_dequantises_on_load(v))
    lines += text("\n  dequantise {} to f16, by {} producer warps; {} tiles as in memory on their way",
                  name_of(v.kv.dtype), fwd_dequantises_in_four_warps(v) ? 4 : 2, fwd_stored_stages(v));
  if (fwd_converts_q(v))
    lines += text("\n  q          {} to f16{}", name_of(v.dtype),
                  is_8_bit(v.dtype) ? "" : ", each row by a power of two of its own");
  if (fwd_splits_evenly(v))
    lines += text("\n  order      {} side by side, each of {}; no tickets", counted(step.even.classes, "head"),
                  counted(step.even.ctas / step.even.classes, "CTA"));
  else
    lines += order_line(order, "head", step.has_tickets);
  if (order.tail > 0) lines += text(", the lightest {} of {} q tiles last", order.tail, order.items_of_pair);
  if (v.pack_gqa)
    lines += text("\n  PackGQA    {} a tile, {} of each",
                  counted(step.pack_gqa.heads, "query head shares", "query heads share"),
                  counted(step.pack_gqa.rows, "row"));
  if (fwd_splits_evenly(v))
    lines += "\n  split-KV   the keys of all tiles so that each CTA has equally many";
  else if (step.parts.most > 1)
    lines += text("\n  split-KV   the keys of a tile into parts of {}, {} of the longest sequence",
                  step.parts.tiles * v.tiles.kv, step.parts.most);
  if (step.rows.least > 0) lines += text("\n  sequences  those with {} and more query rows", step.rows.least);
  if (step.second) lines += text("\n  sequences  those with up to {} query rows", step.rows.most);
  if (v.gated) lines += "\n  gate       o is multiplied by its sigmoid before it is rounded";
  return lines;
}

std::string step_lines(const DequantiseStep& step) {
  return text("\n  dequantise k and v from {} to {} in the workspace, once for all query rows",
              name_of(step.variant.dtype), name_of(step.variant.to));
}

std::string step_lines(const FillStep&) { return "\n  values    max_logit of every sequence and head, to -inf"; }

std::string step_lines(const CombineStep& step) {
  if (step.variant.even)
    return text("\n  rows       o and lse of tiles whose keys several of {} have, from the workspace",
                counted(step.even.ctas, "CTA"));
  return text("\n  rows       o and lse of {} a CTA, from up to {} in the workspace",
              counted(combine_rows(step.variant), "row"), counted(step.parts.most, "part"));
}

std::string step_lines(const DeltaStep& step) {
  return text(
      "\n  rows       lse and delta of {} query rows a CTA{}", step.reader.tiles.q,
      step.variant.gated ? "; grad_gate, and grad_o by the sigmoid of gate, which the next kernel reads" : "");
}

std::string step_lines(const BackwardStep& step) {
  const BwdVariant& v = step.variant;
  const Order& order = step.order;
  std::string lines = text("\n  tiles      {} query rows x {} keys, dims {} and {}; {} of Q, {} {} grad_o", v.tiles.q,
                           v.tiles.kv, v.dims.qk, v.dims.v, counted(v.tiles.stages, "stage"), bwd_grad_o_stages(v),
                           bwd_grad_o_slices(v) == 2 ? "halves of" : "of");
  lines += text("\n  warps      1 producer warpgroup, {} consumers: {}", bwd_consumers,
                bwd_has_two_ctas(v) ? "one for grad_v, one for grad_k" : "64 keys each");
  if (bwd_by_columns(v))
    lines += text("\n  clusters   {} CTAs with the same keys; each has {} columns of q and k, and {} of v",
                  bwd_ctas(v), bwd_dims_of_cta(v).qk, bwd_dims_of_cta(v).v);
  else if (bwd_ctas(v) > 1)
    lines += text("\n  clusters   {} CTAs, {} keys each; each adds half of the columns of grad_q", bwd_ctas(v),
                  bwd_keys_of_cta(v));
  lines += order_line(order, "key head");
  if (step.same_traversal > 0)
    lines += text("\n  q tiles    all query heads of one, then those of the next, from the last to the first{}",
                  step.same_traversal < order.pairs
                      ? text("; {} pairs so, the next {} the other way", step.same_traversal, step.same_traversal)
                      : std::string());
  if (step.pairs_light_first > 0)
    lines += text("\n  kv tiles   of {} pairs from the last to the first, of the others from the first to the last",
                  step.pairs_light_first);
  if (v.deterministic)
    lines += "\n  grad_q     its parts are added in the order of the kv tiles: bit-equal from run to run";
  return lines;
}

std::string step_lines(const GradQStep& step) {
  return text("\n  rows       grad_q of {} query rows a CTA, from its sums in the workspace", step.variant.tile_q);
}

std::string step_lines(const QuantiseStep& step) {
  const char* what = "";
  switch (step.scaling) {
    case Scaling::own: what = "each with a scale of its own"; break;
    case Scaling::look: what = "looked at for their largest value"; break;
    case Scaling::shared: what = "with the scale of their sequence and head"; break;
  }
  return text("\n  tiles      {} rows x {} columns, {}; {} of them on their way", quantise_rows, step.variant.dim,
              what, quantise_stages(step.variant));
}

std::string step_lines(const AverageStep& step) {
  if (step.what == Averaging::sum)
    return text("\n  rows       sums of {} of them a CTA, for the means of k and v", average_rows);
  return "\n  rows       means of k and v, one of a sequence and head a CTA";
}

std::string step_lines(const AppendStep& step) {
  return text("\n  rows       {} of {} a CTA, {} for the heads of a row, {} each",
              counted(append_lane_groups_of_cta(step.variant), "group"), counted(append_lanes(step.variant), "lane"),
              step.lane_groups, counted(step.iterations, "iteration"));
}

std::string launch_lines(const Launch& launch) {
  const KernelSpec& kernel = launch.kernel;
  std::string lines =
      text("\n  kernel     {} ({})", kernel.name,
           runtime::is_preset(kernel) ? "a preset, compiled into the library" : "compiled by NVRTC when first used");
  lines += std::visit([](const auto& step) { return step_lines(step); }, launch.step);
  lines += text("\n  registers  {}", registers_of(kernel));
  lines += text("\n  shared     {:.1f} KiB of {:.0f} KiB", kernel.smem_bytes / 1024.0, smem_bytes_per_cta / 1024.0);
  return lines + text("\n  grid       {} of {} threads{}", counted(launch.grid, "CTA"), kernel.threads,
                      launch.one_cta_an_sm ? ", each on an SM of its own" : "");
}

std::string time_line(const Plan& plan, const Device& device) {
  const auto e = estimate(plan, device);
  if (!e) return plan.launches.empty() ? "" : "\n  time       not known: nothing like it is in bench/results";
  std::string line = text("\n  time       {:.{}f} us by the model", e->us, e->us < 100 ? 1 : 0);
  if (e->average.items > 0)
    line += text("; the busiest SM has {} of {:.3f} us and {} of {:.2f} us more, the average SM {:.1f} and {:.1f}",
                 counted(std::lround(e->busiest.iterations), "iteration"), e->rate.iteration_us,
                 counted(std::lround(e->busiest.items), "work item"), e->rate.item_us, e->average.iterations,
                 e->average.items);
  line += text("\n  bound by   {}; of the device's most:", name_of(e->bound));
  if (e->tensor_core > 0)
    line += text(" tensor cores {:.0f} %, exponentials {:.0f} %,", 100 * e->tensor_core, 100 * e->exponentials);
  return line + text(" memory {:.0f} %", 100 * e->memory);
}

std::string gpu_lines(const Device& device, const std::string& where, const Hints& hints, const Plan& plan) {
  std::string lines = text("\non a GPU     {}{} ({})", device.line(), hints.line(), where);
  for (const Launch& launch : plan.launches) lines += launch_lines(launch);
  if (plan.launches.empty())
    lines += text("\n  kernel     none: nothing to compute, as {}", why_nothing(plan.problem));
  lines += text("\n  workspace  {}", counted(plan.workspace.bytes, "byte"));
  for (const auto& [name, slice] : workspace_slices)
    if ((plan.workspace.*slice).bytes > 0) lines += text(", {} {}", name, (plan.workspace.*slice).bytes);
  return lines + time_line(plan, device);
}

// The GPU of the plan, or the one it would be for.
std::string gpu_lines(const Problem& problem, const Target& target, const fh_plan* made) {
  if (made && made->gpu()) {
    if (target.kind == Target::Kind::named)
      return gpu_lines(target.device, "named; it need not be here", target.hints, *made->gpu());
    const auto device = runtime::device(target.ordinal);
    return device ? gpu_lines(*device, text("GPU {}", device->ordinal), target.hints, *made->gpu()) : "";
  }
  const bool is_elsewhere = target.kind == Target::Kind::named || runtime::device(target.ordinal);
  if (is_elsewhere) return "\non a GPU     no";  // "runs on" has the reason
  const Device example = known_device("h200");   // the one most of this library was tuned on
  const auto plan = make_gpu_plan(problem, example, target.hints);
  if (!plan) return text("\non a GPU     no: {}", plan.failure().text);
  if (target.kind == Target::Kind::hopper) return "\non a GPU     no, none is here";
  return gpu_lines(example, "for example; none is here", target.hints, *plan);
}

std::string cpu_words(const cpu::Plan& plan) {
  const Problem& problem = plan.problem;
  return text("{}\n  workspace  {} bytes; {} KiB of scratch a thread{}", plan.how(), plan.workspace_bytes(),
              plan.scratch_bytes() / 1024, problem.ragged() ? ", 16 bytes a sequence" : "");
}

std::string cpu_lines(const Problem& problem, const fh_plan* made) {
  if (made && made->cpu()) return text("\non the CPU   {}", cpu_words(*made->cpu()));
  const auto plan = cpu::plan(problem);
  return text("\non the CPU   {}", plan ? cpu_words(*plan) : text("no: {}", plan.failure().text));
}

std::string decision(const Target& target, const Result<fh_plan>& made) {
  if (!made) return text("nowhere: {}", made.failure().text);
  if (target.kind == Target::Kind::named) return "nowhere: a plan for a named GPU can be read, not run";
  if (made->gpu()) return "hopper";
  return made->why_cpu.empty() ? "cpu" : text("cpu, since: {}", made->why_cpu);
}

// No model has so many key heads, and fewer rows than heads: an exchange of both computes something else in silence.
std::string axes_line(const Problem& p) {
  constexpr int64_t most_heads_kv = 128;
  const bool one_row_each = p.seq_q == 1;  // a step of decoding
  if (p.varlen || p.paged() || p.appends() || one_row_each || p.heads_kv <= most_heads_kv || p.seq_kv == 0 ||
      p.seq_q % p.seq_kv != 0 || p.heads_kv <= p.seq_kv || p.heads_q <= p.seq_q)
    return {};
  return text(
      "\naxes         {} of {} and {}, which no model has. heads_q and heads_kv count heads, seq_q and seq_kv rows, "
      "whichever the tensors have first",
      counted(p.heads_q, "query head"), counted(p.seq_q, "query", "queries"), counted(p.seq_kv, "key"));
}

// Legal, and what a forgotten field is too.
std::string no_keys_line(const Problem& p) {
  if (p.seq_kv > 0 || p.seq_q == 0 || p.appends() || p.quantises()) return {};
  return p.backward() ? "\nkeys         none, as seq_kv is 0: gradients are 0"
                      : "\nkeys         none, as seq_kv is 0: o is 0, and lse is -inf or the sink";
}

}  // namespace

Explanation explain(const Problem& problem, const Target& target) {
  const auto made = make_plan(problem, target);
  const fh_plan* const plan = made ? &*made : nullptr;
  std::string lines = text("problem      {}{}{}\nruns on      {}", problem.line(), axes_line(problem),
                           no_keys_line(problem), decision(target, made));
  if (target.kind != Target::Kind::cpu) lines += gpu_lines(problem, target, plan);
  const bool cpu_too = target.kind == Target::Kind::cpu || target.kind == Target::Kind::automatic;
  if (cpu_too) lines += cpu_lines(problem, plan);
  return {std::move(lines), made ? FH_OK : made.failure().status};
}

}  // namespace froghopper
