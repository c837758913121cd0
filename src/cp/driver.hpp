// SPDX-License-Identifier: Apache-2.0
// cp: functions of NCCL and of the CUDA driver, found in libraries that are opened at run time.
#pragma once
#include <cuda.h>

#include <cstddef>

#include "src/base/result.hpp"

namespace froghopper::cp {

struct Driver {
  CUresult (*memset_d32)(CUdeviceptr to, unsigned value, size_t count, CUstream stream);
  CUresult (*memcpy)(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
  CUresult (*memcpy_2d)(const CUDA_MEMCPY2D* copy, CUstream stream);
  CUresult (*to_device)(CUdeviceptr to, const void* from, size_t bytes, CUstream stream);
  CUresult (*to_host)(void* to, CUdeviceptr from, size_t bytes, CUstream stream);
  CUresult (*event_create)(CUevent* event, unsigned flags);
  CUresult (*event_destroy)(CUevent event);
  CUresult (*event_record)(CUevent event, CUstream stream);
  CUresult (*event_query)(CUevent event);
  CUresult (*stream_wait)(CUstream stream, CUevent event, unsigned flags);
  CUresult (*error_name)(CUresult error, const char** name);
};
// From libcuda.so.1, or from `first` where that has these functions.
Result<Driver> find_driver(void* first);

// What a transport of copies calls.
struct CopyDriver {
  CUresult (*memcpy)(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
  CUresult (*event_create)(CUevent* event, unsigned flags);
  CUresult (*event_destroy)(CUevent event);
  CUresult (*event_record)(CUevent event, CUstream stream);
  CUresult (*stream_wait)(CUstream stream, CUevent event, unsigned flags);
  CUresult (*stream_create)(CUstream* stream, unsigned flags);
  CUresult (*stream_destroy)(CUstream stream);
  CUresult (*stream_context)(CUstream stream, CUcontext* context);
  CUresult (*context_push)(CUcontext context);
  CUresult (*context_pop)(CUcontext* context);
  CUresult (*context_device)(CUdevice* gpu);
  CUresult (*attribute)(int* value, CUdevice_attribute attribute, CUdevice gpu);
  CUresult (*wait_value)(CUstream stream, CUdeviceptr word, cuuint64_t value, unsigned flags);   // 64 bits
  CUresult (*write_value)(CUstream stream, CUdeviceptr word, cuuint32_t value, unsigned flags);  // 32 bits
  CUresult (*error_name)(CUresult error, const char** name);
};
// library: a file, or NULL for libcuda.so.1. It stays open until the process ends.
Result<CopyDriver> find_copy_driver(const char* library);

// As nccl.h of 2.4 and newer declares them; a communicator is an address.
struct Nccl {
  int (*group_start)();
  int (*group_end)();
  int (*send)(const void* data, size_t count, int type, int peer, void* comm, CUstream stream);
  int (*recv)(void* data, size_t count, int type, int peer, void* comm, CUstream stream);
  int (*all_gather)(const void* from, void* to, size_t count, int type, void* comm, CUstream stream);
  int (*count)(void* comm, int* ranks);
  int (*rank)(void* comm, int* rank);
  int (*async_error)(void* comm, int* error);
  int (*give_up)(void* comm);  // ncclCommAbort
  const char* (*error_string)(int error);
  void* handle;
};
// library: a file, or NULL for libnccl.so.2. It stays open until the process ends.
Result<Nccl> find_nccl(const char* library);

}  // namespace froghopper::cp
