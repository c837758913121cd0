// SPDX-License-Identifier: Apache-2.0
// cli: a Stand in host memory. Calls return when their result is there, so the stopwatch is the host's clock.
#include <chrono>
#include <fstream>
#include <thread>

#include "cli/bench.hpp"
#include "src/base/text.hpp"

namespace froghopper::cli {

namespace {

// "Intel(R) Xeon(R) Processor, 2 threads"
std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string name = "CPU", line;
  while (std::getline(file, line)) {
    if (line.rfind("model name", 0) != 0 || line.find(": ") == std::string::npos) continue;
    name = line.substr(line.find(": ") + 2);
    break;
  }
  return text("{}, {} threads", name, std::thread::hardware_concurrency());
}

class CpuStand : public Stand {
 public:
  explicit CpuStand(check::Inputs& inputs) : inputs_(inputs), workspace_(fh_workspace_bytes_max()) {}

  const fh_tensors& tensors() const override { return inputs_.tensors; }
  void* workspace() const override { return const_cast<unsigned char*>(workspace_.data()); }
  void* stream() const override { return nullptr; }
  Result<double> time(const std::function<Result<void>()>& work) override {
    const auto begin = std::chrono::steady_clock::now();
    if (auto ran = work(); !ran) return ran.failure();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  }
  Result<void> finish() override { return {}; }
  int sm_clock_mhz() const override { return 0; }
  std::string machine() const override { return cpu_name(); }
  std::string driver() const override { return ""; }

 private:
  check::Inputs& inputs_;
  std::vector<unsigned char> workspace_;
};

}  // namespace

Result<std::unique_ptr<Stand>> make_cpu_stand(check::Inputs& inputs) {
  return std::unique_ptr<Stand>(std::make_unique<CpuStand>(inputs));
}

}  // namespace froghopper::cli
