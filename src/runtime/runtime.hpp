// SPDX-License-Identifier: Apache-2.0
// runtime: everything that touches the driver, the run-time compiler and the disk. The only room that names CUDA.
#pragma once
#include <string>
#include <vector>

#include "src/plan/plan.hpp"
#include "src/problem/tensors.hpp"

namespace froghopper::runtime {

// ordinal -1: the GPU whose context is current on this thread, else GPU 0. Cheap: the driver is asked once per process.
Result<Device> device(int ordinal);
// The ordinal that device(-1) would have, -1 where it fails. Cheap: fh_attention asks on every call.
int current_gpu();

// Whose memory an address is. Starts no driver: where none was started, there is no GPU memory.
struct Home {
  enum class Kind { host, managed, gpu } kind;  // host: pinned memory too
  int gpu;                                      // ordinal; of Kind::gpu
};
Home home_of(const void* address);

// Which GPU's memory this is, -1 where the CPU can read it. So that the CPU backend refuses a GPU's address instead of
// crashing on it.
int gpu_of(const void* address);
// Some code in this process has loaded libcuda. Cheap, so that every call on the CPU may ask.
bool driver_is_loaded();

// Makes sure the kernels of this plan are loaded on that GPU (ordinal as for device): embedded preset, else disk cache,
// else NVRTC. No work for the GPU; the first launch is then as quick as every other, also while a stream is being
// captured.
Result<void> prepare(const Plan&, int ordinal);

// Makes the parameters of all launches, then launches, on the GPU that holds the tensors; asynchronous, capturable. The
// workspace has been checked, except for the GPU it is on.
Result<void> launch(const Plan&, const Views&, void* workspace, void* stream);

// A kernel of contract/elementwise.h, on the GPU that holds params.to; asynchronous, capturable. Alignment: to that of
// an element. Needs no plan.
Result<void> elementwise(ElementwiseVariant, ElementwiseParams, void* stream);
// Loads these kernels on the GPU whose context is current on this thread; where none is, they load at their first use.
Result<void> prepare_elementwise();

struct Resources {           // of one compiled kernel
  std::string name, origin;  // origin: "preset cuda13", "preset cuda12", "disk cache", "nvrtc 13.5"
  int registers = 0, spill_bytes = 0, smem_bytes = 0;  // a thread's, a thread's (stores and loads), a CTA's
};
bool is_preset(const KernelSpec&);    // that is: need not be compiled
bool is_compiled(const KernelSpec&);  // a preset for the driver that is here, or in the disk cache
std::vector<std::string> preset_names();
Result<Resources> resources(
    const KernelSpec&);  // needs no GPU; compiles what is neither a preset nor in the disk cache

struct Info {           // for `froghopper info`; every field has text also where the thing is missing
  std::string driver;   // "580.95, CUDA 13.0" or why there is none
  std::string nvrtc;    // "13.5 (libnvrtc.so.13)" or why there is none
  std::string presets;  // "384 kernels by NVRTC 13.5, 4.1 MB, unpacked 44.2 MB; ..."
  std::string serves;   // which drivers the embedded presets serve
  std::string cache;    // directory of the disk cache
  std::vector<std::string> gpus;
};
Info info();

}  // namespace froghopper::runtime
