// SPDX-License-Identifier: Apache-2.0
// cli: froghopper bench, the speed of a backend, one row a problem and one JSON line a measurement.
#include "cli/bench.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "check/places.hpp"
#include "check/read_speed.hpp"
#include "cli/cases.hpp"
#include "cli/commands.hpp"
#include "cli/prepare.hpp"
#include "cli/records.hpp"
#include "cli/work.hpp"
#include "src/api/run.hpp"
#include "src/base/printable.hpp"
#include "src/base/text.hpp"
#include "src/plan/time.hpp"
#include "src/problem/nothing.hpp"
#include "src/runtime/runtime.hpp"

namespace froghopper::cli {

namespace {

struct Options {
  std::vector<std::string> what;
  std::string backend = "auto", tiles, hints, json, commit = "unknown";
  Effort effort;
  bool host = false, cold = false;

  // The target of fh_plan_create: the backend, and what its planner shall do otherwise. Hints are for a GPU, so with
  // them "auto" is one.
  std::string target() const {
    std::string words = tiles.empty() ? "" : " tiles=" + tiles;
    if (!hints.empty()) words += " " + hints;
    const bool gpu = host || cold || (backend == "auto" && !words.empty());
    return (gpu ? "hopper" : backend) + words;
  }
};

// What is measured when nothing is named: small enough for a CPU, large enough to fill a GPU.
constexpr const char* first_look[] = {
    "fwd bf16 b4 hq16 hkv16 sq1024 skv1024 d128",
    "fwd bf16 b4 hq16 hkv16 sq1024 skv1024 d128 causal",
    "bwd bf16 b4 hq16 hkv16 sq1024 skv1024 d128 causal",
};
// Host cost does not depend on sizes, so the GPU gets little to do.
constexpr const char* smallest_look = "fwd bf16 b1 hq1 hkv1 sq64 skv64 d128";

constexpr const char* examples =
    "Examples:\n"
    "  froghopper bench\n"
    "  froghopper bench 'fwd bf16 b2 hq16 hkv4 sq4096 skv4096 d128 causal' --json mine.jsonl\n"
    "  froghopper bench bench/suites/training_fwd.txt --backend hopper --ms 50\n"
    "  froghopper bench bench/suites/append.txt --backend hopper --cold --json bench/results/append/h100.jsonl\n"
    "  froghopper bench 'fwd bf16 b2 hq16 hkv4 sq4096 skv4096 d128 causal' --tiles 128x128s2 --hints 'tail=30%'\n"
    "  froghopper bench --host\n"
    "bench/speed.py measures against other libraries, in turns.";

int measure(const check::Case&, const Options&, bool& header_wanted);
std::string if_any(double number, int digits);
// What was computed, and how fast memory is read where a GPU computed it; 0 and nothing where it is not the computation
// that was timed.
struct Done {
  double flops = 0, bytes = 0;
  std::optional<check::ReadSpeed> reads;  // on the GPU that computed it
};
Done done_by(const Problem&, const Views&, const std::optional<check::ReadSpeed>&);
std::string roof_of(const fh_plan&, const Target&, double ms);
std::optional<check::ReadSpeed> reads_beside(const fh_plan&);
std::optional<double> share_of_reads(const Done&, double ms);
Result<check::PlanHandle> plan_first_pass(const Problem&, const fh_plan*);
Result<void> run_first_pass(Stand&, const Problem&, const fh_plan* first);
int print_host_cost(Stand&, const check::Case&, const fh_plan*, const Options&);
bool append(const Options&, const Stand&, const check::Case&, const std::string& plan, const Timing&, const Done&,
            const std::string& turn_group);
std::string new_turn_group();

// Of options that only a GPU has, where none is here.
std::string no_gpu_for(const Options& options) {
  const std::pair<const char*, bool> all[] = {{"--host", options.host},
                                              {"--cold", options.cold},
                                              {"--tiles", !options.tiles.empty()},
                                              {"--hints", !options.hints.empty()}};
  std::string given;
  for (const auto& [name, is_given] : all)
    if (is_given) given += text("{}{}", given.empty() ? "" : " and ", name);
  if (given.empty()) return {};
  const auto device = device_of(*read_target(options.target().c_str()));
  return device ? "" : without_cpu(device.failure().text, text("or leave {} out", given));
}

int run(const Options& options) {
  std::vector<std::string> what = options.what;
  if (what.empty() && options.host) what.assign(1, smallest_look);
  if (what.empty()) what.assign(std::begin(first_look), std::end(first_look));
  const Cases read = cases_of(what);
  const int unread = complain(read.wrong);
  if (read.all.empty()) return unread;
  const std::vector<check::Case>& cases = read.all;
  const bool has_backward = std::ranges::any_of(cases, [](const check::Case& c) { return c.problem.backward(); });
  if (options.host && options.backend == "cpu")
    return complain(exit_bad_input, text("--host is the cost of handing work to a GPU; leave {} cpu out.",
                                         as_written("--backend", "--target")));
  if (options.cold && (options.backend == "cpu" || options.host || has_backward))
    return complain(
        exit_bad_input,
        text("--cold takes turns among copies of a forward or append problem's tensors on a GPU; leave {} cpu, "
             "--host and bwd lines out.",
             as_written("--backend", "--target")));
  if (!options.tiles.empty() && !read_target(("hopper tiles=" + options.tiles).c_str())) {
    return complain(
        exit_bad_input,
        text("--tiles must be the tiles of a kernel, as 128x80s2, but is \"{}\". Leave it out for the tuned "
             "ones.",
             shown(options.tiles)));
  }
  if (!options.hints.empty() && !read_target(("hopper " + options.hints).c_str())) {
    return complain(
        exit_bad_input,
        text("--hints must be words as in 'section=16MiB tail=30% deferred=8', but is \"{}\". froghopper bench "
             "--help has all of them.",
             shown(options.hints, shown_of_line)));
  }
  if (const auto target = read_target(options.target().c_str()); !target)
    return complain(exit_bad_input, target.failure().text);
  if (const std::string why = no_gpu_for(options); !why.empty()) return complain(exit_no_device, why);
  if (!can_append(options.json))
    return complain(exit_run_failed, text("{} cannot be written to. Name another file for --json.", options.json));

  std::vector<Problem> problems;
  for (const check::Case& c : cases) problems.push_back(c.problem);
  prepare_kernels(problems, options.target());

  bool header_wanted = true;
  int worst = unread;
  for (size_t i = 0; i < cases.size(); ++i) {
    std::fprintf(stderr, "[%zu/%zu] %s\n", i + 1, cases.size(), cases[i].line().c_str());
    const int code = measure(cases[i], options, header_wanted);
    if (code != exit_ok && code != exit_unsupported) return code;
    if (worst == exit_ok) worst = code;                    // the rest of a suite is measured all the same
    if (std::fflush(stdout) != 0) return exit_run_failed;  // main() says what failed
  }
  return worst;
}

int measure(const check::Case& c, const Options& options, bool& header_wanted) {
  const auto plan = check::create_plan(c.problem, options.target());
  if (!plan) return complain(plan.failure());
  const auto inputs = check::make_inputs_to_measure(c, 1);
  const auto views = bind(c.problem, inputs->tensors);
  if (!views) return complain(views.failure());
  if (auto enough = check::pages_suffice(c.problem, *views); !enough) return complain(enough.failure());
  const auto first = plan_first_pass(c.problem, plan->get());
  if (!first) return complain(first.failure());
  const size_t workspace = std::max(fh_plan_workspace_bytes(plan->get()), fh_plan_workspace_bytes(first->get()));
  const auto reads = options.host ? std::nullopt : reads_beside(**plan);  // before the case's tensors take memory
  const auto stand = fh_plan_on_gpu(plan->get()) ? make_gpu_stand(*inputs, workspace, options.cold)
                                                 : make_cpu_stand(*inputs, workspace);
  if (!stand) return complain(stand.failure());
  if (auto ran = run_first_pass(**stand, c.problem, first->get()); !ran) return complain(ran.failure());
  if (options.host) return print_host_cost(**stand, c, plan->get(), options);

  const auto timing = time_plan(**stand, plan->get(), options.effort);
  if (!timing) return complain(timing.failure());
  const auto target = read_target(options.target().c_str());  // run() has seen that it can be read
  const Done done = done_by(c.problem, *views, reads);
  const auto share = share_of_reads(done, timing->ms);
  const std::string clock = timing->sm_clock_mhz ? text("{}", timing->sm_clock_mhz) : "-";
  const std::string line = fh_plan_line(plan->get()) + target->hints.line();
  const bool table = !is_stdout(options.json);
  if (header_wanted && table)
    std::printf("%11s %6s %9s %9s %8s %5s %5s %15s  %s\n", "ms", "+-", "TFLOP/s", "MB", "GB/s", "read", "MHz",
                "roof, model", "problem -> plan");
  header_wanted = false;
  if (table)
    std::printf("%11.4f %5.1f%% %9s %9s %8s %5s %5s %15s  %s\n", timing->ms, timing->spread,
                if_any(done.flops / timing->ms / 1e9, 3).c_str(), if_any(done.bytes / 1e6, 3).c_str(),
                if_any(done.bytes / timing->ms / 1e6, 1).c_str(), share ? text("{:.0f}%", 100 * *share).c_str() : "-",
                clock.c_str(), done.bytes > 0 ? roof_of(**plan, *target, timing->ms).c_str() : "-", line.c_str());
  if (!append(options, **stand, c, line, *timing, done, new_turn_group()))
    return complain(exit_run_failed, text("writing to {} failed.", options.json));
  return exit_ok;
}

// Where no row attends to a key, or none is written, a call has a time but no speed: nothing is computed, and of the
// tensors nothing must be read.
Done done_by(const Problem& p, const Views& views, const std::optional<check::ReadSpeed>& reads) {
  const bool copies = p.quantises() || p.appends();
  const double work = flops(p, views);
  if (copies ? !why_nothing(p).empty() : work == 0) return {};
  return {.flops = work, .bytes = bytes(p, views), .reads = reads};
}

// "-" for what there is none of.
std::string if_any(double number, int digits) { return number > 0 ? text("{:.{}f}", number, digits) : "-"; }

// "-" where there is no model of the time.
std::string roof_of(const fh_plan& plan, const Target& target, double ms) {
  if (!plan.gpu()) return "-";
  const auto device = runtime::device(target.ordinal);
  const auto model = device ? estimate(*plan.gpu(), *device) : std::nullopt;
  return model ? share_of_roof(*model, 1e3 * ms) : "-";
}

// Nothing on a CPU, or where the GPU has no memory for it.
std::optional<check::ReadSpeed> reads_beside(const fh_plan& plan) {
  if (!plan.gpu()) return std::nullopt;
  const auto& speed = check::read_speed();
  return speed ? std::optional(*speed) : std::nullopt;
}

std::optional<double> share_of_reads(const Done& done, double ms) {
  return done.reads ? std::optional(done.bytes / (1e6 * done.reads->gbps * ms)) : std::nullopt;
}

// The plan that gives a backward problem its o and lse, where the other plan runs; null for a forward problem.
Result<check::PlanHandle> plan_first_pass(const Problem& p, const fh_plan* plan) {
  if (!p.backward()) return check::PlanHandle(nullptr, &fh_plan_destroy);
  return check::create_plan(p.forward(), fh_plan_on_gpu(plan) ? "hopper" : "cpu");
}

Result<void> run_first_pass(Stand& stand, const Problem& p, const fh_plan* first) {
  if (!first) return {};
  const fh_tensors tensors = check::tensors_of(p.forward(), stand.tensors());
  const fh_status status = fh_plan_run(first, &tensors, stand.workspace(), stand.workspace_bytes(), stand.stream());
  if (status != FH_OK) return check::last_failure(status);
  return stand.finish();
}

int print_host_cost(Stand& stand, const check::Case& c, const fh_plan* plan, const Options& options) {
  constexpr int rounds = 100;  // of a millisecond each
  const auto cost = time_host(stand, c.problem, options.target(), plan, rounds);
  if (!cost) return complain(cost.failure());
  if (!is_stdout(options.json)) {
    std::printf("%8.2f us +-%.1f%%  fh_plan_run\n", cost->plan_run.ms * 1e3, cost->plan_run.spread);
    std::printf("%8.2f us +-%.1f%%  fh_attention, plan in the cache\n", cost->attention.ms * 1e3,
                cost->attention.spread);
  }
  const std::string group = new_turn_group();
  if (append(options, stand, c, "host: fh_plan_run", cost->plan_run, {}, group) &&
      append(options, stand, c, "host: fh_attention", cost->attention, {}, group))
    return exit_ok;
  return complain(exit_run_failed, text("writing to {} failed.", options.json));
}

bool append(const Options& options, const Stand& stand, const check::Case& c, const std::string& plan,
            const Timing& timing, const Done& done, const std::string& turn_group) {
  if (options.json.empty()) return true;
  const auto rounded = [](double x, double parts) { return std::round(x * parts) / parts; };
  const auto if_known = [](bool known, auto value) {
    return known ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
  };
  const auto share = share_of_reads(done, timing.ms);
  const double speed = done.flops / timing.ms / 1e9, rate = done.bytes / timing.ms / 1e6;
  const nlohmann::ordered_json record = {
      {"problem", c.problem.line()},
      {"pass", c.problem.appends()     ? "append"
               : c.problem.quantises() ? "quantise"
               : c.problem.backward()  ? "bwd"
                                       : "fwd"},
      {"impl", "froghopper"},
      {"plan", without_problem(plan)},
      {"ms", rounded(timing.ms, 1e6)},
      {"spread", rounded(timing.spread, 1e2)},
      {"tflops", if_known(done.flops > 0, rounded(speed, 1e4))},
      {"bytes", if_known(done.bytes > 0, static_cast<int64_t>(done.bytes))},
      {"gbps", if_known(done.bytes > 0, rounded(rate, 10))},
      {"cold", options.cold},
      {"read_share", if_known(share.has_value(), rounded(share.value_or(0), 1e4))},
      {"read_gbps", if_known(share.has_value(), done.reads ? rounded(done.reads->gbps, 10) : 0)},
      {"read_by", if_known(share.has_value(), done.reads ? done.reads->kernel : "")},
      {"sm_clock_mhz", if_known(timing.sm_clock_mhz > 0, timing.sm_clock_mhz)},
      {"gpu", stand.machine()},
      {"driver", stand.driver()},
      {"commit", options.commit},
      {"date", now(date_and_time)},
      {"turn_group", turn_group},
  };
  return append_line(options.json, record);
}

// Rows of `bench` were not measured in turns with each other, so each is a group of its own.
std::string new_turn_group() { return text("{}-{:06x}", now("%Y%m%dT%H%M%SZ"), std::random_device{}() & 0xffffff); }

}  // namespace

void bench_command(CLI::App& program, int& exit_code) {
  CLI::App* command = program.add_subcommand("bench", "Measure the speed of a backend");
  const auto options = std::make_shared<Options>();
  describe_at_length(
      *command,
      "Runs each problem in rounds and prints the median time of a call, the median deviation from it, FLOP a "
      "second,\n"
      "the bytes that must be moved and those of a second, their share of what a kernel that only reads has reached\n"
      "in the same run, the clock of the SMs, and on a GPU the share of what it is used for most, at its highest\n"
      "clock (tensor cores, exponentials or memory), with the time over the one that explain predicts.\n"
      "FLOPs are 2 (dim_qk + dim_v) a visible pair of query and key, and 2.5 times that backward; causal counts "
      "half.\n"
      "Where there is nothing to compute, a call has a time and no speed.\n"
      "Without an argument: one problem, non-causal, causal and backward. A line that is no problem is named, with\n"
      "its file and number, and the others are measured; the exit code is 2 then.");
  command->footer(examples);
  command->add_option("what", options->what, "problem lines and files of them")->type_name("LINE|SUITE");
  add_backend_option(*command, options->backend);
  command->add_option("--tiles", options->tiles, "measure these tiles of a GPU's kernel instead of the tuned ones")
      ->type_name("128x80s2");
  command
      ->add_option(
          "--hints", options->hints,
          "change the order of a GPU's work items: section=, and of forward problems tail=, deferred=; there "
          "packgqa= and parts= say whether heads share tiles and into how many parts keys are cut, "
          "dequantised= whether 8-bit k and v get q's type in a launch of their own")
      ->type_name("'section=16MiB tail=30% deferred=8'");
  command
      ->add_option("--json", options->json,
                   "append one line a measurement to this file; -: print them instead of the table")
      ->type_name("FILE.jsonl");
  command->add_option("--ms", options->effort.ms, "length of a round")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--rounds", options->effort.rounds, "how many")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--commit", options->commit, "what the JSON lines say was measured")
      ->envname("FROGHOPPER_COMMIT")
      ->capture_default_str();
  command->add_flag("--host", options->host, "measure what a call costs the calling thread instead, on a GPU");
  command->add_flag("--cold", options->cold,
                    "on a GPU: copies of the tensors take turns, so that no call finds its own in L2");
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace froghopper::cli
