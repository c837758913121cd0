// SPDX-License-Identifier: Apache-2.0
// runtime: the table of loaded kernels, and how one gets there.
#include "src/runtime/modules.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "src/base/log.hpp"
#include "src/base/text.hpp"
#include "src/runtime/cache.hpp"
#include "src/runtime/nvrtc.hpp"
#include "src/runtime/presets.hpp"
#include "src/runtime/runtime.hpp"

namespace froghopper::runtime {

namespace {

struct Loaded {
  CUkernel kernel = nullptr;
  std::string origin;
  std::atomic<uint64_t> gpus{0};  // bit i: ready on GPU i
};

// Never emptied: a kernel that is in flight must not be unloaded. A process uses a few of the presets.
struct Table {
  std::shared_mutex mutex;                          // of `kernels`; entries never move
  std::mutex one_at_a_time;                         // held while a kernel is compiled and loaded
  std::unordered_map<std::string, Loaded> kernels;  // by name

  Loaded* find(const KernelSpec& spec) {
    const std::shared_lock lock(mutex);
    const auto found = kernels.find(spec.name);
    return found == kernels.end() ? nullptr : &found->second;
  }
};

Table& table() {
  static Table& instance = *new Table;  // lives until the process ends: threads may still launch while it exits
  return instance;
}

// What the planner and the kernel must agree on. Only a library whose parts were mixed can fail here.
Result<void> check_contract(const KernelSpec& spec, const KernelView& kernel, const std::string& origin) {
  if (cubin_constant(kernel.cubin, "fh_smem_bytes") == spec.smem_bytes &&
      cubin_constant(kernel.cubin, "fh_params_bytes") == spec.params_bytes)
    return {};
  return Failure{FH_COMPILE_FAILED,
                 text("{} from {} does not fit this library: it is of another version. Rebuild the "
                      "library, or delete its cache folder.",
                      spec.name, origin)};
}

Result<CUkernel> load(const Driver& driver, const KernelSpec& spec, const KernelBytes& bytes) {
  const auto kernel = unpack(bytes.packed);
  if (!kernel)
    return Failure{FH_COMPILE_FAILED, text("{} from {} is damaged. Rebuild the library.", spec.name, bytes.origin)};
  if (auto fits = check_contract(spec, *kernel, bytes.origin); !fits) return fits.failure();
  CUlibrary library = nullptr;
  CUkernel handle = nullptr;
  CUresult result =
      driver.cuLibraryLoadData(&library, kernel->cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (result == CUDA_SUCCESS) result = driver.cuLibraryGetKernel(&handle, library, "fh_kernel");
  if (result == CUDA_SUCCESS) return handle;
  if (library != nullptr) driver.cuLibraryUnload(library);
  return Failure{
      FH_COMPILE_FAILED,
      text("the driver (CUDA {}.{}) does not load {} from {}: {}. Update the driver, or "
           "use target \"cpu\".",
           driver.version / 1000, driver.version % 1000 / 10, spec.name, bytes.origin, driver.words(result))};
}

Result<Loaded*> find_or_load(const Driver& driver, const KernelSpec& spec) {
  if (Loaded* known = table().find(spec)) return known;
  const std::lock_guard loading(table().one_at_a_time);
  if (Loaded* known = table().find(spec)) return known;
  const auto bytes = kernel_bytes(spec, driver.version);
  if (!bytes) return bytes.failure();
  const auto kernel = load(driver, spec, *bytes);
  if (!kernel) return kernel.failure();
  log(text("kernel {} from {}", spec.name, bytes->origin));
  const std::unique_lock lock(table().mutex);
  Loaded& loaded = table().kernels[spec.name];
  loaded.kernel = *kernel;
  loaded.origin = bytes->origin;
  return &loaded;
}

// Once per kernel and GPU. Asking for the function brings the code to the GPU now, instead of at the first launch,
// where it would disturb a stream capture.
Result<void> make_ready(const Driver& driver, const Gpu& gpu, const Loaded& loaded, const KernelSpec& spec) {
  const auto context = primary_context(driver, gpu);
  if (!context) return context.failure();
  const int smem_bytes =
      std::max(spec.smem_bytes, smem_bytes_of_one_cta_an_sm);  // a launch may ask for more than the kernel uses
  CUresult result = driver.cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, smem_bytes,
                                                loaded.kernel, gpu.handle);
  if (result == CUDA_SUCCESS) {
    const CurrentContext current(driver, *context);
    CUfunction function;
    result = driver.cuKernelGetFunction(&function, loaded.kernel);
  }
  if (result == CUDA_SUCCESS) return {};
  return Failure{FH_COMPILE_FAILED,
                 text("{} cannot be made ready on GPU {} ({}): {}. Free some of its memory, or use "
                      "another GPU.",
                      spec.name, gpu.ordinal, gpu.name, driver.words(result))};
}

// Presets have no line numbers, so none is used where they are wanted.
bool is_preset_of(int generation, const KernelSpec& spec) {
  return !line_info_is_wanted() && presets(generation).has(spec.name);
}

}  // namespace

Result<CUkernel> loaded_kernel(const Driver& driver, const Gpu& gpu, const KernelSpec& spec) {
  const uint64_t bit = uint64_t{1} << gpu.ordinal % 64;
  if (const Loaded* known = table().find(spec))
    if ((known->gpus.load(std::memory_order_acquire) & bit) != 0) return known->kernel;

  const AmidCapture allowed(driver);
  const auto loaded = find_or_load(driver, spec);
  if (!loaded) return loaded.failure();
  if (auto ready = make_ready(driver, gpu, **loaded, spec); !ready) return ready.failure();
  (*loaded)->gpus.fetch_or(bit, std::memory_order_release);
  return (*loaded)->kernel;
}

Result<KernelBytes> kernel_bytes(const KernelSpec& spec, int driver_version) {
  const int generation = preset_generation(driver_version);
  if (is_preset_of(generation, spec)) {
    std::string origin = text("preset cuda{}", generation);
    auto packed = presets(generation).kernel(spec.name);
    if (packed) return KernelBytes{std::move(*packed), std::move(origin)};
    return Failure{FH_COMPILE_FAILED, text("{} from {} is damaged. Rebuild the library.", spec.name, origin)};
  }
  const auto compiler = find_compiler(driver_version);
  if (!compiler)
    return Failure{compiler.failure().status,
                   text("{} is {}, so it must be compiled, and {}", spec.name,
                        line_info_is_wanted() ? "wanted with line numbers" : "no preset of this library",
                        compiler.failure().text)};
  const DiskCache cache(DiskCache::default_folder());
  const Key key = compiler->key(spec);
  if (auto stored = cache.load(spec.name, key)) return KernelBytes{std::move(*stored), "disk cache"};
  log(text("compiling {} with {}, which takes seconds", spec.name, compiler->name()));
  const auto began = std::chrono::steady_clock::now();
  const auto kernel = compiler->compile(spec);
  if (!kernel) return kernel.failure();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  log(text("compiled {} in {:.1f} s", spec.name, took.count()));
  if (kernel->facts.serialised) log(text("{} is right but slow: {} serialises wgmma", spec.name, compiler->name()));
  std::string packed = pack(*kernel);
  cache.store(spec.name, key, packed);
  return KernelBytes{std::move(packed), compiler->name()};
}

bool is_compiled(const KernelSpec& spec, int driver_version) {
  if (is_preset_of(preset_generation(driver_version), spec)) return true;
  const auto compiler = find_compiler(driver_version);
  return compiler && DiskCache(DiskCache::default_folder()).load(spec.name, compiler->key(spec));
}

bool is_preset(const KernelSpec& spec) { return is_preset_of(preset_generation(0), spec); }

std::vector<std::string> preset_names() { return presets(preset_generation(0)).names(); }

}  // namespace froghopper::runtime
