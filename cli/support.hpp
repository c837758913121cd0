// SPDX-License-Identifier: Apache-2.0
// cli: what the library supports, asked of the code that decides it.
#pragma once
#include <string>

namespace froghopper::cli {

std::string support_table();  // Markdown, ends in a newline; the same on every machine

}  // namespace froghopper::cli
