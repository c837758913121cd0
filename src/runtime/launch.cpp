// SPDX-License-Identifier: Apache-2.0
// runtime: the main path on a GPU. Nothing here waits for the GPU, allocates its memory or is illegal while a stream is
// being captured; a kernel that is loaded costs no lock of consequence.
#include "src/base/text.hpp"
#include "src/runtime/fwd_params.hpp"
#include "src/runtime/modules.hpp"
#include "src/runtime/place.hpp"
#include "src/runtime/runtime.hpp"

namespace froghopper::runtime {

namespace {

CUresult start(const Driver& driver, CUkernel kernel, const Plan& plan, FwdParams& params, CUstream stream) {
  CUlaunchConfig config{};
  config.gridDimX = static_cast<unsigned>(plan.grid);
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = 128u * (1 + static_cast<unsigned>(fwd_consumers(plan.variant)));  // one warpgroup of producers
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = static_cast<unsigned>(plan.smem_bytes);
  config.hStream = stream;
  void* arguments[] = {&params};
  return driver.cuLaunchKernelEx(&config, reinterpret_cast<CUfunction>(kernel), arguments, nullptr);
}

}  // namespace

Result<void> launch(const Plan& plan, const Views& views, void* workspace, void* stream) {
  if (plan.grid == 0) return {};  // o and lse have no rows
  const auto driver = runtime::driver();
  if (!driver) return driver.failure();

  const auto gpu = home_of(**driver, views, workspace);
  if (!gpu) return gpu.failure();
  const auto place = launch_context(**driver, **gpu, static_cast<CUstream>(stream));
  if (!place) return place.failure();
  const auto kernel = loaded_kernel(**driver, **gpu, plan.variant);
  if (!kernel) return kernel.failure();
  const CurrentContext scope(**driver, place->current ? nullptr : place->context);
  FwdParams params = plain_params(plan, views, workspace);
  if (auto ok = set_maps(**driver, plan, views, params); !ok) return ok;
  const CUresult result = start(**driver, *kernel, plan, params, static_cast<CUstream>(stream));
  if (result == CUDA_SUCCESS) return {};
  return Failure{
      FH_LAUNCH_FAILED,
      text("the driver refused to launch {} with {} CTAs and {} bytes of shared memory on "
           "GPU {}: {}. An earlier kernel may have failed; check it first.",
           variant_name(plan.variant), plan.grid, plan.smem_bytes, (*gpu)->ordinal, (*driver)->words(result))};
}

}  // namespace froghopper::runtime
