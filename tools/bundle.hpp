// SPDX-License-Identifier: Apache-2.0
// tools/compile: kernel files -> a bundle, as src/runtime/bundle.hpp describes it.
#pragma once
#include <map>
#include <string>

namespace froghopper::tools {

// By name. The result is the same for the same kernels.
std::string bundle_of(const std::map<std::string, std::string>& kernel_files);

}  // namespace froghopper::tools
