// SPDX-License-Identifier: Apache-2.0
// cli: froghopper explain, how a problem would be computed, or why not.
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/cases.hpp"
#include "cli/commands.hpp"
#include "cli/records.hpp"
#include "src/api/run.hpp"
#include "src/base/printable.hpp"
#include "src/base/text.hpp"
#include "src/problem/line_words.hpp"

namespace froghopper::cli {

namespace {

constexpr const char* examples =
    "Examples:\n"
    "  froghopper explain 'fwd bf16 b2 hq16 hkv4 sq4096 skv4096 d128 causal'\n"
    "  froghopper explain 'fwd bf16 b2 hq16 hkv4 sq4096 skv4096 d128 causal' --target 'h200 tiles=128x64s3'\n"
    "  froghopper explain 'fwd f32 b1 hq8 hkv8 sq1000 skv1000 d64' --target hopper\n"
    "  froghopper explain 'fwd bf16 b2 hq16 hkv4 sq4096 skv4096 d128 causal' --target h200 --json";

// The plan in parts; null for what there is none of. `explanation` is what people read.
nlohmann::ordered_json without_plan(const std::string& problem, const std::string& target, fh_status status,
                                    const std::string& explanation) {
  return {{"problem", problem},         {"target", target},          {"status", fh_status_name(status)},
          {"runs_on", nullptr},         {"plan", nullptr},           {"kernels", nlohmann::json::array()},
          {"workspace_bytes", nullptr}, {"explanation", explanation}};
}

nlohmann::ordered_json as_json(const Problem& problem, const std::string& target, const Target& where,
                               const Explanation& explanation) {
  nlohmann::ordered_json all = without_plan(problem.line(), target, explanation.status, explanation.text);
  const auto plan = make_plan(problem, where);
  if (!plan) return all;
  if (plan->runs_here) all["runs_on"] = plan->gpu() ? "hopper" : "cpu";
  all["plan"] = without_problem(plan->line);
  all["workspace_bytes"] = plan->workspace_bytes();
  if (plan->gpu())
    for (const Launch& launch : plan->gpu()->launches)
      all["kernels"].push_back({{"name", launch.kernel.name},
                                {"grid", launch.grid},
                                {"threads", launch.kernel.threads},
                                {"shared_bytes", launch.kernel.smem_bytes}});
  return all;
}

// A line and a target may have bytes that are no characters.
std::string dumped(const nlohmann::ordered_json& all) {
  return all.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

int run(const std::vector<std::string>& lines, const std::string& target, bool json) {
  if (const auto why = unquoted(lines); !why.empty()) return complain(exit_bad_input, why);
  if (lines.size() == 2 && read_target(lines[1].c_str()))
    return complain(exit_bad_input, text("the target must be named by --target, but \"{0}\" stands for itself. Write "
                                         "--target {0}.",
                                         lines[1]));
  if (lines.size() > 1)
    return complain(exit_bad_input,
                    text("one problem is explained, but here are {}. Run explain for each of them.", lines.size()));
  std::error_code error;  // a line may be longer than a path can be
  const auto problem = Problem::parse(lines[0]);
  if (!problem && std::filesystem::exists(lines[0], error))
    return complain(exit_bad_input,
                    text("\"{}\" is a {}, but explain takes a problem line. Give one of its lines; "
                         "check, bench and prepare take files.",
                         lines[0], std::filesystem::is_directory(lines[0], error) ? "folder" : "file"));
  const auto refused = [&](const Failure& why) {
    const std::string said = in_words_of_lines(why.text);
    if (!json) return complain(exit_code_of(why.status), said);
    std::printf("%s\n", dumped(without_plan(lines[0], target, why.status, said)).c_str());
    return exit_code_of(why.status);
  };
  if (!problem) return refused(problem.failure());
  const auto where = read_target(target.c_str());
  if (!where) return refused(where.failure());
  Explanation explanation = explain(*problem, *where);  // a refusal with its reason is a result too
  explanation.text = in_words_of_lines(std::move(explanation.text));
  const std::string said =
      json ? dumped(as_json(*problem, target, *where, explanation)) : printable(explanation.text);
  std::printf("%s\n", said.c_str());
  return exit_code_of(explanation.status);
}

}  // namespace

void explain_command(CLI::App& program, int& exit_code) {
  CLI::App* command =
      program.add_subcommand("explain", "Say how a problem is computed, or why not and what to change");
  struct Options {
    std::vector<std::string> lines;
    std::string target = "auto";
    bool json = false;
  };
  const auto options = std::make_shared<Options>();
  command->footer(examples);
  command->add_option("line", options->lines, "the problem")->required()->type_name("LINE");
  add_target_option(*command, options->target,
                    "auto, cpu, hopper, hopper:1, or a GPU that need not be here, such as h200");
  command->add_flag("--json", options->json, "one line of JSON instead");
  command->callback([options, &exit_code] { exit_code = run(options->lines, options->target, options->json); });
}

}  // namespace froghopper::cli
