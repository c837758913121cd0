// SPDX-License-Identifier: Apache-2.0
// cli: the program. It knows the commands and how they end; each command has a file of its own.
#include <fcntl.h>
#include <froghopper/froghopper.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <iostream>
#include <new>
#include <regex>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/commands.hpp"
#include "cli/other_options.hpp"
#include "src/base/near_word.hpp"
#include "src/base/printable.hpp"
#include "src/base/text.hpp"

namespace froghopper::cli {

namespace {

constexpr const char* description =
    "Exact attention, o = softmax(scale q k^T + mask) v, on NVIDIA Hopper GPUs and on the CPU.\n"
    "\n"
    "A problem is one line of text, for instance\n"
    "  fwd bf16 b2 hq16 hkv4 sq4096 skv4096 d128 causal\n"
    "forward in bf16, 2 sequences, 16 query heads over 4 key heads, 4096 queries and keys, head dim 128, causal "
    "mask.\n"
    "froghopper info --options lists every word of a line. froghopper COMMAND --help has the options of a command "
    "and\n"
    "examples.";

constexpr const char* footer =
    "Exit codes: 0 done, 1 a check failed, 2 bad usage or input, 3 no device that serves, 4 unsupported problem,\n"
    "5 running or writing failed. Results are on stdout, progress and errors on stderr.";

constexpr const char* no_memory =
    "the system gives no memory for the tensors; all of them have to fit at once. Make the problem smaller.";

// What is wrong with the first word where it names none of the commands, and is no option that needs none; "" where it
// does or is.
std::string no_command(const CLI::App& program, int argc, char** argv) {
  const std::string_view word = argc > 1 ? argv[1] : "";
  if (word == "--help" || word == "-h" || word == "--version") return {};
  std::vector<std::string> commands;
  for (const CLI::App* command : program.get_subcommands({})) commands.push_back(command->get_name());
  const auto is_command = [&](std::string_view one) { return std::ranges::find(commands, one) != commands.end(); };
  if (is_command(word)) return {};
  const bool is_option = word.starts_with("-");
  char** const later = std::find_if(argv, argv + argc, is_command);
  if (is_option && later != argv + argc)
    return text(
        "{0} must follow the command, but is before it. Write froghopper {1} {0}. froghopper {1} --help says "
        "what it takes.",
        word, *later);
  std::vector<std::string_view> known(commands.begin(), commands.end());
  std::string_view near = near_word(word, known);
  if (word == "help" || word == "-?") near = "--help";
  if (word == "version" || word == "-v" || word == "-V") near = "--version";
  if (word == "probe" || word == "cp")
    return "probe is not in this program; it must be run with the Python package, under torchrun. Write torchrun "
           "--nproc-per-node 8 -m froghopper probe machine.txt.";
  return text("{}; it must be one of {}.{} froghopper --help says what they do.",
              word.empty() ? "there is no command" : text("\"{}\" is no command", shown(word)),
              joined(commands, ", "), near.empty() ? "" : text(" Did you mean {}?", near));
}

// Of the library's log, what the user of the program can change: a variable that is ignored, a cache that is not used.
void show_what_is_ignored(const char* line, void*) {
  const std::string_view said = line;
  if (said.starts_with("the environment's ") || said.starts_with("cache: "))
    std::fprintf(stderr, "froghopper: %s\n", printable(said).c_str());
}

// Where an option has a value, the value says something.
void refuse_empty_values(CLI::App& command) {
  for (CLI::Option* option :
       command.get_options([](const CLI::Option* o) { return o->get_items_expected_max() > 0; })) {
    const std::string why =
        text("must not be empty. {}.", option->get_required() ? "Give a value" : "Leave it out, or give a value");
    option->check([why](const std::string& value) { return value.empty() ? why : std::string(); });
  }
}

// Of the commands' descriptions, for the list of them.
void keep_first_lines(CLI::App& program) {
  for (CLI::App* command : program.get_subcommands({})) {
    const std::string all = command->get_description();
    command->description(all.substr(0, all.find('\n')));
  }
}

// The arguments of the program, of which CLI11 forgets by which of its names an option was given.
std::vector<std::string> arguments;

bool is_written(const std::string& name) {
  return std::ranges::any_of(arguments,
                             [&](const std::string& word) { return word == name || word.starts_with(name + "="); });
}

// A sentence that begins with the first name of an option: with the one that was given.
std::string with_written_name(const CLI::App& command, const std::string& what) {
  for (const CLI::Option* option : command.get_options()) {
    const std::string first = option->get_name();
    if (!first.starts_with("-") || !what.starts_with(first + " ")) continue;
    std::string name = first;
    for (const std::string& other : option->get_lnames()) name = as_written(name, "--" + other);
    for (const std::string& other : option->get_snames()) name = as_written(name, "-" + other);
    return name + what.substr(first.size());
  }
  return what;
}

// What CLI11 says of a command's arguments, in the form of all other messages, and where there is more about them.
std::string usage_error(const CLI::App* program, const CLI::Error& error) {
  static const std::pair<const char*, const char*> said[] = {
      {R"(^(\S+): Value (.*) not in range 0\.0+ to \d{300,}\.0+$)", "$1 must be positive, but is \"$2\""},
      {R"(^(\S+): Value (.*) not in range (\S+) to (\S+)$)", "$1 must be from $3 to $4, but is \"$2\""},
      {R"(^Could not convert: (\S+) = (.*)$)", "$1 must be a number, not negative and not too large, but is \"$2\""},
      {R"(^(\S+): 1 required TEXT:\{auto,cpu,hopper\} missing$)",
       "$1 must be followed by auto, cpu or hopper, but is not"},
      {R"(^(\S+): 1 required (?:UINT|INT|FLOAT)\b.* missing$)", "$1 must be followed by a number, but is not"},
      {R"(^(\S+): 1 required TEXT missing$)", "$1 must be followed by a value, but is not"},
      {R"(^(\S+): 1 required (.*) missing$)", "$1 must be followed by $2, but is not"},
      {R"(^(\S+) excludes (\S+)$)", "$1 and $2 are given, but only one of them can be. Leave out one"},
      {R"(^(\S+) is required$)", "$1 must be given, but is not"},
      {R"(^(\S+): must )", "$1 must "},
      {R"(^(\S+): ((?:gpu|cuda|GPU|CUDA)(?::0)?|hopper:0) not in \{auto,cpu,hopper\}$)",
       "$1 must be auto, cpu or hopper, but is \"$2\", which is hopper here"},
      {R"(^(\S+): (.*) not in \{auto,cpu,hopper\}$)",
       "$1 must be auto, cpu or hopper, but is \"$2\". Other GPUs are for explain and prepare"},
  };
  std::string command = "froghopper", what = with_short_words(error.what()), meant;
  for (const CLI::App* one : program->get_subcommands()) {
    command += " " + one->get_name();
    meant = meant_option(*one, what);
  }
  for (const auto& [found, put] : said) what = std::regex_replace(what, std::regex(found), put);
  for (const CLI::App* one : program->get_subcommands()) what = with_written_name(*one, what);
  if (!what.ends_with(".")) what += ".";
  return printable(text("froghopper: {}{} {} --help says what it takes.\n", what, meant, command));
}

int run(int argc, char** argv) {
  arguments.assign(argv, argv + argc);
  CLI::App program(description, "froghopper");
  program.footer(footer);
  program.set_version_flag("--version", fh_version());
  program.require_subcommand(1);
  int exit_code = exit_ok;
  info_command(program, exit_code);
  explain_command(program, exit_code);
  check_command(program, exit_code);
  bench_command(program, exit_code);
  prepare_command(program, exit_code);
  attend_command(program, exit_code);
  for (CLI::App* command : program.get_subcommands({})) refuse_empty_values(*command);
  if (argc > 1 && argv[1][0] == '-') keep_first_lines(program);
  program.failure_message(usage_error);
  if (const auto why = no_command(program, argc, argv); !why.empty()) return complain(exit_bad_input, why);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return program.exit(e) == 0 ? exit_ok : exit_bad_input;  // --help and --version also arrive here
  }
  return exit_code;
}

// A file that is opened where stdout is closed would get its number, and what is printed would go into it. So what is
// missing is opened the wrong way round: to use it is an error still, and its number is taken. False: it cannot be.
bool open_standard_files() {
  for (int file = STDIN_FILENO; file <= STDERR_FILENO; ++file) {
    const bool missing = fcntl(file, F_GETFD) < 0 && errno == EBADF;
    if (missing && open("/dev/null", file == STDIN_FILENO ? O_WRONLY : O_RDONLY) != file) return false;
  }
  return true;
}

// What a disk did not take shows when the last of it is flushed, after every command: here. --help goes through cout.
int after_output(int code) {
  std::cout.flush();
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && !std::ferror(stdout) && std::cout) return code;
  complain(exit_run_failed,
           "writing to stdout failed, so the results are not complete. Send them where there is room.");
  return code == exit_ok ? exit_run_failed : code;
}

}  // namespace

std::string as_written(const std::string& name, const std::string& other) {
  return !is_written(name) && is_written(other) ? other : name;
}

int complain(int code, const std::string& text) {
  std::fprintf(stderr, "froghopper: %s\n", printable(text).c_str());
  return code;
}

void describe_at_length(CLI::App& command, const std::string& text) {
  command.description(command.get_description() + "\n\n" + text);
}

void add_backend_option(CLI::App& command, std::string& backend) {
  command.add_option("--backend,--target", backend, "where to run; auto: a Hopper GPU if there is one")
      ->check(CLI::IsMember({"auto", "cpu", "hopper"}))
      ->capture_default_str();
}

void add_target_option(CLI::App& command, std::string& target, const std::string& meaning) {
  command.add_option("--target,--backend", target, meaning)->capture_default_str();
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
    case FH_INTERNAL:
    case FH_INTERRUPTED: return exit_run_failed;
  }
  return exit_run_failed;
}

}  // namespace froghopper::cli

int main(int argc, char** argv) {
  using namespace froghopper::cli;
  if (!open_standard_files()) return exit_run_failed;
  fh_set_log(show_what_is_ignored, nullptr);
  // Who reads no further, as head does, ends the program without a word, also where its parent ignores the signal.
  signal(SIGPIPE, SIG_DFL);
  try {
    return after_output(run(argc, argv));
  } catch (const std::bad_alloc&) {
    return complain(exit_run_failed, no_memory);
  } catch (const std::length_error&) {  // more than a vector can ever have
    return complain(exit_run_failed, no_memory);
  } catch (const std::exception& e) { return complain(exit_run_failed, e.what()); }
}
