// SPDX-License-Identifier: Apache-2.0
// runtime: the presets, kernels that were compiled when the library was built, and lie in it as bundles.
#pragma once
#include "src/runtime/bundle.hpp"

namespace froghopper::runtime {

// From the compiler of CUDA 13 or 12; of no kernels where the library has none of them.
const Bundle& presets(int generation);

// Whose presets a driver loads: 13, or 12 for a driver before CUDA 13 and where the others are not built in. 0: no
// driver is here, and any will do.
int preset_generation(int driver_version);

}  // namespace froghopper::runtime
