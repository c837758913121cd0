// SPDX-License-Identifier: Apache-2.0
// Where attention runs and its memory lies: the host or a Hopper GPU. What is written, computed and read there is
// ordered by one stream.
#pragma once
#include <cstddef>
#include <memory>

namespace serve {

class Device {
 public:
  virtual ~Device() = default;
  virtual const char* target() const = 0;  // as froghopper names it
  virtual void* stream() const = 0;
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory) = 0;
  virtual void write(void* to, const void* from, size_t bytes) = 0;  // from the host, where it may change afterwards
  virtual void read(void* to, const void* from, size_t bytes) = 0;   // to the host; waits until it is there
};

std::unique_ptr<Device> make_host();
std::unique_ptr<Device> make_gpu();  // throws where the example was built without the CUDA runtime

// Memory of a device, which outlives it.
struct Release {
  Device* device;
  void operator()(void* memory) const { device->release(memory); }
};
using Memory = std::unique_ptr<void, Release>;

inline Memory memory_of(Device& device, size_t bytes) { return {device.allocate(bytes), {&device}}; }

}  // namespace serve
