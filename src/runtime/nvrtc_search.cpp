// SPDX-License-Identifier: Apache-2.0
// runtime: where libnvrtc may be, and which of those found the driver can use.
#include <dlfcn.h>
#include <glob.h>

#include <string_view>

#include "src/base/environment.hpp"
#include "src/base/text.hpp"
#include "src/runtime/nvrtc.hpp"

namespace froghopper::runtime {

namespace {

void add_matches(std::vector<std::string>& paths, const std::string& pattern) {
  glob_t found{};
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0)
    for (size_t i = 0; i < found.gl_pathc; ++i) paths.push_back(found.gl_pathv[i]);
  globfree(&found);
}

// If this library lies in froghopper's own wheel, NVIDIA's are beside it in site-packages; "" where it does not.
std::string folder_beside_own_wheel() {
  constexpr std::string_view place = "/froghopper/lib/libfroghopper.so";
  Dl_info own{};
  if (dladdr(reinterpret_cast<const void*>(&folder_beside_own_wheel), &own) == 0) return "";
  const std::string_view path = own.dli_fname;
  return path.ends_with(place) ? text("{}/nvidia", path.substr(0, path.size() - place.size())) : "";
}

// The wheels of NVIDIA lie in a python's site-packages; the python in use shows in the environment, if at all.
std::vector<std::string> wheel_folders() {
  std::vector<std::string> roots;
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"})
    if (const std::string root = environment(name); !root.empty()) roots.push_back(root);
  if (const std::string home = environment("HOME"); !home.empty()) roots.push_back(home + "/.local");
  roots.push_back("/usr/local");
  std::vector<std::string> folders;
  if (const std::string beside = folder_beside_own_wheel(); !beside.empty()) folders.push_back(beside);
  for (const std::string& root : roots)
    for (const char* packages : {"site-packages", "dist-packages"})
      folders.push_back(text("{}/lib/python3*/{}/nvidia", root, packages));
  return folders;
}

}  // namespace

std::vector<std::string> compiler_candidates() {
  // The user's word is the only candidate where it is given.
  if (const std::string named = environment("FROGHOPPER_NVRTC"); !named.empty()) return {named};
  std::vector<std::string> paths{"libnvrtc.so.13", "libnvrtc.so.12"};
  for (const std::string& folder : wheel_folders()) {
    add_matches(paths, folder + "/cu13/lib/libnvrtc.so.13");
    add_matches(paths, folder + "/cuda_nvrtc/lib/libnvrtc.so.1[2-9]");
  }
  add_matches(paths, "/usr/local/cuda/lib64/libnvrtc.so.1[2-9]");
  add_matches(paths, "/usr/local/cuda-1*/lib64/libnvrtc.so.1[2-9]");
  return paths;
}

Result<Compiler> find_compiler(int driver_version) {
  Result<Compiler> best = Failure{FH_COMPILE_FAILED, ""};
  std::string seen;
  for (const std::string& path : compiler_candidates()) {
    auto compiler = Compiler::open(path);
    if (!compiler) continue;
    // A driver loads the cubins of its own major version and of older ones, not those of a newer one.
    if (driver_version != 0 && compiler->version() / 1000 > driver_version / 1000) {
      seen =
          text(" {} is here, but its code needs a driver of CUDA {}.", compiler->name(), compiler->version() / 1000);
      continue;
    }
    if (!best || compiler->version() > best->version()) best = std::move(compiler);
  }
  if (best) return best;
  const bool old_driver = driver_version != 0 && driver_version < 13000;
  const std::string named = environment("FROGHOPPER_NVRTC");
  if (!named.empty()) seen += text(" FROGHOPPER_NVRTC names {}, and nowhere else was looked.", named);
  return Failure{FH_COMPILE_FAILED,
                 text("no usable libnvrtc was found.{} Run pip install {}, or set FROGHOPPER_NVRTC to its path.",
                      seen, old_driver ? "nvidia-cuda-nvrtc-cu12" : "nvidia-cuda-nvrtc")};
}

}  // namespace froghopper::runtime
