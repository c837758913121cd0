// SPDX-License-Identifier: Apache-2.0
// cli: froghopper explain, how a problem would be computed, or why not.
#include <cstdio>

#include "cli/commands.hpp"
#include "src/api/run.hpp"

namespace froghopper::cli {

namespace {

constexpr const char* examples =
    "Examples:\n"
    "  froghopper explain 'fwd bf16 b2 hq16 hkv4 sq4096 skv4096 d128 causal'\n"
    "  froghopper explain 'fwd bf16 b2 hq16 hkv4 sq4096 skv4096 d128 causal' --target 'h200 tiles=128x64s3'\n"
    "  froghopper explain 'fwd f32 b1 hq8 hkv8 sq1000 skv1000 d64' --target hopper";

int run(const std::string& line, const std::string& target) {
  const auto problem = Problem::parse(line);
  if (!problem) return complain(problem.failure());
  const auto where = read_target(target.c_str());
  if (!where) return complain(where.failure());
  const Explanation explanation = explain(*problem, *where);
  std::printf("%s\n", explanation.text.c_str());  // a refusal with its reason is a result too
  return exit_code_of(explanation.status);
}

}  // namespace

void explain_command(CLI::App& program, int& exit_code) {
  CLI::App* command =
      program.add_subcommand("explain", "Say how a problem is computed, or why not and what to change");
  struct Options {
    std::string line, target = "auto";
  };
  const auto options = std::make_shared<Options>();
  command->footer(examples);
  command->add_option("line", options->line, "the problem")->required()->type_name("LINE");
  command
      ->add_option("--target", options->target,
                   "auto, cpu, hopper, hopper:1, or a GPU that need not be here, such as h200")
      ->capture_default_str();
  command->callback([options, &exit_code] { exit_code = run(options->line, options->target); });
}

}  // namespace froghopper::cli
