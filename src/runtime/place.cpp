// SPDX-License-Identifier: Apache-2.0
// runtime: asks the driver where each tensor lies, and refuses what is in host memory, on two GPUs, or on another GPU
// than the stream.
#include "src/runtime/place.hpp"

#include <algorithm>

#include "src/base/text.hpp"
#include "src/runtime/runtime.hpp"

namespace froghopper::runtime {

namespace {

constexpr int anywhere = -1;  // managed memory: every GPU reaches it

// Unlike cuPointerGetAttribute, this also takes addresses that CUDA knows nothing of: they have no memory type.
Home locate(const Driver& driver, const void* address) {
  CUmemorytype type{};
  int managed = 0, ordinal = 0;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* values[] = {&type, &managed, &ordinal};
  if (driver.cuPointerGetAttributes(3, attributes, values, reinterpret_cast<CUdeviceptr>(address)) != CUDA_SUCCESS)
    return {Home::Kind::host, 0};
  if (managed != 0) return {Home::Kind::managed, 0};
  return {type == CU_MEMORYTYPE_DEVICE ? Home::Kind::gpu : Home::Kind::host, ordinal};
}

}  // namespace

Result<const Gpu*> home_of(const Driver& driver, const Views& views, const void* workspace) {
  int home = anywhere;
  const char* first = "";
  const auto look_at = [&](const char* name, const void* data) -> Result<void> {
    if (data == nullptr) return {};
    const Home place = locate(driver, data);
    if (place.kind == Home::Kind::host)
      return Failure{FH_INVALID_TENSOR,
                     text("{} ({}) is in host memory; a plan on Hopper takes GPU memory. Copy it to the GPU, or plan "
                          "with target \"cpu\".",
                          name, fmt::ptr(data))};
    if (place.kind == Home::Kind::managed || place.gpu == home) return {};
    if (home != anywhere)
      return Failure{FH_INVALID_TENSOR,
                     text("{} is on GPU {} and {} on GPU {}; all tensors and the workspace must be on "
                          "one GPU. Copy {} to GPU {}.",
                          name, place.gpu, first, home, name, home)};
    home = place.gpu;
    first = name;
    return {};
  };
  for (const Tensor& tensor : tensors())
    if (auto ok = look_at(tensor.name, (views.*tensor.view).data); !ok) return ok.failure();
  if (auto ok = look_at("workspace", workspace); !ok) return ok.failure();
  if (home == anywhere) home = std::max(0, current_gpu(driver));
  return hopper_gpu(driver, home);
}

Result<LaunchContext> launch_context(const Driver& driver, const Gpu& gpu, CUstream stream) {
  const bool special = stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
  CUcontext current = nullptr;
  driver.cuCtxGetCurrent(&current);
  if (special) {  // it means a stream of whatever context is current
    if (current != nullptr && current_gpu(driver) == gpu.ordinal) return LaunchContext{current, true};
    const auto primary = primary_context(driver, gpu);
    if (!primary) return primary.failure();
    return LaunchContext{*primary, false};
  }
  CUcontext context = nullptr;
  if (const CUresult result = driver.cuStreamGetCtx(stream, &context); result != CUDA_SUCCESS)
    return Failure{FH_LAUNCH_FAILED,
                   text("the stream is not one of this process: {}. Give a live CUstream.", driver.words(result))};
  const bool is_current = context == current;
  const CurrentContext scope(driver, is_current ? nullptr : context);
  if (const int other = current_gpu(driver); other != gpu.ordinal)
    return Failure{FH_LAUNCH_FAILED,
                   text("the stream belongs to GPU {} and the tensors to GPU {}; a kernel runs where "
                        "its stream is. Give a stream of GPU {}.",
                        other, gpu.ordinal, gpu.ordinal)};
  return LaunchContext{context, is_current};
}

Home home_of(const void* address) {
  if (!driver_is_loaded()) return {Home::Kind::host, 0};
  const auto driver = runtime::driver();
  return driver ? locate(**driver, address) : Home{Home::Kind::host, 0};
}

int gpu_of(const void* address) {
  const Home home = home_of(address);
  return home.kind == Home::Kind::gpu ? home.gpu : -1;
}

}  // namespace froghopper::runtime
