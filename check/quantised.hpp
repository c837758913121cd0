// SPDX-License-Identifier: Apache-2.0
// check: what a quantise problem must write, and whether it did.
#pragma once
#include "check/compare.hpp"

namespace froghopper::check {

Reference quantised_rows(const Problem&, const Views&);

void compare_quantised(const Problem&, const Reference&, const Found&, Outcome&);

}  // namespace froghopper::check
