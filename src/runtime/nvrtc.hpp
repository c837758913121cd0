// SPDX-License-Identifier: Apache-2.0
// runtime: NVRTC, NVIDIA's run-time compiler, opened where it is found: kernel spec -> cubin. The presets at build time
// and all other kernels at run time go through the same function, so they are the same code.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "src/base/result.hpp"
#include "src/plan/kernel.hpp"
#include "src/runtime/kernel_file.hpp"

namespace froghopper::runtime {

struct NvrtcFunctions;  // nvrtc.cpp

class Compiler {
 public:
  // path: a file, or a name such as libnvrtc.so.13 that the system's linker finds.
  static Result<Compiler> open(const std::string& path);

  int version() const { return version_; }  // 13050 for 13.5
  const std::string& path() const { return path_; }
  std::string name() const;  // "nvrtc 13.5"

  Key key(const KernelSpec&) const;
  Result<CompiledKernel> compile(const KernelSpec&) const;  // FH_COMPILE_FAILED with the compiler's own words

 private:
  std::shared_ptr<const NvrtcFunctions> functions_;
  std::string path_;
  int version_ = 0;
};

// The newest compiler on this machine whose cubins the driver loads. driver_version: 13000 for CUDA 13.0; 0 where
// there is no driver and any is good. The failure says what to install.
Result<Compiler> find_compiler(int driver_version);

// FROGHOPPER_LINE_INFO=1: kernels say which line of their sources an instruction comes from, for compute-sanitizer and
// Nsight Compute. The machine code is the same, but presets do not say it, so none is used.
bool line_info_is_wanted();

// Where libnvrtc is looked for, in this order; see docs/6-jit.md.
std::vector<std::string> compiler_candidates();

}  // namespace froghopper::runtime
