// SPDX-License-Identifier: Apache-2.0
// runtime: the presets, found among what the build has put into the library.
#include "src/runtime/presets.hpp"

#include "src/base/text.hpp"
#include "src/runtime/embedded.hpp"

namespace froghopper::runtime {

namespace {

Bundle embedded(int generation) {
  const EmbeddedFile* const file = find(embedded_presets(), text("cuda{}", generation));
  return file != nullptr ? Bundle(content(*file)) : Bundle();
}

}  // namespace

const Bundle& presets(int generation) {
  static const Bundle newer = embedded(13), older = embedded(12);
  return generation == 13 ? newer : older;
}

// A cubin of CUDA 13 is of no use to a driver of CUDA 12; the other way round it is loaded.
int preset_generation(int driver_version) {
  const bool new_enough = driver_version == 0 || driver_version >= 13000;
  return new_enough && !presets(13).empty() ? 13 : 12;
}

}  // namespace froghopper::runtime
