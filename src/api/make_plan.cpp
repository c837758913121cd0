// SPDX-License-Identifier: Apache-2.0
// api: which backend computes a problem. The user says where, or "auto": the Hopper GPU if there is one and it can,
// else the CPU, with the reason kept.
#include <charconv>
#include <cstring>

#include "src/api/run.hpp"
#include "src/base/log.hpp"
#include "src/base/text.hpp"
#include "src/cpu/cpu.hpp"
#include "src/runtime/runtime.hpp"

namespace froghopper {
namespace {

Result<fh_plan> make_plan_anywhere(const Problem& problem) {
  auto device = runtime::device(-1);
  Failure why_not = device ? Failure{FH_OK, {}} : device.failure();
  if (device) {
    auto plan = make_plan_on(problem, *device);
    if (plan) return plan;
    why_not = plan.failure();
  }
  auto plan = make_plan_on_cpu(problem);
  if (!plan) return plan;
  plan->why_cpu = why_not.text;
  if (log_wanted()) log(text("auto: the CPU computes {}, since: {}", problem.line(), why_not.text));
  return plan;
}

Result<fh_plan> make_plan_to_read(const Problem& problem, const Device& device) {
  auto plan = plan_forward(problem, device);
  if (!plan) return plan.failure();
  std::string line = plan->line();
  return fh_plan{
      .problem = problem, .hopper = std::move(*plan), .runs_here = false, .why_cpu = {}, .line = std::move(line)};
}

}  // namespace

Result<fh_plan> make_plan(const Problem& problem, const Target& target) {
  switch (target.kind) {
    case Target::Kind::cpu: return make_plan_on_cpu(problem);
    case Target::Kind::named: return make_plan_to_read(problem, target.device);
    case Target::Kind::automatic: return make_plan_anywhere(problem);
    case Target::Kind::hopper: break;
  }
  auto device = runtime::device(target.ordinal);
  if (!device) return device.failure();
  return make_plan_on(problem, *device);
}

Result<fh_plan> make_plan_on(const Problem& problem, const Device& device) {
  auto plan = make_plan_to_read(problem, device);
  if (!plan) return plan;
  auto prepared = runtime::prepare(*plan->hopper, device.ordinal);
  if (!prepared) return prepared.failure();
  plan->runs_here = true;
  if (log_wanted()) log(text("plan: {}", plan->line));
  return plan;
}

Result<fh_plan> make_plan_on_cpu(const Problem& problem) {
  auto can = cpu::supports(problem);
  if (!can) return can.failure();
  fh_plan plan{.problem = problem, .hopper = {}, .runs_here = true, .why_cpu = {}, .line = {}};
  plan.line = text("{} -> {}", problem.line(), cpu::line(problem));
  if (log_wanted()) log(text("plan: {}", plan.line));
  return plan;
}

Result<Target> read_target(const char* target) {
  using Kind = Target::Kind;
  const std::string_view name = target ? target : "auto";
  if (name == "auto") return Target{};
  if (name == "cpu") return Target{.kind = Kind::cpu, .ordinal = -1, .device = {}};
  if (name == "hopper") return Target{.kind = Kind::hopper, .ordinal = -1, .device = {}};

  const std::string_view numbered = "hopper:";
  if (name.substr(0, numbered.size()) == numbered) {
    Target hopper{.kind = Kind::hopper, .ordinal = -1, .device = {}};
    const char* const end = name.data() + name.size();
    const auto read = std::from_chars(name.data() + numbered.size(), end, hopper.ordinal);
    if (read.ec == std::errc() && read.ptr == end && hopper.ordinal >= 0) return hopper;
    return Failure{FH_NO_DEVICE, text("target is \"{}\"; behind \"hopper:\" stands the number of a GPU. Use "
                                      "\"hopper:0\" for the first one.",
                                      name)};
  }

  auto device = Device::parse(std::string(name));
  if (device) return Target{.kind = Kind::named, .ordinal = -1, .device = std::move(*device)};
  return Failure{FH_NO_DEVICE, text("target is \"{}\", which names neither a backend nor a GPU: {} Use \"auto\", "
                                    "\"hopper\", \"hopper:1\", \"cpu\" or a GPU to plan for, \"h200 132sm\".",
                                    name, device.failure().text)};
}

}  // namespace froghopper
