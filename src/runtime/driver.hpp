// SPDX-License-Identifier: Apache-2.0
// runtime: libcuda, opened at run time, so that the library also works where there is no NVIDIA driver. The functions
// we call, the GPUs it knows, and its errors in words.
#pragma once
#include <cuda.h>

#include <string>
#include <vector>

#include "src/base/result.hpp"

namespace froghopper::runtime {

// Members are named and typed as the functions of cuda.h.
struct DriverFunctions {
  decltype(&::cuInit) cuInit;
  decltype(&::cuDriverGetVersion) cuDriverGetVersion;
  decltype(&::cuDeviceGetCount) cuDeviceGetCount;
  decltype(&::cuDeviceGet) cuDeviceGet;
  decltype(&::cuDeviceGetName) cuDeviceGetName;
  decltype(&::cuDeviceGetAttribute) cuDeviceGetAttribute;
  decltype(&::cuDevicePrimaryCtxRetain) cuDevicePrimaryCtxRetain;
  decltype(&::cuCtxGetCurrent) cuCtxGetCurrent;
  decltype(&::cuCtxGetDevice) cuCtxGetDevice;
  decltype(&::cuCtxPushCurrent_v2) cuCtxPushCurrent_v2;
  decltype(&::cuCtxPopCurrent_v2) cuCtxPopCurrent_v2;
  decltype(&::cuStreamGetCtx) cuStreamGetCtx;
  decltype(&::cuThreadExchangeStreamCaptureMode) cuThreadExchangeStreamCaptureMode;
  decltype(&::cuPointerGetAttributes) cuPointerGetAttributes;
  decltype(&::cuTensorMapEncodeTiled) cuTensorMapEncodeTiled;
  decltype(&::cuLibraryLoadData) cuLibraryLoadData;
  decltype(&::cuLibraryUnload) cuLibraryUnload;
  decltype(&::cuLibraryGetKernel) cuLibraryGetKernel;
  decltype(&::cuKernelSetAttribute) cuKernelSetAttribute;
  decltype(&::cuKernelGetFunction) cuKernelGetFunction;
  decltype(&::cuLaunchKernelEx) cuLaunchKernelEx;
  decltype(&::cuGetErrorName) cuGetErrorName;
  decltype(&::cuGetErrorString) cuGetErrorString;
};

struct Gpu {
  int ordinal;
  CUdevice handle;
  std::string name;  // "NVIDIA H200"
  int major, minor;  // compute capability
  int sms;
  int64_t l2_bytes;
  int clock_mhz, memory_gbps;

  bool hopper() const { return major == 9 && minor == 0; }
};

struct Driver : DriverFunctions {
  int version = 0;  // 13000 for CUDA 13.0
  std::vector<Gpu> gpus;

  std::string words(CUresult) const;  // "CUDA_ERROR_INVALID_VALUE: invalid argument"
};

// Opened at the first call, once per process. FH_NO_DEVICE with the reason where it cannot be used.
Result<const Driver*> driver();

// A GPU the kernels run on, by ordinal; else FH_NO_DEVICE.
Result<const Gpu*> hopper_gpu(const Driver&, int ordinal);

// The GPU whose context is current on this thread; -1: no context is.
int current_gpu(const Driver&);

// The primary context of a GPU, which the CUDA runtime and PyTorch use too. Retained once and kept.
Result<CUcontext> primary_context(const Driver&, const Gpu&);

// A context that is current for as long as this lives; null: whatever is current stays so.
class CurrentContext {
 public:
  CurrentContext(const Driver& driver, CUcontext context) : driver_(context != nullptr ? &driver : nullptr) {
    if (driver_ != nullptr) driver_->cuCtxPushCurrent_v2(context);
  }
  ~CurrentContext() {
    CUcontext popped;
    if (driver_ != nullptr) driver_->cuCtxPopCurrent_v2(&popped);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const Driver* driver_;
};

// While it lives, this thread may load code although a stream somewhere is being captured. Loading puts nothing into a
// stream, so it cannot disturb the capture.
class AmidCapture {
 public:
  explicit AmidCapture(const Driver& driver) : driver_(driver) { driver_.cuThreadExchangeStreamCaptureMode(&mode_); }
  ~AmidCapture() { driver_.cuThreadExchangeStreamCaptureMode(&mode_); }
  AmidCapture(const AmidCapture&) = delete;
  AmidCapture& operator=(const AmidCapture&) = delete;

 private:
  const Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // then the mode it had before
};

}  // namespace froghopper::runtime
