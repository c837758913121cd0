// SPDX-License-Identifier: Apache-2.0
// cli: the SM clock and the driver's version, from NVIDIA's management library where the driver has brought it.
#pragma once
#include <memory>
#include <string>

namespace froghopper::cli {

class GpuClock {
 public:
  // Never fails: without the library, or with several GPUs that it cannot tell apart for us, nothing is known.
  GpuClock();
  ~GpuClock();
  GpuClock(const GpuClock&) = delete;
  GpuClock& operator=(const GpuClock&) = delete;

  int mhz() const;             // now; 0: unknown
  std::string driver() const;  // "580.159.04"; "" if unknown

  // Samples in a thread from start to stop, which returns the median.
  void start();
  int stop();

 private:
  struct Library;
  struct Sampler;
  std::unique_ptr<Library> library_;
  std::unique_ptr<Sampler> sampler_;
};

}  // namespace froghopper::cli
