// SPDX-License-Identifier: Apache-2.0
// cp: fill, copy, add, convert and spread in host memory.
#pragma once
#include <froghopper/cp.h>

namespace froghopper::cp {

fh_cp_memory host_memory();

}  // namespace froghopper::cp
