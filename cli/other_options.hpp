// SPDX-License-Identifier: Apache-2.0
// cli: options that a command does not have, and what to write instead.
#pragma once
#include <CLI/CLI.hpp>
#include <string>

namespace froghopper::cli {

// " Did you mean --causal?" of the option that CLI11 did not expect, from what it says: mistyped, or in the words of
// other programs. "" where that cannot be told.
std::string meant_option(const CLI::App& command, const std::string& what);

}  // namespace froghopper::cli
