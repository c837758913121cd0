// SPDX-License-Identifier: Apache-2.0
// cp: NCCL and the CUDA driver, opened at run time.
#include "src/cp/driver.hpp"

#include <dlfcn.h>

#include "src/base/text.hpp"

namespace froghopper::cp {
namespace {

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// The name of the first function that is not there.
const char* missing_in(void* library, Driver& d) {
  return !find(library, "cuMemsetD32Async", d.memset_d32)       ? "cuMemsetD32Async"
         : !find(library, "cuMemcpyAsync", d.memcpy)            ? "cuMemcpyAsync"
         : !find(library, "cuMemcpy2DAsync_v2", d.memcpy_2d)    ? "cuMemcpy2DAsync_v2"
         : !find(library, "cuMemcpyHtoDAsync_v2", d.to_device)  ? "cuMemcpyHtoDAsync_v2"
         : !find(library, "cuMemcpyDtoHAsync_v2", d.to_host)    ? "cuMemcpyDtoHAsync_v2"
         : !find(library, "cuEventCreate", d.event_create)      ? "cuEventCreate"
         : !find(library, "cuEventDestroy_v2", d.event_destroy) ? "cuEventDestroy_v2"
         : !find(library, "cuEventRecord", d.event_record)      ? "cuEventRecord"
         : !find(library, "cuEventQuery", d.event_query)        ? "cuEventQuery"
         : !find(library, "cuStreamWaitEvent", d.stream_wait)   ? "cuStreamWaitEvent"
         : !find(library, "cuGetErrorName", d.error_name)       ? "cuGetErrorName"
                                                                : nullptr;
}

const char* missing_in(void* library, Nccl& n) {
  return !find(library, "ncclGroupStart", n.group_start)          ? "ncclGroupStart"
         : !find(library, "ncclGroupEnd", n.group_end)            ? "ncclGroupEnd"
         : !find(library, "ncclSend", n.send)                     ? "ncclSend"
         : !find(library, "ncclRecv", n.recv)                     ? "ncclRecv"
         : !find(library, "ncclAllGather", n.all_gather)          ? "ncclAllGather"
         : !find(library, "ncclCommCount", n.count)               ? "ncclCommCount"
         : !find(library, "ncclCommUserRank", n.rank)             ? "ncclCommUserRank"
         : !find(library, "ncclCommGetAsyncError", n.async_error) ? "ncclCommGetAsyncError"
         : !find(library, "ncclCommAbort", n.give_up)             ? "ncclCommAbort"
         : !find(library, "ncclGetErrorString", n.error_string)   ? "ncclGetErrorString"
                                                                  : nullptr;
}

}  // namespace

Result<Driver> find_driver(void* first) {
  Driver driver{};
  if (first != nullptr && missing_in(first, driver) == nullptr) return driver;
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return Failure{FH_NO_DEVICE, text("libcuda.so.1 is not found: {}. Install the NVIDIA driver.", dlerror())};
  if (const char* missing = missing_in(library, driver))
    return Failure{FH_NO_DEVICE, text("libcuda.so.1 has no {}. Install a newer NVIDIA driver.", missing)};
  return driver;
}

Result<Nccl> find_nccl(const char* library) {
  const char* const name = library != nullptr ? library : "libnccl.so.2";
  Nccl nccl{};
  nccl.handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (nccl.handle == nullptr)
    return Failure{FH_NO_DEVICE,
                   text("NCCL is not found: {}. Install it (of Python: nvidia-nccl-cu12 or -cu13), or give "
                        "its file as library.",
                        dlerror())};
  if (const char* missing = missing_in(nccl.handle, nccl))
    return Failure{FH_NO_DEVICE, text("{} has no {}. NCCL 2.7 or newer has.", name, missing)};
  return nccl;
}

}  // namespace froghopper::cp
