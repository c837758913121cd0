// SPDX-License-Identifier: Apache-2.0
// cli: what a user names on the command line, as cases.
#pragma once
#include <string>
#include <vector>

#include "check/check.hpp"

namespace froghopper::cli {

// A problem line, a case line, or a file of them.
Result<std::vector<check::Case>> cases_of(const std::string& what);
// Of all arguments. One problem that the shell has divided, as it was not in quotes, is refused as such.
Result<std::vector<check::Case>> cases_of(const std::vector<std::string>& what);

// What the library says of a problem, with the words of a line where it has those of C.
std::string in_words_of_lines(std::string said);

// What is said of such a problem; "" where the arguments are none.
std::string unquoted(const std::vector<std::string>& arguments);

}  // namespace froghopper::cli
