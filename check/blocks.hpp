// SPDX-License-Identifier: Apache-2.0
// check: memory for a case, before there are values in it.
#pragma once
#include <memory>

#include "check/check.hpp"

namespace froghopper::check {

// A block for each tensor that the case has, not written yet, and the tensors in them.
std::unique_ptr<Inputs> make_blocks(const Case&);

}  // namespace froghopper::check
