// SPDX-License-Identifier: Apache-2.0
// cli: opens NVIDIA's management library where there is one, and reads the SM clock in a thread of its own during
// the measurement. Where it is missing, the clock is unknown and nothing fails.
#include "cli/gpu_clock.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <type_traits>
#include <vector>

namespace froghopper::cli {

// Functions of libnvidia-ml, whose results are 0 for success; typed as nvml.h has them.
struct GpuClock::Library {
  int (*init)();
  int (*shutdown)();
  int (*device_count)(unsigned*);
  int (*device_by_index)(unsigned, void**);
  int (*clock_info)(void*, int, unsigned*);
  int (*driver_version)(char*, unsigned);
  void* device = nullptr;

  static std::unique_ptr<Library> open();
};

struct GpuClock::Sampler {
  std::vector<int> samples;
  std::jthread thread;  // the last member: it ends before the samples do
};

std::unique_ptr<GpuClock::Library> GpuClock::Library::open() {
  void* const file = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!file) return nullptr;
  auto library = std::make_unique<Library>();
  bool all = true;
  const auto get = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(file, name));
    all = all && function != nullptr;
  };
  get(library->init, "nvmlInit_v2");
  get(library->shutdown, "nvmlShutdown");
  get(library->device_count, "nvmlDeviceGetCount_v2");
  get(library->device_by_index, "nvmlDeviceGetHandleByIndex_v2");
  get(library->clock_info, "nvmlDeviceGetClockInfo");
  get(library->driver_version, "nvmlSystemGetDriverVersion");
  if (!all || library->init() != 0) return nullptr;
  unsigned count = 0;
  if (library->device_count(&count) != 0 || count != 1 || library->device_by_index(0, &library->device) != 0)
    library->device = nullptr;
  return library;
}

GpuClock::GpuClock() : library_(Library::open()) {}

GpuClock::~GpuClock() {
  sampler_.reset();
  if (library_) library_->shutdown();
}

int GpuClock::mhz() const {
  constexpr int sm_clock = 1;  // NVML_CLOCK_SM
  unsigned value = 0;
  if (!library_ || !library_->device || library_->clock_info(library_->device, sm_clock, &value) != 0) return 0;
  return static_cast<int>(value);
}

std::string GpuClock::driver() const {
  char version[96] = "";
  return library_ && library_->driver_version(version, sizeof version) == 0 ? version : "";
}

void GpuClock::start() {
  if (!mhz()) return;
  sampler_ = std::make_unique<Sampler>();
  sampler_->thread = std::jthread([this, sampler = sampler_.get()](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      sampler->samples.push_back(mhz());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
}

int GpuClock::stop() {
  if (!sampler_) return 0;
  sampler_->thread.request_stop();
  sampler_->thread.join();
  std::vector<int> samples = std::move(sampler_->samples);
  sampler_.reset();
  if (samples.empty()) return mhz();
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

}  // namespace froghopper::cli
