// SPDX-License-Identifier: Apache-2.0
// cli: froghopper check, the error of a backend against the fp64 oracle, one row a case.
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "check/check.hpp"
#include "check/gpu/session.hpp"
#include "cli/cases.hpp"
#include "cli/commands.hpp"
#include "cli/prepare.hpp"
#include "cli/records.hpp"
#include "src/base/text.hpp"

namespace froghopper::cli {

namespace {

struct Options {
  std::vector<std::string> what;
  std::string backend = "auto", json, commit = "unknown";
  bool verbose = false;
  unsigned seed = 1;
};

// What is checked when nothing is named: a first look, about a second on a CPU.
constexpr const char* first_look[] = {
    "fwd f32 b1 hq2 hkv2 sq256 skv256 d64",
    "fwd bf16 b2 hq4 hkv2 sq300 skv500 d128 causal",
    "fwd f16 b1 hq4 hkv1 sq200 skv333 d96 window64,0 softcap20 sink",
    "fwd bf16 b4 hq2 hkv2 sq200 skv300 d64 varlen tq500 tkv800 causal",
    "fwd bf16 b1 hq2 hkv2 sq200 skv100 d128 causal",
    "fwd f16 b2 hq2 hkv2 sq130 skv700 d64 : data=rising_20_a_key layout=padded",
    "bwd bf16 b2 hq4 hkv2 sq130 skv200 d64 causal",
};

constexpr const char* examples =
    "Examples:\n"
    "  froghopper check\n"
    "  froghopper check 'fwd bf16 b2 hq16 hkv4 sq1000 skv1000 d128 causal'\n"
    "  froghopper check 'fwd f16 b2 hq2 hkv2 sq500 skv700 d64 : data=rising_20_a_key layout=padded'\n"
    "  froghopper check 'bwd bf16 b2 hq4 hkv2 sq300 skv500 d128 causal : grad_lse=yes' --verbose\n"
    "  froghopper check 'append bf16 b3 hq4 hkv2 sq1 skv50 d64 seqused page16 pages12 rotary64 rows50'\n"
    "  froghopper check tests/cases/forward.txt --backend hopper\n"
    "  froghopper check tests/cases/outliers.txt --json errors.jsonl\n"
    "  froghopper check tests/cases/outliers.txt --json - | python3 -m json.tool --json-lines";

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
  std::printf("%-7s  %-9s %-9s %-9s  %-9s %-9s %-9s %-9s  %-6s  %s\n", "ok", "error", "plain", "allowed", "relative",
              "rmse", "lse error", "gain", "on", "problem");
}

// A row a written tensor; lse is in the row of o.
void print_row(const check::Case& c, const check::Outcome& out, bool verbose) {
  const check::Measures lse = out.of("lse");
  for (const check::Measures& m : out.measures) {
    if (m.tensor == lse.tensor) continue;
    const std::string name = m.tensor == "o" ? "" : m.tensor + " of ";
    const double lse_error = m.tensor == "o" ? lse.error : 0;
    std::printf("%-7s  %-9.2e %-9.2e %-9.2e  %-9.2e %-9.2e %-9.2e %-+9.1e  %-6s  %s%s\n", out.passed ? "yes" : "NO",
                m.error, m.plain_error, m.allowed, m.relative, m.rmse, lse_error, m.mean_gain, out.backend.c_str(),
                name.c_str(), c.line().c_str());
    if (verbose)
      std::printf("         allowed: error %.2e, row error %.2e of %.2e, lse error %.2e, gain %.1e\n", m.allowed,
                  m.row_error, m.row_allowed, lse.allowed, m.gain_allowed);
  }
  if (out.measures.empty()) std::printf("%-7s  %s\n", "NO", c.line().c_str());
  if (!out.passed) std::printf("         %s\n", out.why.c_str());
  if (!verbose) return;
  std::printf("         plan: %s\n", out.plan.c_str());
  if (!c.reason.empty()) std::printf("         why this case: %s\n", c.reason.c_str());
}

// A line for every written tensor but lse, whose error is in o's line. False: writing failed.
bool append(const Options& options, const check::Case& c, const check::Outcome& out, const std::string& gpu) {
  const check::Measures lse = out.of("lse");
  for (const check::Measures& m : out.measures) {
    if (m.tensor == lse.tensor) continue;
    const nlohmann::ordered_json record = {{"problem", c.problem.line()},
                                           {"case", c.line()},
                                           {"data", c.data},
                                           {"tensor", m.tensor},
                                           {"backend", out.backend},
                                           {"plan", without_problem(out.plan)},
                                           {"gpu", gpu},
                                           {"error", m.error},
                                           {"plain", m.plain_error},
                                           {"allowed", m.allowed},
                                           {"relative", m.relative},
                                           {"rmse", m.rmse},
                                           {"lse_error", lse.error},
                                           {"passed", out.passed},
                                           {"commit", options.commit},
                                           {"date", now(date_and_time)}};
    if (!append_line(options.json, record)) return false;
  }
  return true;
}

// "NVIDIA H200", or the processor.
std::string machine_of(const check::Outcome& out) {
  static const std::string cpu = cpu_name();
  if (out.backend == "cpu") return cpu;
  const auto session = check::GpuSession::open();
  return session ? (*session)->machine() : "";
}

// Where words for people go: a table and lines of JSON do not share stdout.
FILE* words_of(const Options& options) { return is_stdout(options.json) ? stderr : stdout; }

void print_unrun(const Options& options, const char* verdict, const check::Case& c, const std::string& why) {
  std::fprintf(words_of(options), "%-7s  %s\n         %s\n", verdict, c.line().c_str(), why.c_str());
}

// False: the file of --json could not be written.
bool check_one(const check::Case& c, const Options& options, Tally& tally) {
  const check::Backend backend = choose_backend(options, c);
  const char* const only = backend == check::Backend::cpu ? "gpu" : "cpu";
  if (c.only == only) {
    print_unrun(options, "skipped", c, text("this case is only for the {}", only));
    ++tally.skipped;
    return true;
  }
  const auto out = check::check_case(c, backend, options.seed);
  if (!out) {
    print_unrun(options, "refused", c, out.failure().text);
    if (++tally.refused == 1) tally.refusal = exit_code_of(out.failure().status);
    return true;
  }
  if (!is_stdout(options.json)) print_row(c, *out, options.verbose);
  ++(out->passed ? tally.passed : tally.failed);
  return options.json.empty() || append(options, c, *out, machine_of(*out));
}

int run(const Options& options) {
  std::vector<std::string> what = options.what;
  if (what.empty()) what.assign(std::begin(first_look), std::end(first_look));
  const Cases read = cases_of(what);
  const int unread = complain(read.wrong);
  if (read.all.empty()) return unread;
  const std::vector<check::Case>& cases = read.all;
  if (options.backend == "hopper") {
    if (const auto here = check::hopper_is_here(); !here) return complain(here.failure());
  }

  if (!can_append(options.json))
    return complain(exit_run_failed, text("{} cannot be written to. Name another file for --json.", options.json));

  std::vector<Problem> on_gpu;
  for (const check::Case& c : cases)
    if (choose_backend(options, c) == check::Backend::hopper && c.only != "cpu") on_gpu.push_back(c.problem);
  prepare_kernels(on_gpu, "hopper");
  if (!is_stdout(options.json)) print_header();
  Tally tally;
  for (const check::Case& c : cases) {
    if (!check_one(c, options, tally)) return complain(exit_run_failed, text("writing to {} failed.", options.json));
    if (std::fflush(stdout) != 0) return exit_run_failed;  // rows are the progress; main() says what failed
  }
  const std::string not_read = read.wrong.empty() ? "" : text(", {} not read", read.wrong.size());
  std::fprintf(words_of(options), "%d right, %d wrong, %d refused, %d skipped%s\n", tally.passed, tally.failed,
               tally.refused, tally.skipped, not_read.c_str());
  if (tally.failed) return exit_check_failed;
  return unread ? unread : tally.refusal;
}

}  // namespace

void check_command(CLI::App& program, int& exit_code) {
  CLI::App* command = program.add_subcommand("check", "Compare a backend with the fp64 oracle, case by case");
  const auto options = std::make_shared<Options>();
  describe_at_length(
      *command,
      "Draws inputs for each case, computes it with a backend, in double, and in plain loops of the same precision,\n"
      "and compares. A case is a problem line, with how to draw its inputs after a colon: data=, layout=, lens_q=,\n"
      "lens_kv=, used_q=, used_kv=, rows=, grad_lse=, only=; a wrong value is answered with those that there are.\n"
      "Without an argument: a few cases. A line that is no case is named, with its file and number, and the others\n"
      "are checked; the exit code is 1 if a result is wrong, else 2 if there is such a line.\n"
      "\n"
      "`error` is the largest error and `plain` that of the plain loops; `allowed` is twice that and one rounding.\n"
      "`relative` is the norm of all errors over that of the exact result, `rmse` the root of their mean square, "
      "and\n"
      "`gain` the mean relative error with its sign. On a GPU each case runs four times, two of them from a CUDA\n"
      "graph, and all results must be the same to the bit; gradients only with det, else each is judged. A gradient\n"
      "may cancel, so `allowed` is relative to what was added up to it: docs/1-math.md. Rows that are written to a\n"
      "cache are known but for their rounding, and no other byte of it may change.");
  command->footer(examples);
  command->add_option("what", options->what, "problem lines and files of them")->type_name("LINE|FILE");
  add_backend_option(*command, options->backend);
  command
      ->add_option("--json", options->json, "append one line a case to this file; -: print them instead of the table")
      ->type_name("FILE.jsonl");
  command->add_option("--commit", options->commit, "what the JSON lines say was checked")
      ->envname("FROGHOPPER_COMMIT")
      ->capture_default_str();
  command->add_option("--seed", options->seed, "of the inputs")->capture_default_str();
  command->add_flag("--verbose", options->verbose, "also the plan, the bounds, and why the case is there");
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace froghopper::cli
