// SPDX-License-Identifier: Apache-2.0
// api: what the shared library shows to the program of the same build, and to nobody else: where its presets are. The
// symbol has a version that only this build has (cmake/exports.map.in), and no header.
#include <froghopper/froghopper.h>

#include "src/runtime/embedded.hpp"

extern "C" FH_API const froghopper::runtime::EmbeddedFile* fh_private_presets() {
  return froghopper::runtime::froghopper_presets;
}
