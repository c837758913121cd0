// SPDX-License-Identifier: Apache-2.0
// runtime: a variant's source text, NVRTC called on it, and the key that names everything its machine code depends on.
#include "src/runtime/nvrtc.hpp"

#include <dlfcn.h>

#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "src/base/environment.hpp"
#include "src/base/text.hpp"
#include "src/runtime/compiler_report.hpp"
#include "src/runtime/embedded.hpp"
#include "src/runtime/kernel_sources.hpp"

namespace froghopper::runtime {

// The part of nvrtc.h that is used. Its functions are plain C and have not changed since CUDA 8 (the cubin
// ones: 11.1), so that the header of no particular version is needed to open any of them.
struct NvrtcFunctions {
  using Program = struct NvrtcProgram*;
  int (*nvrtcVersion)(int* major, int* minor) = nullptr;
  int (*nvrtcCreateProgram)(Program*, const char* source, const char* name, int headers, const char* const* texts,
                            const char* const* names) = nullptr;
  int (*nvrtcCompileProgram)(Program, int options, const char* const* option) = nullptr;
  int (*nvrtcGetProgramLogSize)(Program, size_t*) = nullptr;
  int (*nvrtcGetProgramLog)(Program, char*) = nullptr;
  int (*nvrtcGetCUBINSize)(Program, size_t*) = nullptr;
  int (*nvrtcGetCUBIN)(Program, char*) = nullptr;
  int (*nvrtcDestroyProgram)(Program*) = nullptr;
};

namespace {

// -default-device: the plain constexpr functions of contract/ may be called on the device.
// -v: ptxas reports registers and spills, see compiler_report.hpp.
std::vector<const char*> options() {
  std::vector<const char*> all = {"--gpu-architecture=sm_90a", "--std=c++20", "-default-device",
                                  "--ptxas-options=-v"};
  if (line_info_is_wanted()) all.push_back("-lineinfo");
  return all;
}
constexpr int oldest_version = 12040;  // before it, a struct as template argument is not reliable

// Loaded once and never closed: the compiler keeps state of its own.
Result<std::shared_ptr<const NvrtcFunctions>> load(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Failure{FH_COMPILE_FAILED, text("{}: {}", path, dlerror())};
  auto found = std::make_shared<NvrtcFunctions>();
  bool all = true;
  const auto get = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    all = all && function != nullptr;
  };
  get(found->nvrtcVersion, "nvrtcVersion");
  get(found->nvrtcCreateProgram, "nvrtcCreateProgram");
  get(found->nvrtcCompileProgram, "nvrtcCompileProgram");
  get(found->nvrtcGetProgramLogSize, "nvrtcGetProgramLogSize");
  get(found->nvrtcGetProgramLog, "nvrtcGetProgramLog");
  get(found->nvrtcGetCUBINSize, "nvrtcGetCUBINSize");
  get(found->nvrtcGetCUBIN, "nvrtcGetCUBIN");
  get(found->nvrtcDestroyProgram, "nvrtcDestroyProgram");
  if (!all) return Failure{FH_COMPILE_FAILED, text("{} is no NVRTC this library can use", path)};
  return std::shared_ptr<const NvrtcFunctions>(std::move(found));
}

// What the kernel and the host must agree on, read back from the code itself.
Result<CompiledKernel> finished(const KernelSpec& spec, const Key& key, int version, const std::string& report,
                                std::string cubin) {
  CompiledKernel kernel{key, facts_of(report), std::move(cubin)};
  kernel.facts.compiler = version;
  const auto smem = cubin_constant(kernel.cubin, "fh_smem_bytes");
  const auto params = cubin_constant(kernel.cubin, "fh_params_bytes");
  if (!smem || !params)
    return Failure{FH_COMPILE_FAILED, text("{} was compiled, but its constants are missing from the cubin. This is a "
                                           "bug of the library; please report this line.",
                                           spec.name)};
  kernel.facts.smem_bytes = *smem;
  kernel.facts.params_bytes = *params;
  return kernel;
}

}  // namespace

bool line_info_is_wanted() { return environment("FROGHOPPER_LINE_INFO") == "1"; }

Result<Compiler> Compiler::open(const std::string& path) {
  auto functions = load(path);
  if (!functions) return functions.failure();
  int major = 0, minor = 0;
  (*functions)->nvrtcVersion(&major, &minor);
  Compiler compiler;
  compiler.functions_ = *functions;
  compiler.path_ = path;
  compiler.version_ = major * 1000 + minor * 10;
  if (compiler.version_ < oldest_version)
    return Failure{FH_COMPILE_FAILED, text("{} is NVRTC {}.{}; kernels need 12.4 or newer", path, major, minor)};
  return compiler;
}

std::string Compiler::name() const { return text("nvrtc {}.{}", version_ / 1000, version_ % 1000 / 10); }

// Everything that changes the machine code. Pieces end with a zero byte, so that they cannot run into each other.
Key Compiler::key(const KernelSpec& spec) const {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  const auto add = [&](std::string_view piece) {
    XXH3_128bits_update(&state, piece.data(), piece.size());
    XXH3_128bits_update(&state, "", 1);
  };
  add(text("nvrtc {} params {}", version_, spec.params_bytes));
  for (const char* option : options()) add(option);
  add(spec.source);
  for (const auto& [name, text] : KernelSources::embedded(line_info_is_wanted()).read_by(spec.source)) {
    add(name);
    add(text);
  }
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state));
  Key key;
  std::memcpy(key.bytes.data(), canonical.digest, key.bytes.size());
  return key;
}

Result<CompiledKernel> Compiler::compile(const KernelSpec& spec) const {
  std::vector<const char*> texts, names;  // embedded files end with a zero byte
  for (const EmbeddedFile* file = froghopper_sources; file->name != nullptr; ++file) {
    texts.push_back(reinterpret_cast<const char*>(file->begin));
    names.push_back(file->name);
  }
  const NvrtcFunctions& nvrtc = *functions_;
  NvrtcFunctions::Program program = nullptr;
  if (nvrtc.nvrtcCreateProgram(&program, spec.source.c_str(), spec.name.c_str(), static_cast<int>(texts.size()),
                               texts.data(), names.data()) != 0)
    return Failure{FH_COMPILE_FAILED, text("{} could not start on {}; {}", name(), spec.name, path_)};
  const std::vector<const char*> wanted = options();
  const int status = nvrtc.nvrtcCompileProgram(program, static_cast<int>(wanted.size()), wanted.data());

  size_t bytes = 0;
  nvrtc.nvrtcGetProgramLogSize(program, &bytes);
  std::string report(bytes, '\0'), cubin;
  nvrtc.nvrtcGetProgramLog(program, report.data());
  if (status == 0 && nvrtc.nvrtcGetCUBINSize(program, &bytes) == 0) {
    cubin.resize(bytes);
    nvrtc.nvrtcGetCUBIN(program, cubin.data());
  }
  nvrtc.nvrtcDestroyProgram(&program);
  if (cubin.empty())
    return Failure{FH_COMPILE_FAILED, text("{} does not compile {}: {}. This is a bug of the library; please report "
                                           "these lines.",
                                           name(), spec.name, report.c_str())};
  return finished(spec, key(spec), version_, report, std::move(cubin));
}

}  // namespace froghopper::runtime
