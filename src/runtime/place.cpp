// SPDX-License-Identifier: Apache-2.0
#include "src/runtime/place.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>

#include "src/base/text.hpp"
#include "src/runtime/runtime.hpp"

namespace froghopper::runtime {

namespace {

struct Piece {
  const char* name;
  const void* data;  // null: not there, or empty
};

const void* memory(const View& view) { return view.batch * view.seq * view.heads == 0 ? nullptr : view.data; }

constexpr int anywhere = -1;  // managed memory: every GPU reaches it

enum class Kind { host, managed, gpu };

struct Location {
  Kind kind;
  int gpu;  // ordinal; of Kind::gpu
};

// Unlike cuPointerGetAttribute, this also takes addresses that CUDA knows nothing of: they have no memory type.
Location locate(const Driver& driver, const void* address) {
  CUmemorytype type{};
  int managed = 0, ordinal = 0;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* values[] = {&type, &managed, &ordinal};
  if (driver.cuPointerGetAttributes(3, attributes, values, reinterpret_cast<CUdeviceptr>(address)) != CUDA_SUCCESS)
    return {Kind::host, 0};
  if (managed != 0) return {Kind::managed, 0};
  return {type == CU_MEMORYTYPE_DEVICE ? Kind::gpu : Kind::host, ordinal};
}

}  // namespace

Result<const Gpu*> home_of(const Driver& driver, const Views& views, const void* workspace) {
  const std::array<Piece, 11> pieces{{{"q", memory(views.q)},
                                      {"k", memory(views.k)},
                                      {"v", memory(views.v)},
                                      {"o", memory(views.o)},
                                      {"lse", views.lse},
                                      {"cu_seqlens_q", views.cu_seqlens_q},
                                      {"cu_seqlens_kv", views.cu_seqlens_kv},
                                      {"seqused_q", views.seqused_q},
                                      {"seqused_kv", views.seqused_kv},
                                      {"sink", views.sink},
                                      {"workspace", workspace}}};
  int home = anywhere;
  const char* first = "";
  for (const Piece& piece : pieces) {
    if (piece.data == nullptr) continue;
    const Location place = locate(driver, piece.data);
    if (place.kind == Kind::host)
      return Failure{FH_INVALID_TENSOR,
                     text("{} ({}) is in host memory; a plan on Hopper takes GPU memory. Copy it to the GPU, or plan "
                          "with target \"cpu\".",
                          piece.name, fmt::ptr(piece.data))};
    if (place.kind == Kind::managed || place.gpu == home) continue;
    if (home != anywhere)
      return Failure{FH_INVALID_TENSOR,
                     text("{} is on GPU {} and {} on GPU {}; all tensors and the workspace must be on "
                          "one GPU. Copy {} to GPU {}.",
                          piece.name, place.gpu, first, home, piece.name, home)};
    home = place.gpu;
    first = piece.name;
  }
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

int gpu_of(const void* address) {
  void* loaded = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);  // by us or by anybody else in this process
  if (loaded == nullptr) return -1;
  dlclose(loaded);  // it only counted
  const auto driver = runtime::driver();
  if (!driver) return -1;
  const Location place = locate(**driver, address);
  return place.kind == Kind::gpu ? place.gpu : -1;
}

}  // namespace froghopper::runtime
