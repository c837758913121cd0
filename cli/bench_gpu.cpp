// SPDX-License-Identifier: Apache-2.0
// cli: a Stand in the memory of a Hopper GPU. Events of the GPU are the stopwatch, so that the host's time counts
// only where the host is slower.
#include "check/gpu/session.hpp"
#include "cli/bench.hpp"
#include "cli/gpu_clock.hpp"

namespace froghopper::cli {

namespace {

class GpuStand : public Stand {
 public:
  explicit GpuStand(std::unique_ptr<check::GpuSession> session) : session_(std::move(session)) {}

  Result<void> load(const check::Inputs& inputs, size_t workspace_bytes) {
    const auto copies = check::upload(*session_, inputs);
    if (!copies) return copies.failure();
    tensors_ = copies->tensors;
    workspace_bytes_ = workspace_bytes;
    if (workspace_bytes == 0) return {};
    const auto memory = session_->allocate(workspace_bytes);
    if (!memory) return memory.failure();
    workspace_ = *memory;
    return {};
  }

  const fh_tensors& tensors() const override { return tensors_; }
  void* workspace() const override { return workspace_; }
  size_t workspace_bytes() const override { return workspace_bytes_; }
  void* stream() const override { return session_->stream(); }
  Result<double> time(const std::function<Result<void>()>& work) override {
    clock_.start();
    auto took = session_->time(work);
    mhz_ = clock_.stop();
    return took;
  }
  Result<void> finish() override { return session_->finish(); }
  int sm_clock_mhz() const override { return mhz_; }
  std::string machine() const override { return session_->machine(); }
  std::string driver() const override {
    const std::string version = clock_.driver();
    return version.empty() ? session_->driver() : version;
  }

 private:
  std::unique_ptr<check::GpuSession> session_;
  GpuClock clock_;
  fh_tensors tensors_ = fh_tensors_init();
  void* workspace_ = nullptr;
  size_t workspace_bytes_ = 0;
  int mhz_ = 0;
};

}  // namespace

Result<std::unique_ptr<Stand>> make_gpu_stand(const check::Inputs& inputs, size_t workspace_bytes) {
  auto session = check::GpuSession::open();
  if (!session) return session.failure();
  auto stand = std::make_unique<GpuStand>(std::move(*session));
  if (auto loaded = stand->load(inputs, workspace_bytes); !loaded) return loaded.failure();
  return std::unique_ptr<Stand>(std::move(stand));
}

}  // namespace froghopper::cli
