// SPDX-License-Identifier: Apache-2.0
// cli: docs/options.md, the table of options for people.
#pragma once
#include <string>

namespace froghopper::cli {

std::string options_table();

}  // namespace froghopper::cli
