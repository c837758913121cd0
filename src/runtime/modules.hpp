// SPDX-License-Identifier: Apache-2.0
// runtime: kernel spec -> kernel that can be launched, from the first of: the presets in the library, the disk cache,
// NVRTC. Loaded once per process, whichever thread asks first; finding a loaded kernel again takes a shared lock.
#pragma once
#include <string>

#include "src/plan/kernel.hpp"
#include "src/runtime/driver.hpp"
#include "src/runtime/kernel_file.hpp"

namespace froghopper::runtime {

struct KernelBytes {
  std::string packed;  // a kernel file
  std::string origin;  // "preset cuda13", "disk cache", "nvrtc 13.5"
};

// driver_version as in find_compiler. No driver is needed.
Result<KernelBytes> kernel_bytes(const KernelSpec&, int driver_version);

// True where kernel_bytes compiles nothing.
bool is_compiled(const KernelSpec&, int driver_version);

// Ready on that GPU: loaded, and allowed the shared memory it wants. The handle is good in every context of the GPU.
Result<CUkernel> loaded_kernel(const Driver&, const Gpu&, const KernelSpec&);

}  // namespace froghopper::runtime
