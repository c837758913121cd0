// SPDX-License-Identifier: Apache-2.0
// tests: a library with the functions of the CUDA driver that a transport of copies calls. Memory is the host's, and
// what is put into a stream is done at once, by the thread that puts it there.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>

#define SHOWN extern "C" __attribute__((visibility("default")))

namespace {

constexpr int success = 0, timed_out = 702;
int made = 0;  // what a stream or an event points to

std::atomic_ref<uint32_t> word_at(unsigned long long address) {
  return std::atomic_ref(*reinterpret_cast<uint32_t*>(address));
}

}  // namespace

SHOWN int cuMemcpyAsync(unsigned long long to, unsigned long long from, size_t bytes, void*) {
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return success;
}
SHOWN int cuMemsetD32Async(unsigned long long to, unsigned value, size_t count, void*) {
  for (size_t i = 0; i < count; ++i) word_at(to + 4 * i).store(value);
  return success;
}
SHOWN int cuEventCreate(void** event, unsigned) { return *event = &made, success; }
SHOWN int cuEventDestroy_v2(void*) { return success; }
SHOWN int cuEventRecord(void*, void*) { return success; }
SHOWN int cuStreamWaitEvent(void*, void*, unsigned) { return success; }
SHOWN int cuStreamCreate(void** stream, unsigned) { return *stream = &made, success; }
SHOWN int cuStreamDestroy_v2(void*) { return success; }
SHOWN int cuStreamWaitValue32_v2(void*, unsigned long long word, unsigned value, unsigned) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (static_cast<int32_t>(word_at(word).load() - value) < 0) {
    if (std::chrono::steady_clock::now() > until) return timed_out;
    std::this_thread::yield();
  }
  return success;
}
SHOWN int cuStreamWriteValue32_v2(void*, unsigned long long word, unsigned value, unsigned) {
  word_at(word).store(value);
  return success;
}
SHOWN int cuGetErrorName(int error, const char** name) {
  return *name = error == timed_out ? "CUDA_ERROR_LAUNCH_TIMEOUT" : "CUDA_ERROR_UNKNOWN", success;
}
