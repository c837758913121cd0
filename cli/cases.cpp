// SPDX-License-Identifier: Apache-2.0
// cli: tells a file of cases from a case or problem that was typed, and reads either.
#include "cli/cases.hpp"

#include <algorithm>
#include <filesystem>

#include "cli/commands.hpp"
#include "src/base/printable.hpp"
#include "src/base/text.hpp"

namespace froghopper::cli {

namespace {

constexpr std::string_view operations[] = {"fwd", "bwd", "quantise", "append"};

constexpr size_t most_complaints = 20;

bool is_typed(const std::string& what) {
  // A case line has blanks; a path that has some still begins with none of the operations.
  return std::ranges::any_of(operations, [&](std::string_view op) {
    return what.starts_with(op) && what.substr(op.size()).starts_with(' ');
  });
}

Failure no_cases(std::string why) { return Failure{FH_INVALID_PROBLEM, std::move(why)}; }

// Of one argument, added to what there is.
void add(const std::string& what, Cases& cases) {
  std::error_code error;  // a line may be longer than a path can be
  const auto refuse = [&](Failure why) { cases.wrong.push_back(std::move(why)); };
  if (!is_typed(what) && std::filesystem::is_directory(what, error))
    return refuse(
        no_cases(text("\"{}\" must be a file of problem lines, but is a folder. Name a file in it.", what)));
  if (!is_typed(what) && std::filesystem::exists(what, error)) {
    const size_t wrong_before = cases.wrong.size();
    auto read = check::read_cases(what, cases.wrong);
    if (!read) return refuse(read.failure());
    if (read->empty() && cases.wrong.size() == wrong_before)
      return refuse(no_cases(
          text("\"{}\" must have a problem line, but has none. Write one in it, or name another file.", what)));
    for (check::Case& c : *read) {
      c.reason = printable(c.reason);  // words of the file, and they will be printed
      cases.all.push_back(std::move(c));
    }
    return;
  }
  auto one = check::parse_case(what);
  if (one) return cases.all.push_back(std::move(*one));
  if (what.find(' ') == std::string::npos)
    return refuse(
        no_cases(text("\"{}\" is neither a file nor a problem; a problem begins with fwd, bwd, quantise or "
                      "append and a type. Try fwd bf16 b1 hq1 hkv1 sq128 skv128 d64.",
                      shown(what, shown_of_line))));
  refuse(Failure{one.failure().status, text("\"{}\", {}", shown(what, shown_of_line), one.failure().text)});
}

}  // namespace

Cases cases_of(const std::vector<std::string>& what) {
  if (std::string why = unquoted(what); !why.empty()) return {.all = {}, .wrong = {no_cases(std::move(why))}};
  Cases cases;
  for (const std::string& one : what) add(one, cases);
  return cases;
}

int complain(const std::vector<Failure>& wrong) {
  for (size_t i = 0; i < std::min(wrong.size(), most_complaints); ++i) complain(wrong[i]);
  if (wrong.size() > most_complaints)
    complain(exit_bad_input, text("{} more cannot be read either.", wrong.size() - most_complaints));
  int code = exit_ok;  // input that says nothing comes before a problem that nothing computes
  for (const Failure& why : wrong)
    code = code == exit_ok ? exit_code_of(why.status) : std::min(code, exit_code_of(why.status));
  return code;
}

std::string unquoted(const std::vector<std::string>& arguments) {
  std::error_code error;
  if (arguments.size() < 2 || std::ranges::find(operations, arguments[0]) == std::end(operations) ||
      std::filesystem::exists(arguments[0], error))
    return {};
  return text("a problem must be one argument, but is {}. Put it in quotes: '{}'.", arguments.size(),
              shown(joined(arguments, " "), shown_of_line));
}

}  // namespace froghopper::cli
