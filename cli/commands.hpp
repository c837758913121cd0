// SPDX-License-Identifier: Apache-2.0
// cli: the commands of the program `froghopper`, one file and one function each.
//
// A function adds its command, with options, help text and examples, to the program. The command's callback does the
// work and leaves in exit_code how it ended. Results go to stdout; progress and errors go to stderr.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

#include "src/base/result.hpp"

namespace froghopper::cli {

// Exit codes are part of the interface: scripts and tests rely on them, and `froghopper --help` lists them.
inline constexpr int exit_ok = 0;
inline constexpr int exit_check_failed = 1;  // a result differs from the exact one by more than allowed
inline constexpr int exit_bad_input = 2;     // usage, problem line, case file, tensor file
inline constexpr int exit_no_device = 3;     // a GPU was demanded and there is none that serves
inline constexpr int exit_unsupported = 4;   // a problem that nothing on the chosen backend computes
inline constexpr int exit_run_failed = 5;    // compiling, launching or writing failed

void info_command(CLI::App& program, int& exit_code);
void explain_command(CLI::App& program, int& exit_code);
void check_command(CLI::App& program, int& exit_code);
void bench_command(CLI::App& program, int& exit_code);
void prepare_command(CLI::App& program, int& exit_code);
void attend_command(CLI::App& program, int& exit_code);

// What --help of a command says behind its one line, which alone is in the list of commands.
void describe_at_length(CLI::App& command, const std::string& text);

// --backend, the same for every command that computes, and --target of those that plan, also for a GPU that is not
// here. Each command takes the other name too.
void add_backend_option(CLI::App& command, std::string& backend);
void add_target_option(CLI::App& command, std::string& target, const std::string& meaning);

// Of two names of an option the one that the program was given, else the first.
std::string as_written(const std::string& name, const std::string& other);

// Prints "froghopper: TEXT", made printable, to stderr and returns the code, so that a command can end with
// `exit_code = complain(...)`.
int complain(int code, const std::string& text);
int exit_code_of(fh_status status);
inline int complain(const Failure& failure) { return complain(exit_code_of(failure.status), failure.text); }

}  // namespace froghopper::cli
