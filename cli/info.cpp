// SPDX-License-Identifier: Apache-2.0
// cli: froghopper info, what this machine and this library can do together.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.hpp"
#include "cli/options.hpp"
#include "cli/support.hpp"
#include "cli/tensors.hpp"
#include "src/cpu/cpu.hpp"
#include "src/runtime/runtime.hpp"

namespace froghopper::cli {

namespace {

constexpr const char* examples =
    "Examples:\n"
    "  froghopper info\n"
    "  froghopper info --json\n"
    "  froghopper info --support-table > docs/support.md\n"
    "  froghopper info --options\n"
    "  froghopper info --tensors";

std::string cpu_words() {
  Problem common;  // the CPU backend computes every type with the same instructions, so one is enough
  common.seq_q = common.seq_kv = 1024;
  common.scale = default_scale(common.dim_qk);
  const auto plan = cpu::plan(common);
  return plan ? plan->how() : plan.failure().text;
}

void print_json() {
  const runtime::Info info = runtime::info();
  const nlohmann::ordered_json all = {{"version", fh_version()}, {"driver", info.driver},   {"gpus", info.gpus},
                                      {"nvrtc", info.nvrtc},     {"presets", info.presets}, {"serves", info.serves},
                                      {"cache", info.cache},     {"cpu", cpu_words()}};
  std::printf("%s\n", all.dump().c_str());
}

void print_info() {
  const runtime::Info info = runtime::info();
  std::printf("froghopper %s\n\n", fh_version());
  std::printf("driver     %s\n", info.driver.c_str());
  for (const std::string& gpu : info.gpus) std::printf("GPU        %s\n", gpu.c_str());
  std::printf("NVRTC      %s\n", info.nvrtc.c_str());
  std::printf("presets    %s\n", info.presets.c_str());
  std::printf("serves     %s\n", info.serves.c_str());
  std::printf("cache      %s\n", info.cache.c_str());
  std::printf("CPU        %s\n", cpu_words().c_str());
  std::printf("\n%s", support_table().c_str());
}

}  // namespace

void info_command(CLI::App& program, int& exit_code) {
  CLI::App* command = program.add_subcommand("info", "Show the GPU, the driver, the presets and what is supported");
  const auto only_table = std::make_shared<bool>(false), only_options = std::make_shared<bool>(false),
             only_tensors = std::make_shared<bool>(false), json = std::make_shared<bool>(false);
  command->footer(examples);
  auto* table =
      command->add_flag("--support-table", *only_table, "the support table alone, the same on every machine");
  auto* options =
      command->add_flag("--options", *only_options, "the table of options alone: every field of a problem");
  options->excludes(table);
  auto* tensors = command->add_flag("--tensors", *only_tensors, "the tables of tensors alone, one an operation");
  tensors->excludes(table)->excludes(options);
  command->add_flag("--json", *json, "one line of JSON, without the support table")
      ->excludes(table)
      ->excludes(options)
      ->excludes(tensors);
  command->callback([only_table, only_options, only_tensors, json, &exit_code] {
    if (*only_table) {
      std::fputs(support_table().c_str(), stdout);
    } else if (*only_options) {
      std::fputs(options_table().c_str(), stdout);
    } else if (*only_tensors) {
      std::fputs(tensors_tables().c_str(), stdout);
    } else if (*json) {
      print_json();
    } else {
      print_info();
    }
    exit_code = exit_ok;
  });
}

}  // namespace froghopper::cli
