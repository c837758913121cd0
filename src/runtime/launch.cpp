// SPDX-License-Identifier: Apache-2.0
// runtime: the main path on a GPU. Nothing here waits for the GPU, allocates its memory or is illegal while a stream is
// being captured; a kernel that is loaded costs no lock of consequence.
#include <algorithm>
#include <vector>

#include "src/runtime/modules.hpp"
#include "src/runtime/params/params.hpp"
#include "src/runtime/params/shared.hpp"
#include "src/runtime/place.hpp"
#include "src/runtime/runtime.hpp"
#include "src/runtime/start.hpp"

namespace froghopper::runtime {

namespace {

// A launch with all that it needs.
struct Ready {
  const Launch* launch;
  CUkernel kernel;
  Params params;
};

Result<Ready> make_ready(const Driver& driver, const Gpu& gpu, const Run& run, const Launch& launch) {
  const auto kernel = loaded_kernel(driver, gpu, launch.kernel);
  if (!kernel) return kernel.failure();
  auto params = std::visit([&](const auto& step) { return make_params(driver, run, step); }, launch.step);
  if (!params) return params.failure();
  return Ready{&launch, *kernel, std::move(*params)};
}

CUresult start(const Driver& driver, Ready& ready, CUstream stream) {
  const Launch& launch = *ready.launch;
  // Where another kernel ends, the hardware would put two CTAs on an SM that is free, and none on one that soon is.
  const int least = launch.one_cta_an_sm ? smem_bytes_of_one_cta_an_sm : 0;
  return start(driver,
               {.kernel = ready.kernel,
                .grid = launch.grid,
                .threads = launch.kernel.threads,
                .smem_bytes = std::max(launch.kernel.smem_bytes, least),
                .overlaps = launch.overlaps,
                .params = std::visit([](auto& params) -> void* { return &params; }, ready.params)},
               stream);
}

}  // namespace

Result<void> launch(const Plan& plan, const Views& views, void* workspace, void* stream) {
  if (plan.launches.empty()) return {};  // nothing that is written has rows
  const auto driver = runtime::driver();
  if (!driver) return driver.failure();

  const auto gpu = home_of(**driver, views, workspace);
  if (!gpu) return gpu.failure();
  const auto place = launch_context(**driver, **gpu, static_cast<CUstream>(stream));
  if (!place) return place.failure();
  const CurrentContext scope(**driver, place->current ? nullptr : place->context);

  // All parameters before the first launch: what is refused is refused before anything runs.
  const Run run{plan, views, static_cast<char*>(workspace), next_tag()};
  std::vector<Ready> launches;
  launches.reserve(plan.launches.size());
  for (const Launch& launch : plan.launches) {
    auto ready = make_ready(**driver, **gpu, run, launch);
    if (!ready) return ready.failure();
    launches.push_back(std::move(*ready));
  }
  for (Ready& ready : launches) {
    const CUresult result = start(**driver, ready, static_cast<CUstream>(stream));
    if (result == CUDA_SUCCESS) continue;
    return launch_failure(**driver, **gpu, ready.launch->kernel, ready.launch->grid, result);
  }
  return {};
}

}  // namespace froghopper::runtime
