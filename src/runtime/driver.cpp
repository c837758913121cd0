// SPDX-License-Identifier: Apache-2.0
// runtime: opens libcuda once, finds its functions and its GPUs, and says in words what is missing.
#include "src/runtime/driver.hpp"

#include <dlfcn.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <new>

#include "src/base/fork.hpp"
#include "src/base/text.hpp"

namespace froghopper::runtime {

namespace {

constexpr int oldest_version = 12000;  // cuLibraryLoadData and tensor maps came with CUDA 12.0
constexpr const char* other_way = "or use target \"cpu\"";

Failure no_device(std::string what) { return {FH_NO_DEVICE, std::move(what)}; }

// Says which function is missing; "" when all are there.
std::string bind(void* library, DriverFunctions& f) {
  std::string missing;
  const auto get = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr && missing.empty()) missing = name;
  };
  get(f.cuInit, "cuInit");
  get(f.cuDriverGetVersion, "cuDriverGetVersion");
  get(f.cuDeviceGetCount, "cuDeviceGetCount");
  get(f.cuDeviceGet, "cuDeviceGet");
  get(f.cuDeviceGetName, "cuDeviceGetName");
  get(f.cuDeviceGetAttribute, "cuDeviceGetAttribute");
  get(f.cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
  get(f.cuCtxGetCurrent, "cuCtxGetCurrent");
  get(f.cuCtxGetDevice, "cuCtxGetDevice");
  get(f.cuCtxPushCurrent_v2, "cuCtxPushCurrent_v2");
  get(f.cuCtxPopCurrent_v2, "cuCtxPopCurrent_v2");
  get(f.cuStreamGetCtx, "cuStreamGetCtx");
  get(f.cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode");
  get(f.cuPointerGetAttributes, "cuPointerGetAttributes");
  get(f.cuTensorMapEncodeTiled, "cuTensorMapEncodeTiled");
  get(f.cuLibraryLoadData, "cuLibraryLoadData");
  get(f.cuLibraryUnload, "cuLibraryUnload");
  get(f.cuLibraryGetKernel, "cuLibraryGetKernel");
  get(f.cuKernelSetAttribute, "cuKernelSetAttribute");
  get(f.cuKernelGetFunction, "cuKernelGetFunction");
  get(f.cuLaunchKernelEx, "cuLaunchKernelEx");
  get(f.cuGetErrorName, "cuGetErrorName");
  get(f.cuGetErrorString, "cuGetErrorString");
  return missing;
}

Gpu describe(const Driver& driver, int ordinal) {
  Gpu gpu{};
  gpu.ordinal = ordinal;
  driver.cuDeviceGet(&gpu.handle, ordinal);
  char name[256] = "";
  driver.cuDeviceGetName(name, sizeof name, gpu.handle);
  gpu.name = name;
  const auto ask = [&](CUdevice_attribute attribute) {
    int value = 0;
    driver.cuDeviceGetAttribute(&value, attribute, gpu.handle);
    return value;
  };
  gpu.major = ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  gpu.minor = ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  gpu.sms = ask(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  gpu.l2_bytes = ask(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  gpu.clock_mhz = ask(CU_DEVICE_ATTRIBUTE_CLOCK_RATE) / 1000;  // stated in kHz, as the memory's
  // Two transfers a clock of the memory's bus, whose width is stated in bits.
  gpu.memory_gbps = static_cast<int>(2.0 * ask(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE) / 1e6 *
                                     ask(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH) / 8);
  return gpu;
}

Result<std::unique_ptr<Driver>> open() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return no_device(text("there is no NVIDIA driver on this machine ({}). Install one, {}.", dlerror(), other_way));
  auto driver = std::make_unique<Driver>();
  const std::string missing = bind(library, *driver);
  if (driver->cuDriverGetVersion != nullptr) driver->cuDriverGetVersion(&driver->version);
  if (!missing.empty() || driver->version < oldest_version)
    return no_device(
        text("the NVIDIA driver is of CUDA {}.{}; the kernels need a driver of CUDA 12.0 (R525) or newer"
             "{}. Update it, {}.",
             driver->version / 1000, driver->version % 1000 / 10,
             missing.empty() ? "" : " (" + missing + " is missing)", other_way));
  int count = 0;
  CUresult result = driver->cuInit(0);
  if (result == CUDA_SUCCESS) result = driver->cuDeviceGetCount(&count);
  if (result == CUDA_ERROR_NO_DEVICE || (result == CUDA_SUCCESS && count == 0))
    return no_device(
        text("the NVIDIA driver sees no GPU. Check nvidia-smi and CUDA_VISIBLE_DEVICES, {}.", other_way));
  if (result != CUDA_SUCCESS)
    return no_device(
        text("the NVIDIA driver does not start: {}. Check nvidia-smi, {}.", driver->words(result), other_way));
  for (int i = 0; i < count; ++i) driver->gpus.push_back(describe(*driver, i));
  return driver;
}

using Opened = Result<std::unique_ptr<Driver>>;
std::atomic<const Opened*> opened{nullptr};  // never freed: threads may still launch while the process exits
std::mutex opening;

// A child must not inherit it locked. fork() cannot wait for it as for other locks: libcuda, which this library starts
// while it holds it, may fork itself.
[[maybe_unused]] const bool forks = in_children([] { new (&opening) std::mutex; });

}  // namespace

std::string Driver::words(CUresult result) const {
  const char *name = nullptr, *meaning = nullptr;
  cuGetErrorName(result, &name);
  cuGetErrorString(result, &meaning);
  if (name == nullptr || meaning == nullptr) return text("error {}", static_cast<int>(result));
  return text("{}: {}", name, meaning);
}

Result<const Driver*> driver() {
  const Opened* known = opened.load(std::memory_order_acquire);
  if (known == nullptr) {
    const std::lock_guard lock(opening);
    known = opened.load(std::memory_order_relaxed);
    if (known == nullptr) opened.store(known = new Opened(open()), std::memory_order_release);
  }
  if (!*known) return known->failure();
  return (*known)->get();
}

Result<const Gpu*> hopper_gpu(const Driver& driver, int ordinal) {
  const int count = static_cast<int>(driver.gpus.size());
  if (ordinal < 0 || ordinal >= count)
    return no_device(text("there is no GPU {}; this machine has {}. Use one of 0 to {}.", ordinal, count, count - 1));
  const Gpu& gpu = driver.gpus[ordinal];
  if (!gpu.hopper())
    return no_device(
        text("GPU {} is {} of compute capability {}.{}; the kernels are for Hopper, 9.0. Use another GPU, "
             "{}.",
             ordinal, gpu.name, gpu.major, gpu.minor, other_way));
  return &gpu;
}

int current_gpu(const Driver& driver) {
  CUcontext context = nullptr;
  CUdevice handle;
  // Asked first, since without a context the second call is an error that tools report.
  if (driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr) return -1;
  if (driver.cuCtxGetDevice(&handle) != CUDA_SUCCESS) return -1;
  for (const Gpu& gpu : driver.gpus)
    if (gpu.handle == handle) return gpu.ordinal;
  return -1;
}

Result<CUcontext> primary_context(const Driver& driver, const Gpu& gpu) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<CUcontext>(driver.gpus.size(), nullptr);  // never freed, as the driver
  const std::lock_guard lock(mutex);
  CUcontext& context = kept[gpu.ordinal];
  if (context == nullptr)
    if (const CUresult result = driver.cuDevicePrimaryCtxRetain(&context, gpu.handle); result != CUDA_SUCCESS)
      return no_device(text("GPU {} cannot be used: {}. Check nvidia-smi for other processes on it, {}.", gpu.ordinal,
                            driver.words(result), other_way));
  return context;
}

}  // namespace froghopper::runtime
