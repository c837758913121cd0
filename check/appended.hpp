// SPDX-License-Identifier: Apache-2.0
// check: what an append problem must write, and whether it did.
#pragma once
#include "check/compare.hpp"

namespace froghopper::check {

// A tensor's scales, where rows have their own, come before its rows.
Reference appended_rows(const Problem&, const Views&);

void compare_appended(const Problem&, const Reference&, const Found&, Outcome&);

}  // namespace froghopper::check
