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

  // Copies every block of the inputs, gaps and guard zones included.
  Result<void> load(const check::Inputs& inputs) {
    std::array<void*, check::parts> on_gpu{};
    for (int part = 0; part < check::parts; ++part) {
      const std::vector<unsigned char>& block = inputs.blocks[part];
      if (block.empty()) continue;
      const auto memory = session_->allocate(block.size());
      if (!memory) return memory.failure();
      if (auto copied = session_->upload(*memory, block.data(), block.size()); !copied) return copied;
      on_gpu[part] = *memory;
    }
    tensors_ = inputs.at(on_gpu);
    const auto memory = session_->allocate(fh_workspace_bytes_max());
    if (!memory) return memory.failure();
    workspace_ = *memory;
    return {};
  }

  const fh_tensors& tensors() const override { return tensors_; }
  void* workspace() const override { return workspace_; }
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
  int mhz_ = 0;
};

}  // namespace

Result<std::unique_ptr<Stand>> make_gpu_stand(const check::Inputs& inputs) {
  auto session = check::GpuSession::open();
  if (!session) return session.failure();
  auto stand = std::make_unique<GpuStand>(std::move(*session));
  if (auto loaded = stand->load(inputs); !loaded) return loaded.failure();
  return std::unique_ptr<Stand>(std::move(stand));
}

}  // namespace froghopper::cli
