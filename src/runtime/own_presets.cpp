// SPDX-License-Identifier: Apache-2.0
// runtime: the presets that are linked in. A file of its own, so that a program that has them elsewhere leaves it out.
#include "src/runtime/embedded.hpp"

namespace froghopper::runtime {

const EmbeddedFile* embedded_presets() { return froghopper_presets; }

}  // namespace froghopper::runtime
