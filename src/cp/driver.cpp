// SPDX-License-Identifier: Apache-2.0
// cp: NCCL and the CUDA driver, opened at run time.
#include "src/cp/driver.hpp"

#include <dlfcn.h>

#include "src/base/text.hpp"

namespace froghopper::cp {
namespace {

// A library's functions by their names, and the first name that it does not have.
struct Finder {
  void* library;
  const char* missing = nullptr;

  template <class Function>
  void operator()(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr && missing == nullptr) missing = name;
  }
};

const char* missing_in(void* library, Driver& d) {
  Finder find{library};
  find("cuMemsetD32Async", d.memset_d32);
  find("cuMemcpyAsync", d.memcpy);
  find("cuMemcpy2DAsync_v2", d.memcpy_2d);
  find("cuMemcpyHtoDAsync_v2", d.to_device);
  find("cuMemcpyDtoHAsync_v2", d.to_host);
  find("cuEventCreate", d.event_create);
  find("cuEventDestroy_v2", d.event_destroy);
  find("cuEventRecord", d.event_record);
  find("cuEventQuery", d.event_query);
  find("cuStreamWaitEvent", d.stream_wait);
  find("cuGetErrorName", d.error_name);
  return find.missing;
}

const char* missing_in(void* library, CopyDriver& d) {
  Finder find{library};
  find("cuMemcpyAsync", d.memcpy);
  find("cuEventCreate", d.event_create);
  find("cuEventDestroy_v2", d.event_destroy);
  find("cuEventRecord", d.event_record);
  find("cuStreamWaitEvent", d.stream_wait);
  find("cuStreamCreate", d.stream_create);
  find("cuStreamDestroy_v2", d.stream_destroy);
  find("cuStreamGetCtx", d.stream_context);
  find("cuCtxPushCurrent_v2", d.context_push);
  find("cuCtxPopCurrent_v2", d.context_pop);
  find("cuCtxGetDevice", d.context_device);
  find("cuDeviceGetAttribute", d.attribute);
  find("cuStreamWaitValue64_v2", d.wait_value);
  find("cuStreamWriteValue32_v2", d.write_value);
  find("cuGetErrorName", d.error_name);
  return find.missing;
}

const char* missing_in(void* library, Nccl& n) {
  Finder find{library};
  find("ncclGroupStart", n.group_start);
  find("ncclGroupEnd", n.group_end);
  find("ncclSend", n.send);
  find("ncclRecv", n.recv);
  find("ncclAllGather", n.all_gather);
  find("ncclCommCount", n.count);
  find("ncclCommUserRank", n.rank);
  find("ncclCommGetAsyncError", n.async_error);
  find("ncclCommAbort", n.give_up);
  find("ncclGetErrorString", n.error_string);
  return find.missing;
}

template <class Functions>
Result<Functions> found_in(const char* name) {
  Functions functions{};
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return Failure{FH_NO_DEVICE, text("{} is not found: {}. Install the NVIDIA driver.", name, dlerror())};
  if (const char* missing = missing_in(library, functions))
    return Failure{FH_NO_DEVICE, text("{} has no {}. Install a newer NVIDIA driver.", name, missing)};
  return functions;
}

}  // namespace

Result<Driver> find_driver(void* first) {
  Driver driver{};
  if (first != nullptr && missing_in(first, driver) == nullptr) return driver;
  return found_in<Driver>("libcuda.so.1");
}

Result<CopyDriver> find_copy_driver(const char* library) {
  return found_in<CopyDriver>(library != nullptr ? library : "libcuda.so.1");
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
