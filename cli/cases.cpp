// SPDX-License-Identifier: Apache-2.0
// cli: tells a file of cases from a case or problem that was typed, and reads either.
#include "cli/cases.hpp"

#include <algorithm>
#include <filesystem>

#include "cli/commands.hpp"
#include "src/base/text.hpp"

namespace froghopper::cli {

namespace {

constexpr std::string_view operations[] = {"fwd", "bwd", "quantise", "append"};

}  // namespace

Result<std::vector<check::Case>> cases_of(const std::string& what) {
  // A case line has blanks; a path that has some still begins with none of the operations.
  std::error_code error;  // a line may be longer than a path can be
  const bool typed = std::ranges::any_of(operations, [&](std::string_view op) {
    return what.starts_with(op) && what.substr(op.size()).starts_with(' ');
  });
  if (!typed && std::filesystem::is_directory(what, error)) {
    return Failure{FH_INVALID_PROBLEM,
                   text("\"{}\" must be a file of problem lines, but is a folder. Name a file in it.", what)};
  }
  if (!typed && std::filesystem::exists(what, error)) {
    auto cases = check::read_cases(what);
    if (!cases) return Failure{cases.failure().status, in_words_of_lines(cases.failure().text)};
    if (cases->empty()) {
      return Failure{
          FH_INVALID_PROBLEM,
          text("\"{}\" must have a problem line, but has none. Write one in it, or name another file.", what)};
    }
    for (check::Case& c : *cases) c.reason = printable(c.reason);  // words of the file, and they will be printed
    return cases;
  }
  auto one = check::parse_case(what);
  if (one) return std::vector<check::Case>{*one};
  if (what.find(' ') == std::string::npos) {
    return Failure{FH_INVALID_PROBLEM,
                   text("\"{}\" is neither a file nor a problem; a problem begins with fwd, bwd, quantise or append "
                        "and a type. Try fwd bf16 b1 hq1 hkv1 "
                        "sq128 skv128 d64.",
                        what)};
  }
  return Failure{one.failure().status, text("\"{}\", {}", what, in_words_of_lines(one.failure().text))};
}

Result<std::vector<check::Case>> cases_of(const std::vector<std::string>& what) {
  if (std::string why = unquoted(what); !why.empty()) return Failure{FH_INVALID_PROBLEM, std::move(why)};
  std::vector<check::Case> cases;
  for (const std::string& one : what) {
    auto more = cases_of(one);
    if (!more) return more.failure();
    cases.insert(cases.end(), more->begin(), more->end());
  }
  return cases;
}

std::string unquoted(const std::vector<std::string>& arguments) {
  std::error_code error;
  if (arguments.size() < 2 || std::ranges::find(operations, arguments[0]) == std::end(operations) ||
      std::filesystem::exists(arguments[0], error))
    return {};
  return text("a problem must be one argument, but is {}. Put it in quotes: '{}'.", arguments.size(),
              joined(arguments, " "));
}

}  // namespace froghopper::cli
