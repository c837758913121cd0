// SPDX-License-Identifier: Apache-2.0
// cli: what a user names on the command line, as cases.
#pragma once
#include "check/check.hpp"

namespace froghopper::cli {

// A problem line, a case line, or a file of them.
Result<std::vector<check::Case>> cases_of(const std::string& what);

}  // namespace froghopper::cli
