// SPDX-License-Identifier: Apache-2.0
// tests: a library with the functions of the CUDA driver that a transport of copies calls. Memory is the host's, and
// what is put into a stream is done at once, by the thread that puts it there. Where the driver needs a current
// context, so does this library.
#include "tests/support/fake_cuda.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#define SHOWN extern "C" __attribute__((visibility("default")))

namespace {

constexpr int success = 0, invalid_context = 201, timed_out = 702;
int made = 0;     // what a stream or an event points to
int context = 0;  // of every stream
std::atomic<int> alive = 0, has_64_bits = 1;
thread_local std::vector<void*> current;
thread_local void (*at_next_wait)(void*) = nullptr;
thread_local void* with_it = nullptr;

template <class Word>
std::atomic_ref<Word> word_at(unsigned long long address) {
  return std::atomic_ref(*reinterpret_cast<Word*>(address));
}

int in_context() { return current.empty() ? invalid_context : success; }

int make(void** one) {
  if (in_context() != success) return invalid_context;
  ++alive;
  return *one = &made, success;
}

int destroy() {
  if (in_context() != success) return invalid_context;
  --alive;
  return success;
}

}  // namespace

SHOWN void* fake_cuda_current() { return current.empty() ? nullptr : current.back(); }
SHOWN int fake_cuda_alive() { return alive; }
SHOWN void fake_cuda_set_64_bits(int has) { has_64_bits = has; }
SHOWN void fake_cuda_at_next_wait(void (*call)(void*), void* with) { at_next_wait = call, with_it = with; }

SHOWN int cuCtxPushCurrent_v2(void* one) { return current.push_back(one), success; }
SHOWN int cuCtxPopCurrent_v2(void** one) {
  if (in_context() != success) return invalid_context;
  *one = current.back();
  return current.pop_back(), success;
}
SHOWN int cuCtxGetDevice(int* gpu) { return *gpu = 0, in_context(); }
SHOWN int cuDeviceGetAttribute(int* value, int, int) { return *value = has_64_bits, success; }
SHOWN int cuMemcpyAsync(unsigned long long to, unsigned long long from, size_t bytes, void*) {
  if (in_context() != success) return invalid_context;
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return success;
}
SHOWN int cuEventCreate(void** event, unsigned) { return make(event); }
SHOWN int cuEventDestroy_v2(void*) { return destroy(); }
SHOWN int cuEventRecord(void*, void*) { return in_context(); }
SHOWN int cuStreamWaitEvent(void*, void*, unsigned) { return in_context(); }
SHOWN int cuStreamCreate(void** stream, unsigned) { return make(stream); }
SHOWN int cuStreamDestroy_v2(void*) { return destroy(); }
SHOWN int cuStreamGetCtx(void*, void** one) { return *one = &context, success; }
SHOWN int cuStreamWaitValue64_v2(void*, unsigned long long word, unsigned long long value, unsigned) {
  if (in_context() != success) return invalid_context;
  if (auto* const call = std::exchange(at_next_wait, nullptr)) call(with_it);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (static_cast<int64_t>(word_at<uint64_t>(word).load() - value) < 0) {
    if (std::chrono::steady_clock::now() > until) return timed_out;
    std::this_thread::yield();
  }
  return success;
}
SHOWN int cuStreamWriteValue32_v2(void*, unsigned long long word, unsigned value, unsigned) {
  if (in_context() != success) return invalid_context;
  word_at<uint32_t>(word).store(value);
  return success;
}
SHOWN int cuGetErrorName(int error, const char** name) {
  *name = error == timed_out         ? "CUDA_ERROR_LAUNCH_TIMEOUT"
          : error == invalid_context ? "CUDA_ERROR_INVALID_CONTEXT"
                                     : "CUDA_ERROR_UNKNOWN";
  return success;
}
