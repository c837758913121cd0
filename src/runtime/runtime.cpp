// SPDX-License-Identifier: Apache-2.0
// runtime: what other rooms may ask about GPUs, drivers and kernels.
#include "src/runtime/runtime.hpp"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <sstream>

#include "src/base/text.hpp"
#include "src/runtime/cache.hpp"
#include "src/runtime/driver.hpp"
#include "src/runtime/modules.hpp"
#include "src/runtime/nvrtc.hpp"
#include "src/runtime/presets.hpp"
#include "src/runtime/trust.hpp"

namespace froghopper::runtime {

namespace {

// "NVIDIA H100 80GB HBM3" -> "h100": the model as one word, as plan lines spell it.
std::string model(const std::string& name) {
  std::istringstream words(name);
  std::string word, lower;
  words >> word;
  if (word == "NVIDIA") words >> word;
  for (const char c : word) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower.empty() ? "gpu" : lower;
}

Result<const Gpu*> gpu_or_current(const Driver& driver, int ordinal) {
  return hopper_gpu(driver, ordinal >= 0 ? ordinal : std::max(0, current_gpu(driver)));
}

std::string version_text(int version) { return text("{}.{}", version / 1000, version % 1000 / 10); }

// "580.95.05" out of the kernel module's own line, where it can be read; libcuda knows only its CUDA version.
std::string module_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  for (std::string word; file >> word;)
    if (std::isdigit(static_cast<unsigned char>(word[0])) && word.find('.') != std::string::npos) return word + ", ";
  return "";
}

// How many there are, from which compiler, and what they take in the library.
std::string presets_text(int generation) {
  const Bundle& bundle = presets(generation);
  const std::vector<std::string> names = bundle.names();
  const auto first = names.empty() ? std::nullopt : bundle.kernel(names.front());
  const auto kernel = first ? unpack(*first) : std::nullopt;
  if (!kernel) return "";
  return text("{} kernels by NVRTC {}, {:.1f} MB, unpacked {:.1f} MB", names.size(),
              version_text(kernel->facts.compiler), static_cast<double>(bundle.packed_bytes()) / 1e6,
              static_cast<double>(bundle.unpacked_bytes()) / 1e6);
}

std::string presets_text() {
  std::string all;
  for (const int generation : {13, 12})
    if (const std::string some = presets_text(generation); !some.empty()) all += (all.empty() ? "" : "; ") + some;
  return all.empty() ? "none; every kernel is compiled by NVRTC at its first use" : all;
}

std::string serves_text() {
  const bool newer = !presets(13).empty(), older = !presets(12).empty();
  if (!newer && !older) return "every driver from CUDA 12 on, where NVRTC is installed";
  if (!older) return "CUDA 13.0 and newer (R580)";
  return newer ? "CUDA 13.0 and newer (R580); CUDA 12.0 to 12.9 (R525 to R575)" : "CUDA 12.0 and newer (R525)";
}

std::string gpu_text(const Gpu& gpu) {
  return text("GPU {}: {}, {} SMs, {} MiB L2, compute capability {}.{}{}", gpu.ordinal, gpu.name, gpu.sms,
              gpu.l2_bytes >> 20, gpu.major, gpu.minor, gpu.hopper() ? "" : ": no Hopper GPU, not used");
}

int driver_version() {
  const auto driver = runtime::driver();
  return driver ? (*driver)->version : 0;
}

}  // namespace

Result<Device> device(int ordinal) {
  const auto driver = runtime::driver();
  if (!driver) return driver.failure();
  const auto gpu = gpu_or_current(**driver, ordinal);
  if (!gpu) return gpu.failure();
  return Device{.name = model((*gpu)->name),
                .sms = (*gpu)->sms,
                .l2_bytes = (*gpu)->l2_bytes,
                .clock_mhz = (*gpu)->clock_mhz,
                .memory_gbps = (*gpu)->memory_gbps,
                .ordinal = (*gpu)->ordinal};
}

int current_gpu() {
  const auto driver = runtime::driver();
  if (!driver) return -1;
  const auto gpu = gpu_or_current(**driver, -1);
  return gpu ? (*gpu)->ordinal : -1;
}

Result<void> prepare(const Plan& plan, int ordinal) {
  if (plan.launches.empty()) return {};
  const auto driver = runtime::driver();
  if (!driver) return driver.failure();
  const auto gpu = gpu_or_current(**driver, ordinal);
  if (!gpu) return gpu.failure();
  for (const Launch& launch : plan.launches)
    if (const auto kernel = loaded_kernel(**driver, **gpu, launch.kernel); !kernel) return kernel.failure();
  return {};
}

Result<Resources> resources(const KernelSpec& spec) {
  const auto bytes = kernel_bytes(spec, driver_version());
  if (!bytes) return bytes.failure();
  const auto kernel = unpack(bytes->packed);
  if (!kernel) return Failure{FH_INTERNAL, text("{} is damaged. Rebuild the library.", bytes->origin)};
  Resources resources;
  resources.name = spec.name;
  resources.origin = bytes->origin;
  resources.registers = kernel->facts.registers;
  resources.spill_bytes = kernel->facts.spill_store_bytes + kernel->facts.spill_load_bytes;
  resources.smem_bytes = kernel->facts.smem_bytes;
  return resources;
}

bool is_compiled(const KernelSpec& spec) { return is_compiled(spec, driver_version()); }

Info info() {
  Info info;
  info.presets = presets_text();
  info.serves = serves_text();
  info.cache = DiskCache::default_folder();
  if (info.cache.empty()) {
    info.cache = "none: HOME, XDG_CACHE_HOME and FROGHOPPER_CACHE are not set";
  } else if (const std::string why = why_untrusted(info.cache); !why.empty()) {
    info.cache += text(", not used: {}", why);
  }
  const auto driver = runtime::driver();
  if (driver) {
    info.driver = text("{}CUDA {}", module_version(), version_text((*driver)->version));
    for (const Gpu& gpu : (*driver)->gpus) info.gpus.push_back(gpu_text(gpu));
  } else {
    info.driver = driver.failure().text;
  }
  const auto compiler = find_compiler(driver ? (*driver)->version : 0);
  info.nvrtc =
      compiler ? text("{} ({})", version_text(compiler->version()), compiler->path()) : compiler.failure().text;
  return info;
}

}  // namespace froghopper::runtime
