// SPDX-License-Identifier: Apache-2.0
// cli: a Stand in host memory. Calls return when their result is there, so the stopwatch is the host's clock.
#include <chrono>
#include <memory>

#include "cli/bench.hpp"
#include "cli/records.hpp"

namespace froghopper::cli {

namespace {

class CpuStand : public Stand {
 public:
  CpuStand(check::Inputs& inputs, size_t workspace_bytes)
      : inputs_(inputs), workspace_bytes_(workspace_bytes), memory_(workspace_bytes + alignment) {
    check::repeat_pieces(inputs_);
    void* at = memory_.data();
    size_t room = memory_.size();
    workspace_ = std::align(alignment, workspace_bytes, at, room);
  }

  const fh_tensors& tensors() const override { return inputs_.tensors; }
  size_t workspace_bytes() const override { return workspace_bytes_; }
  void* workspace() const override { return workspace_; }
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
  static constexpr size_t alignment = 256;  // what fh_plan_run asks for

  check::Inputs& inputs_;
  size_t workspace_bytes_;
  std::vector<unsigned char> memory_;
  void* workspace_;
};

}  // namespace

Result<std::unique_ptr<Stand>> make_cpu_stand(check::Inputs& inputs, size_t workspace_bytes) {
  return std::unique_ptr<Stand>(std::make_unique<CpuStand>(inputs, workspace_bytes));
}

}  // namespace froghopper::cli
