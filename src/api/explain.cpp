// SPDX-License-Identifier: Apache-2.0
// api: what each backend makes of a problem, for people. The numbers are read off the plan, none is decided here.
#include "src/api/run.hpp"
#include "src/base/text.hpp"
#include "src/cpu/cpu.hpp"
#include "src/runtime/runtime.hpp"

namespace froghopper {
namespace {

// Which GPU a plan would be for: the one that is there, else the one most of this library was tuned on.
struct Subject {
  Device device;
  std::string where;  // "GPU 0"
};

Result<Subject> subject_of(const Target& target) {
  if (target.kind == Target::Kind::named) return Subject{target.device, "named; it need not be here"};
  auto device = runtime::device(target.ordinal);
  if (device) return Subject{*device, text("GPU {}", device->ordinal)};
  if (target.kind == Target::Kind::hopper) return device.failure();
  return Subject{Device{}, "for example; none is here"};
}

std::string registers_of(const Plan& plan) {
  auto resources = runtime::resources(plan);
  if (!resources) return text("unknown: {}", resources.failure().text);
  return text("{} a thread when it starts, {} bytes spilled ({})", resources->registers, resources->spill_bytes,
              resources->origin);
}

std::string hopper_lines(const Problem& problem, const Target& target) {
  auto subject = subject_of(target);
  if (!subject) return "\non a GPU     no";  // the reason is the decision's
  std::string lines = text("\non a GPU     {} ({})", subject->device.line(), subject->where);
  auto plan = plan_forward(problem, subject->device);
  if (!plan) return lines + text("\n  refused    {}", plan.failure().text);

  const FwdVariant& v = plan->variant;
  lines += text("\n  kernel     {} ({})", variant_name(v),
                runtime::is_preset(v) ? "a preset, compiled into the library" : "compiled by NVRTC when first used");
  lines += text("\n  tiles      {} query rows x {} keys, dims {} and {}; {} K and V stages, {} Q", v.tile_q,
                v.tile_kv, v.dim_qk, v.dim_v, v.stages, fwd_q_stages(v));
  lines += text("\n  warps      1 producer warpgroup, {} consumers of 64 query rows", fwd_consumers(v));
  lines += text("\n  registers  {}", registers_of(*plan));
  lines += text("\n  shared     {:.1f} KiB of {:.0f} KiB", plan->smem_bytes / 1024.0, smem_bytes_per_cta / 1024.0);
  lines += text("\n  grid       {} CTAs for {} works, in sections of {} (sequence, head) pairs", plan->grid,
                plan->order.works, plan->order.section);
  return lines + text("\n  workspace  {} bytes", plan->workspace_bytes);
}

std::string cpu_lines(const Problem& problem) {
  auto can = cpu::supports(problem);
  if (!can) return text("\non the CPU   no: {}", can.failure().text);
  return text("\non the CPU   {}\n  workspace  0 bytes; at most 4 MB of scratch a thread", cpu::line(problem));
}

std::string decision(const Problem& problem, const Target& target) {
  if (target.kind == Target::Kind::named) return "nowhere: a plan for a named GPU can be read, not run";
  auto plan = make_plan(problem, target);
  if (!plan) return text("nowhere: {}", plan.failure().text);
  if (plan->hopper) return "hopper";
  return plan->why_cpu.empty() ? "cpu" : text("cpu, since: {}", plan->why_cpu);
}

}  // namespace

std::string explain(const Problem& problem, const Target& target) {
  std::string lines = text("problem      {}\nruns on      {}", problem.line(), decision(problem, target));
  if (target.kind != Target::Kind::cpu) lines += hopper_lines(problem, target);
  const bool cpu_too = target.kind == Target::Kind::cpu || target.kind == Target::Kind::automatic;
  return cpu_too ? lines + cpu_lines(problem) : lines;
}

}  // namespace froghopper
