// SPDX-License-Identifier: Apache-2.0
// runtime: what ptxas says about a kernel, as numbers.
#pragma once
#include <string>

#include "src/runtime/kernel_file.hpp"

namespace froghopper::runtime {

// Registers, stack, spills and serialisation out of ptxas' verbose report; the other facts stay 0.
KernelFacts facts_of(const std::string& report);

}  // namespace froghopper::runtime
