// SPDX-License-Identifier: Apache-2.0
// runtime: a kernel of contract/elementwise.h, launched without a plan.
#include <algorithm>

#include "src/base/ceil_div.hpp"
#include "src/base/text.hpp"
#include "src/runtime/modules.hpp"
#include "src/runtime/place.hpp"
#include "src/runtime/runtime.hpp"
#include "src/runtime/start.hpp"

namespace froghopper::runtime {
namespace {

// Enough threads on an SM, 2048, that their loads hide the latency of memory; each then takes several groups of four.
constexpr int64_t ctas_per_sm = 2048 / elementwise_threads;

}  // namespace

Result<void> prepare_elementwise() {
  const auto driver = runtime::driver();
  if (!driver) return driver.failure();
  const int ordinal = current_gpu(**driver);
  if (ordinal < 0) return {};
  const auto gpu = hopper_gpu(**driver, ordinal);
  if (!gpu) return gpu.failure();
  for (const ElementwiseOp op : elementwise_ops)
    for (const Dtype dtype : dtypes) {
      const ElementwiseVariant variant{op, dtype};
      if (why_invalid(variant)) continue;
      if (auto kernel = loaded_kernel(**driver, **gpu, kernel_of(variant)); !kernel) return kernel.failure();
    }
  return {};
}

Result<void> elementwise(ElementwiseVariant variant, ElementwiseParams params, void* stream) {
  if (params.count == 0) return {};
  if (const char* why = why_invalid(variant)) return Failure{FH_INVALID_TENSOR, text("{}.", why)};
  const auto driver = runtime::driver();
  if (!driver) return driver.failure();
  const Home home = home_of(params.to);
  if (home.kind == Home::Kind::host)
    return Failure{FH_INVALID_TENSOR, text("{} is in host memory; give GPU memory.", fmt::ptr(params.to))};
  const auto gpu = hopper_gpu(**driver, home.kind == Home::Kind::gpu ? home.gpu : std::max(0, current_gpu(**driver)));
  if (!gpu) return gpu.failure();
  const auto place = launch_context(**driver, **gpu, static_cast<CUstream>(stream));
  if (!place) return place.failure();
  const CurrentContext scope(**driver, place->current ? nullptr : place->context);

  const KernelSpec spec = kernel_of(variant);
  const auto kernel = loaded_kernel(**driver, **gpu, spec);
  if (!kernel) return kernel.failure();
  const int64_t grid = std::min(ceil_div(int64_t{params.count}, int64_t{elementwise_threads * elementwise_width}),
                                (*gpu)->sms * ctas_per_sm);
  const CUresult result = start(**driver,
                                {.kernel = *kernel,
                                 .grid = grid,
                                 .threads = spec.threads,
                                 .smem_bytes = spec.smem_bytes,
                                 .overlaps = true,
                                 .params = &params},
                                static_cast<CUstream>(stream));
  if (result != CUDA_SUCCESS) return launch_failure(**driver, **gpu, spec, grid, result);
  return {};
}

}  // namespace froghopper::runtime
