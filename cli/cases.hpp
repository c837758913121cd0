// SPDX-License-Identifier: Apache-2.0
// cli: what a user names on the command line, as cases.
#pragma once
#include <string>
#include <vector>

#include "check/check.hpp"

namespace froghopper::cli {

// What arguments name, problem lines, case lines and files of them: the cases, and what is wrong with the others.
struct Cases {
  std::vector<check::Case> all;
  std::vector<Failure> wrong;
};

// One problem that the shell has divided, as it was not in quotes, is told as such.
Cases cases_of(const std::vector<std::string>& what);

// Says what is wrong, of a file that is something else not without end. The exit code, exit_ok where nothing is.
int complain(const std::vector<Failure>& wrong);

// What is said of such a problem; "" where the arguments are none.
std::string unquoted(const std::vector<std::string>& arguments);

}  // namespace froghopper::cli
