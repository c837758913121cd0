// SPDX-License-Identifier: Apache-2.0
// runtime: puts one kernel into a stream.
#include "src/runtime/start.hpp"

#include "src/base/counted.hpp"
#include "src/base/text.hpp"

namespace froghopper::runtime {

CUresult start(const Driver& driver, const Start& s, CUstream stream) {
  CUlaunchConfig config{};
  config.gridDimX = static_cast<unsigned>(s.grid);
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = static_cast<unsigned>(s.threads);
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = static_cast<unsigned>(s.smem_bytes);
  config.hStream = stream;
  CUlaunchAttribute overlap{};
  overlap.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  overlap.value.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = s.overlaps ? 1 : 0;
  void* arguments[] = {s.params};
  return driver.cuLaunchKernelEx(&config, reinterpret_cast<CUfunction>(s.kernel), arguments, nullptr);
}

Failure launch_failure(const Driver& driver, const Gpu& gpu, const KernelSpec& kernel, int64_t grid,
                       CUresult result) {
  return {
      FH_LAUNCH_FAILED,
      text("the driver refused to launch {} with {} and {} of shared memory on GPU {}: {}. An earlier kernel may "
           "have failed; check it first.",
           kernel.name, counted(grid, "CTA"), counted(kernel.smem_bytes, "byte"), gpu.ordinal, driver.words(result))};
}

}  // namespace froghopper::runtime
