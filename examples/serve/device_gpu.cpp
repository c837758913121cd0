// SPDX-License-Identifier: Apache-2.0
// The current GPU as a device, by the CUDA runtime.
#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "device.hpp"

namespace serve {
namespace {

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

class Gpu final : public Device {
 public:
  Gpu() {
    if (const cudaError_t error = cudaStreamCreate(&stream_); error != cudaSuccess)
      throw std::runtime_error(std::string("--device cuda does not work here: ") + cudaGetErrorString(error) +
                               ". Give --device cpu.");
  }
  ~Gpu() override { cudaStreamDestroy(stream_); }

  const char* target() const override { return "hopper"; }
  void* stream() const override { return stream_; }
  void* allocate(size_t bytes) override {
    void* memory = nullptr;
    check(cudaMalloc(&memory, bytes));
    return memory;
  }
  void release(void* memory) override { cudaFree(memory); }

  // Pageable memory is copied aside before the call returns.
  void write(void* to, const void* from, size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_));
  }
  void read(void* to, const void* from, size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_));
    check(cudaStreamSynchronize(stream_));
  }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace

std::unique_ptr<Device> make_gpu() { return std::make_unique<Gpu>(); }

}  // namespace serve
