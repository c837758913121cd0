// SPDX-License-Identifier: Apache-2.0
// cli: docs/tensors.md, for each operation the table of its tensors, for people.
#pragma once
#include <string>

namespace froghopper::cli {

std::string tensors_tables();

}  // namespace froghopper::cli
