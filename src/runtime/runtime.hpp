// SPDX-License-Identifier: Apache-2.0
// runtime: everything that touches the driver, the run-time compiler and the disk. The only room that names CUDA.
#pragma once
#include <string>
#include <vector>

#include "src/plan/plan.hpp"
#include "src/problem/tensors.hpp"

namespace froghopper::runtime {

// ordinal -1: the GPU whose context is current on this thread, else GPU 0.
Result<Device> device(int ordinal);

// Makes sure the kernel of this plan is loaded: embedded preset, else disk cache, else NVRTC. No device work.
Result<void> prepare(const Plan&);

// Encodes the tensor maps and launches on the GPU that holds the tensors; asynchronous, capturable.
Result<void> launch(const Plan&, const Views&, void* workspace, size_t workspace_bytes, void* stream);

struct Resources {           // of one compiled variant
  std::string name, origin;  // origin: "preset cuda13", "preset cuda12", "disk cache", "nvrtc 13.5"
  int registers = 0, spill_bytes = 0, smem_bytes = 0;
};
bool is_preset(const FwdVariant&);
std::vector<std::string> preset_names();
Result<Resources> resources(const Plan&);  // needs a GPU for what is not a preset

struct Info {          // for `froghopper info`; every field has text also where the thing is missing
  std::string driver;  // "580.95, CUDA 13.0" or why there is none
  std::string nvrtc;   // "13.5 (libnvrtc.so.13)" or why there is none
  std::string serves;  // which drivers the embedded presets serve
  std::string cache;   // directory of the disk cache
  std::vector<std::string> gpus;
};
Info info();

}  // namespace froghopper::runtime
