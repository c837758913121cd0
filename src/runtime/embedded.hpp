// SPDX-License-Identifier: Apache-2.0
// runtime: files that the build has put into the library as bytes (cmake/embed.cmake writes them).
#pragma once
#include <cstddef>
#include <string_view>

namespace froghopper::runtime {

struct EmbeddedFile {
  const char* name;
  const unsigned char* begin;
  size_t bytes;
};

// Each index ends with a null name and is sorted by name.
extern "C" const EmbeddedFile froghopper_sources[];  // "device/fwd/forward.cuh", ...: what NVRTC compiles
extern "C" const EmbeddedFile froghopper_presets[];  // "cuda12", "cuda13": a bundle from the compiler of that CUDA

// The index of presets. Those of the program are in the library that it is linked with, so it has a function of its own
// (cli/library_presets.cpp); for everybody else it is the one above.
const EmbeddedFile* embedded_presets();

inline std::string_view content(const EmbeddedFile& file) {
  return {reinterpret_cast<const char*>(file.begin), file.bytes};
}

inline const EmbeddedFile* find(const EmbeddedFile* index, std::string_view name) {
  for (; index->name != nullptr; ++index)
    if (index->name == name) return index;
  return nullptr;
}

}  // namespace froghopper::runtime
