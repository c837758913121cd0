// SPDX-License-Identifier: Apache-2.0
// cli: kernels compiled before they are needed, many at a time.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "src/api/run.hpp"

namespace froghopper::cli {

// Compiles what these problems need on that target, a GPU that is here or is only named, and what neither the library
// nor the disk cache has, in as many processes as there are cores, into the disk cache; where that is more than one
// kernel, a line on stderr says so. Problems that the target refuses, or the CPU computes, need none. For commands that
// are about to run these problems: what failed fails again, with the reason, where it is run.
void prepare_kernels(const std::vector<Problem>&, const std::string& target);

// The target as a device, for planning; a failure where it is not here.
Result<Device> device_of(const Target&);

// What is said where no GPU is here, of a command or an option that the CPU does not have: another way out.
std::string without_cpu(std::string why, std::string_view way_out);

}  // namespace froghopper::cli
