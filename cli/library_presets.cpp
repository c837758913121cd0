// SPDX-License-Identifier: Apache-2.0
// cli: the program has the library's code inside, since it looks into plans, but not its presets, which are most of its
// bytes: it reads those of the shared library. docs/decisions/0007-one-copy-of-the-presets.md.
#include "src/runtime/embedded.hpp"

extern "C" const froghopper::runtime::EmbeddedFile* fh_private_presets();  // src/api/library_presets.cpp

namespace froghopper::runtime {

const EmbeddedFile* embedded_presets() { return fh_private_presets(); }

}  // namespace froghopper::runtime
