// SPDX-License-Identifier: Apache-2.0
// The host as a device.
#include <cstring>
#include <new>

#include "device.hpp"

namespace serve {
namespace {

class Host final : public Device {
  const char* target() const override { return "cpu"; }
  void* stream() const override { return nullptr; }
  void* allocate(size_t bytes) override { return ::operator new(bytes); }
  void release(void* memory) override { ::operator delete(memory); }
  void write(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void read(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
};

}  // namespace

std::unique_ptr<Device> make_host() { return std::make_unique<Host>(); }

}  // namespace serve
