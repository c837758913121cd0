// SPDX-License-Identifier: Apache-2.0
// cli: tells a file of cases from a case or problem that was typed, and reads either.
#include "cli/cases.hpp"

#include <filesystem>

#include "cli/commands.hpp"
#include "src/base/text.hpp"

namespace froghopper::cli {

Result<std::vector<check::Case>> cases_of(const std::string& what) {
  // A case line has blanks; a path that has some still begins with none of the operations.
  std::error_code error;  // a line may be longer than a path can be
  const bool typed = what.starts_with("fwd ") || what.starts_with("bwd ") || what.starts_with("quantise ") ||
                     what.starts_with("append ");
  if (!typed && std::filesystem::is_directory(what, error)) {
    return Failure{FH_INVALID_PROBLEM,
                   text("\"{}\" must be a file of problem lines, but is a folder. Name a file in it.", what)};
  }
  if (!typed && std::filesystem::exists(what, error)) {
    auto cases = check::read_cases(what);
    if (!cases) return cases;
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
  return Failure{one.failure().status, text("\"{}\", {}", what, one.failure().text)};
}

}  // namespace froghopper::cli
