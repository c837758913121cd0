// SPDX-License-Identifier: Apache-2.0
// cli: a Stand in the memory of a Hopper GPU. Events of the GPU are the stopwatch, so that the host's time counts
// only where the host is slower.
#include <algorithm>

#include "check/gpu/session.hpp"
#include "cli/bench.hpp"
#include "cli/gpu_clock.hpp"
#include "src/base/ceil_div.hpp"

namespace froghopper::cli {

namespace {

class GpuStand : public Stand {
 public:
  explicit GpuStand(std::unique_ptr<check::GpuSession> session) : session_(std::move(session)) {}

  Result<void> load(const check::Inputs& inputs, size_t workspace_bytes, size_t copies) {
    while (copies_.size() < copies) {
      const auto copy = check::upload(*session_, inputs);
      if (!copy) return copy.failure();
      copies_.push_back(copy->tensors);
    }
    workspace_bytes_ = workspace_bytes;
    if (workspace_bytes == 0) return {};
    const auto memory = session_->allocate(workspace_bytes);
    if (!memory) return memory.failure();
    workspace_ = *memory;
    return {};
  }

  const fh_tensors& tensors() const override { return copies_[turn_]; }
  void next() override { turn_ = (turn_ + 1) % copies_.size(); }
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
  std::vector<fh_tensors> copies_;
  size_t turn_ = 0;
  void* workspace_ = nullptr;
  size_t workspace_bytes_ = 0;
  int mhz_ = 0;
};

// Copies that together have several times what an L2 cache of 60 MiB holds.
size_t copies_to_be_cold(const check::Inputs& inputs) {
  constexpr size_t enough = size_t{256} << 20, most = 64;
  size_t bytes = 0;
  for (const check::Inputs::Block& block : inputs.blocks) bytes += block.size();
  return std::clamp<size_t>(ceil_div(enough, std::max<size_t>(bytes, 1)), 1, most);
}

}  // namespace

Result<std::unique_ptr<Stand>> make_gpu_stand(const check::Inputs& inputs, size_t workspace_bytes, bool cold) {
  auto session = check::GpuSession::open();
  if (!session) return session.failure();
  auto stand = std::make_unique<GpuStand>(std::move(*session));
  const size_t copies = cold ? copies_to_be_cold(inputs) : 1;
  if (auto loaded = stand->load(inputs, workspace_bytes, copies); !loaded) return loaded.failure();
  return std::unique_ptr<Stand>(std::move(stand));
}

}  // namespace froghopper::cli
