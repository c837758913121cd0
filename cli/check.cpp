// SPDX-License-Identifier: Apache-2.0
// cli: froghopper check, the error of a backend against the fp64 oracle, one row a case.
#include <cmath>
#include <cstdio>

#include "check/check.hpp"
#include "cli/cases.hpp"
#include "cli/commands.hpp"
#include "src/base/text.hpp"

namespace froghopper::cli {

namespace {

struct Options {
  std::vector<std::string> what;
  std::string backend = "auto";
  bool verbose = false;
  unsigned seed = 1;
};

// What is checked when nothing is named: a newcomer's first look, a second's work on a CPU.
constexpr const char* first_look[] = {
    "fwd f32 b1 hq2 hkv2 sq256 skv256 d64",
    "fwd bf16 b2 hq4 hkv2 sq300 skv500 d128 causal",
    "fwd f16 b1 hq4 hkv1 sq200 skv333 d96 window64,0 softcap20 sink",
    "fwd bf16 b4 hq2 hkv2 sq200 skv300 d64 varlen tq500 tkv800 causal",
    "fwd bf16 b1 hq2 hkv2 sq200 skv100 d128 causal",
    "fwd f16 b2 hq2 hkv2 sq130 skv700 d64 : data=rising_20_a_key layout=padded",
};

constexpr const char* examples =
    "Examples:\n"
    "  froghopper check\n"
    "  froghopper check 'fwd bf16 b2 hq16 hkv4 sq1000 skv1000 d128 causal'\n"
    "  froghopper check 'fwd f16 b2 hq2 hkv2 sq500 skv700 d64 : data=rising_20_a_key layout=padded'\n"
    "  froghopper check tests/cases/forward.txt --backend hopper";

struct Tally {
  int passed = 0, failed = 0, refused = 0, skipped = 0;
  int refusal = exit_ok;  // exit code of the first one
};

check::Backend choose_backend(const Options& options, const check::Case& c) {
  if (options.backend != "auto") return options.backend == "cpu" ? check::Backend::cpu : check::Backend::hopper;
  const bool hopper = c.only != "cpu" && c.problem.dtype != Dtype::f32 && check::hopper_is_here();
  return hopper ? check::Backend::hopper : check::Backend::cpu;
}

void print_header() {
  std::printf("%-7s  %-9s %-9s %-9s  %-9s %-9s %-9s  %-6s  %s\n", "ok", "error", "plain", "allowed", "relative",
              "lse error", "gain", "on", "problem");
}

void print_row(const check::Case& c, const check::Outcome& out, bool verbose) {
  std::printf("%-7s  %-9.2e %-9.2e %-9.2e  %-9.2e %-9.2e %-+9.1e  %-6s  %s\n", out.passed ? "yes" : "NO", out.error,
              out.plain_error, out.allowed, out.relative, out.lse_error, out.mean_gain, out.backend.c_str(),
              c.line().c_str());
  if (!out.passed) std::printf("         %s\n", out.why.c_str());
  if (verbose) {
    std::printf("         plan: %s\n", out.plan.c_str());
    std::printf("         allowed: error %.2e, row error %.2e of %.2e, lse error %.2e, gain %.1e\n", out.allowed,
                out.row_error, out.row_allowed, out.lse_allowed, out.gain_allowed);
    if (!c.reason.empty()) std::printf("         why this case: %s\n", c.reason.c_str());
  }
}

void print_unrun(const char* verdict, const check::Case& c, const std::string& why) {
  std::printf("%-7s  %s\n         %s\n", verdict, c.line().c_str(), why.c_str());
}

void check_one(const check::Case& c, const Options& options, Tally& tally) {
  const check::Backend backend = choose_backend(options, c);
  const char* const only = backend == check::Backend::cpu ? "gpu" : "cpu";
  if (c.only == only) {
    print_unrun("skipped", c, text("this case is only for the {}", only));
    ++tally.skipped;
    return;
  }
  const auto out = check::check_forward(c, backend, options.seed);
  if (!out) {
    print_unrun("refused", c, out.failure().text);
    if (++tally.refused == 1) tally.refusal = exit_code_of(out.failure().status);
    return;
  }
  print_row(c, *out, options.verbose);
  ++(out->passed ? tally.passed : tally.failed);
}

int run(const Options& options) {
  std::vector<std::string> what = options.what;
  if (what.empty()) what.assign(std::begin(first_look), std::end(first_look));
  std::vector<check::Case> cases;
  for (const std::string& one : what) {
    auto more = cases_of(one);
    if (!more) return complain(more.failure());
    cases.insert(cases.end(), more->begin(), more->end());
  }
  if (options.backend == "hopper") {
    if (const auto here = check::hopper_is_here(); !here) return complain(here.failure());
  }

  print_header();
  Tally tally;
  for (const check::Case& c : cases) {
    check_one(c, options, tally);
    std::fflush(stdout);  // rows are the progress
  }
  std::printf("%d right, %d wrong, %d refused, %d skipped\n", tally.passed, tally.failed, tally.refused,
              tally.skipped);
  return tally.failed ? exit_check_failed : tally.refusal;
}

}  // namespace

void check_command(CLI::App& program, int& exit_code) {
  CLI::App* command = program.add_subcommand("check", "Compare a backend with the fp64 oracle, case by case");
  const auto options = std::make_shared<Options>();
  command->description(
      "Draws inputs for each case, computes it with a backend, in double, and in plain loops of the same precision,\n"
      "and compares. A case is a problem line, with how to draw its inputs behind a colon. Without an argument: a "
      "few\n"
      "cases. `error` may be twice that of the plain loops and one rounding; `gain` is the mean relative error with\n"
      "its sign.");
  command->footer(examples);
  command->add_option("what", options->what, "problem lines and files of them")->type_name("LINE|FILE");
  add_backend_option(*command, options->backend);
  command->add_option("--seed", options->seed, "of the inputs")->capture_default_str();
  command->add_flag("--verbose", options->verbose, "also the plan, the bounds, and why the case is there");
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace froghopper::cli
