// SPDX-License-Identifier: Apache-2.0
// cli: froghopper prepare, kernels compiled ahead of time. NVRTC compiles one program at a time in a process, so every
// kernel is compiled by a process of its own, and the disk cache brings it back.
#include "cli/prepare.hpp"

#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <set>

#include "cli/cases.hpp"
#include "cli/commands.hpp"
#include "src/api/run.hpp"
#include "src/base/cores.hpp"
#include "src/base/counted.hpp"
#include "src/base/text.hpp"
#include "src/runtime/runtime.hpp"

extern char** environ;

namespace froghopper::cli {

namespace {

struct Options {
  std::vector<std::string> what;
  std::string target = "hopper", kernel;
  int64_t processes = cores();
};

constexpr const char* examples =
    "Examples:\n"
    "  froghopper prepare tests/cases/forward.txt\n"
    "  froghopper prepare 'fwd bf16 b1 hq8 hkv8 sq1024 skv1024 d64 softcap30' --target h200\n"
    "  froghopper prepare bench/suites/*.txt --target h100 --processes 8";

// Names, each once.
std::vector<std::string> kernels_to_compile(const std::vector<Problem>& problems, const Device& device,
                                            const Hints& hints) {
  std::set<std::string> names;
  for (const Problem& problem : problems) {
    const auto plan = make_gpu_plan(problem, device, hints);
    if (!plan) continue;
    for (const Launch& launch : plan->launches)
      if (!runtime::is_compiled(launch.kernel)) names.insert(launch.kernel.name);
  }
  return {names.begin(), names.end()};
}

// This program once more, for one kernel; 0 where there is no process.
pid_t start(const std::string& kernel) {
  std::string words[] = {"froghopper", "prepare", "--kernel", kernel};
  char* const arguments[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(), nullptr};
  pid_t process = 0;
  return posix_spawn(&process, "/proc/self/exe", nullptr, nullptr, arguments, environ) == 0 ? process : 0;
}

// 0 where it ended well.
int wait_for(pid_t process) {
  int status = 1;
  return process != 0 && waitpid(process, &status, 0) == process && status == 0 ? 0 : 1;
}

int compile_one(const std::string& name) {
  const auto spec = kernel_named(name);
  if (!spec) return complain(spec.failure());
  const auto resources = runtime::resources(*spec);
  if (!resources) return complain(resources.failure());
  return runtime::is_compiled(*spec) ? exit_ok : complain(exit_run_failed, "the disk cache cannot be written to.");
}

// The oldest of those that run is waited for: kernels take about the same time.
int compile_all(const std::vector<std::string>& names, int64_t processes) {
  const auto began = std::chrono::steady_clock::now();
  const bool many = names.size() > 1;
  processes = std::clamp<int64_t>(processes, 1, static_cast<int64_t>(names.size()));
  if (many) std::fprintf(stderr, "compiling %zu kernels, %d at a time\n", names.size(), static_cast<int>(processes));
  std::vector<pid_t> started;
  int failed = 0;
  size_t ended = 0;
  for (const std::string& name : names) {
    if (started.size() - ended == static_cast<size_t>(processes)) failed += wait_for(started[ended++]);
    started.push_back(start(name));
  }
  while (ended < started.size()) failed += wait_for(started[ended++]);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  if (many) std::fprintf(stderr, "compiled %zu of them in %.1f s\n", names.size() - failed, took.count());
  return failed;
}

// Compiles in that many processes; wanted becomes how many kernels there were. How many of them could not be compiled.
int prepare(const std::vector<Problem>& problems, const std::string& name, int64_t processes, size_t& wanted) {
  const auto target = read_target(name.c_str());
  if (problems.empty() || !target || target->kind == Target::Kind::cpu) return 0;
  const auto device = device_of(*target);
  if (!device) return 0;
  std::vector<Problem> all = problems;  // gradients are computed after the forward pass
  for (const Problem& problem : problems)
    if (problem.backward()) all.push_back(problem.forward());
  const auto names = kernels_to_compile(all, *device, target->hints);
  wanted = names.size();
  return names.empty() ? 0 : compile_all(names, processes);
}

int run(const Options& options) {
  if (!options.kernel.empty()) return compile_one(options.kernel);
  if (options.what.empty()) return complain(exit_bad_input, "which problems? Name lines or files of them.");
  const Cases cases = cases_of(options.what);
  const int unread = complain(cases.wrong);
  if (cases.all.empty()) return unread;
  std::vector<Problem> problems;
  for (const check::Case& c : cases.all)
    if (c.only != "cpu") problems.push_back(c.problem);
  const auto target = read_target(options.target.c_str());
  if (!target) return complain(exit_bad_input, target.failure().text);
  if (target->kind == Target::Kind::cpu) {
    return complain(
        exit_bad_input,
        text("{0} must be a GPU, as the CPU has no kernels to compile, but is \"{1}\". Use {0} h100 where no GPU is "
             "here.",
             as_written("--target", "--backend"), options.target));
  }
  if (const auto device = device_of(*target); !device)
    return complain(exit_code_of(device.failure().status),
                    without_cpu(device.failure().text, "or name a GPU that need not be here: --target h100"));
  size_t wanted = 0;
  const int failed = prepare(problems, options.target, options.processes, wanted);
  if (wanted == 0)
    std::fprintf(stderr, "nothing to compile: what a GPU needs for this is built in or in the disk cache\n");
  if (wanted == 1 && failed == 0) std::fprintf(stderr, "compiled 1 kernel\n");  // of more, compile_all() says it
  if (failed == 0) return unread;
  return complain(exit_run_failed, text("{} not compiled.", counted(failed, "kernel was", "kernels were")));
}

}  // namespace

Result<Device> device_of(const Target& target) {
  return target.kind == Target::Kind::named ? Result<Device>(target.device) : runtime::device(target.ordinal);
}

std::string without_cpu(std::string why, std::string_view way_out) {
  static constexpr std::string_view cpu = "or use target \"cpu\"";
  if (const size_t at = why.rfind(cpu); at != why.npos) why.replace(at, cpu.size(), way_out);
  return why;
}

void prepare_kernels(const std::vector<Problem>& problems, const std::string& target) {
  size_t wanted = 0;
  prepare(problems, target, cores(), wanted);
}

void prepare_command(CLI::App& program, int& exit_code) {
  CLI::App* command = program.add_subcommand("prepare", "Compile the kernels of problems into the disk cache");
  const auto options = std::make_shared<Options>();
  describe_at_length(
      *command,
      "Compiles what the problems need on a GPU, and what is neither built in nor in the disk cache yet, several "
      "kernels\n"
      "at a time. Calls that need them find them there. `check` and `bench` do so for what they are about to run.");
  command->footer(examples);
  command->add_option("what", options->what, "problem lines and files of them")->type_name("LINE|FILE");
  add_target_option(*command, options->target, "a GPU that is here, or one that is only named: h100, h200");
  command->add_option("--processes", options->processes, "how many kernels are compiled at a time")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--kernel", options->kernel, "one kernel by its name, instead of problems");
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace froghopper::cli
