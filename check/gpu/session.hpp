// SPDX-License-Identifier: Apache-2.0
// check/gpu: memory, a stream and a stopwatch on a Hopper GPU, for those who check and measure. The library allocates
// no device memory and waits for nothing; these do, so they are not part of it.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "src/base/result.hpp"

namespace froghopper::check {

class GpuSession {
 public:
  // -1: the GPU whose context is current on this thread, else GPU 0. FH_NO_DEVICE with the reason where it is none.
  static Result<std::unique_ptr<GpuSession>> open(int ordinal = -1);
  virtual ~GpuSession() = default;  // frees all that was allocated

  virtual Result<void*> allocate(size_t bytes) = 0;  // aligned to 256 bytes
  virtual Result<void> upload(void* to, const void* from, size_t bytes) = 0;
  virtual Result<void> download(void* to, const void* from, size_t bytes) = 0;
  virtual Result<void> copy(void* to, const void* from, size_t bytes) = 0;  // on the GPU, in the stream
  virtual void* stream() const = 0;
  virtual Result<void> fill(void* at, unsigned char byte, size_t bytes) = 0;  // in the stream
  // What work puts into the stream, as a graph instead of at once; each call of the result puts it there once more.
  virtual Result<std::function<Result<void>()>> capture(const std::function<Result<void>()>& work) = 0;
  virtual Result<void> finish() = 0;  // waits for the stream; a fault of a kernel is found here
  // Milliseconds of the GPU from the start of the first to the end of the last kernel that work puts into the stream.
  virtual Result<double> time(const std::function<Result<void>()>& work) = 0;
  virtual std::string machine() const = 0;  // "NVIDIA H200"
  virtual std::string driver() const = 0;   // "CUDA 13.0"
};

}  // namespace froghopper::check
