// SPDX-License-Identifier: Apache-2.0
// cli: the program. It knows the commands and how they end; each command has a file of its own.
#include <froghopper/froghopper.h>

#include <cstdio>

#include "cli/commands.hpp"

namespace froghopper::cli {

namespace {

constexpr const char* description =
    "Exact attention, o = softmax(scale q k^T + mask) v, on NVIDIA Hopper GPUs and on the CPU.\n"
    "\n"
    "A problem is one line of text, for instance\n"
    "  fwd bf16 b2 hq16 hkv4 sq4096 skv4096 d128 causal\n"
    "forward in bf16, 2 sequences, 16 query heads over 4 key heads, 4096 queries and keys, head dim 128, causal "
    "mask.";

constexpr const char* footer =
    "Exit codes: 0 done, 1 a check failed, 2 bad usage or input, 3 no device that serves, 4 unsupported problem,\n"
    "5 running or writing failed. Results are on stdout, progress and errors on stderr.";

int run(int argc, char** argv) {
  CLI::App program(description, "froghopper");
  program.footer(footer);
  program.set_version_flag("--version", fh_version());
  program.require_subcommand(1);
  int exit_code = exit_ok;
  info_command(program, exit_code);
  explain_command(program, exit_code);
  check_command(program, exit_code);
  bench_command(program, exit_code);
  attend_command(program, exit_code);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return program.exit(e) == 0 ? exit_ok : exit_bad_input;  // --help and --version also arrive here
  }
  return exit_code;
}

}  // namespace

int complain(int code, const std::string& text) {
  std::fprintf(stderr, "froghopper: %s\n", text.c_str());
  return code;
}

void add_backend_option(CLI::App& command, std::string& backend) {
  command.add_option("--backend", backend, "where to run; auto: a Hopper GPU if there is one")
      ->check(CLI::IsMember({"auto", "cpu", "hopper"}))
      ->capture_default_str();
}

int exit_code_of(fh_status status) {
  switch (status) {
    case FH_OK: return exit_ok;
    case FH_INVALID_PROBLEM:
    case FH_INVALID_TENSOR: return exit_bad_input;
    case FH_UNSUPPORTED: return exit_unsupported;
    case FH_NO_DEVICE: return exit_no_device;
    case FH_COMPILE_FAILED:
    case FH_LAUNCH_FAILED:
    case FH_INTERNAL: return exit_run_failed;
  }
  return exit_run_failed;
}

}  // namespace froghopper::cli

int main(int argc, char** argv) {
  try {
    return froghopper::cli::run(argc, argv);
  } catch (const std::exception& e) {  // out of memory, mostly: inputs of a case live in host memory
    return froghopper::cli::complain(froghopper::cli::exit_run_failed, e.what());
  }
}
