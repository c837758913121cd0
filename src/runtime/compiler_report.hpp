// SPDX-License-Identifier: Apache-2.0
// runtime: what ptxas says about a kernel, as numbers.
#pragma once
#include <string>

#include "src/runtime/kernel_file.hpp"

namespace froghopper::runtime {

// Registers, stack and spills out of ptxas' verbose report; the other facts stay 0.
KernelFacts facts_of(const std::string& report);

// The first line that warns of a C75xx: ptxas has serialised wgmma, which costs up to half of the speed. Else "".
std::string serialised_wgmma(const std::string& report);

}  // namespace froghopper::runtime
