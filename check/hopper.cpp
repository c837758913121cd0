// SPDX-License-Identifier: Apache-2.0
// check: a plan run on a GPU. Every block of the inputs, guard zones and NaN included, is copied there and back, so
// that what is checked of host memory afterwards holds for the GPU's.
#include "check/backends.hpp"
#include "check/gpu/session.hpp"
#include "src/base/text.hpp"

namespace froghopper::check {

namespace {

Result<void*> to_gpu(GpuSession& gpu, const std::vector<unsigned char>& block) {
  const auto memory = gpu.allocate(block.size());
  if (!memory) return memory.failure();
  const auto copied = gpu.upload(*memory, block.data(), block.size());
  if (!copied) return copied.failure();
  return *memory;
}

}  // namespace

Result<void> hopper_is_here() {
  const auto gpu = GpuSession::open();
  if (!gpu) return gpu.failure();
  return {};
}

Result<std::vector<double>> run_on_gpu(const fh_plan* plan, Inputs& in, int repeats) {
  const auto session = GpuSession::open();
  if (!session) return session.failure();
  GpuSession& gpu = **session;

  std::array<void*, parts> on_gpu{};
  for (int part = 0; part < parts; ++part) {
    if (in.blocks[part].empty()) continue;
    const auto block = to_gpu(gpu, in.blocks[part]);
    if (!block) return block.failure();
    on_gpu[part] = *block;
  }
  const size_t bytes = fh_plan_workspace_bytes(plan);
  std::vector<unsigned char> workspace_image = garbage_workspace(bytes);
  const auto workspace = to_gpu(gpu, workspace_image);
  if (!workspace) return workspace.failure();

  const fh_tensors tensors = in.at(on_gpu);
  std::vector<double> ms;
  Result<double> took = 0.0;
  for (int i = 0; i < repeats && took; ++i) {
    took = gpu.time([&]() -> Result<void> {
      void* const first = static_cast<unsigned char*>(*workspace) + workspace_guard_bytes;
      const fh_status status = fh_plan_run(plan, &tensors, first, bytes, gpu.stream());
      if (status != FH_OK) return last_failure(status);
      return {};
    });
    if (took) ms.push_back(*took);
  }

  // Also after a refusal, so that the caller sees whether it wrote anything.
  for (int part = 0; part < parts; ++part) {
    if (in.blocks[part].empty()) continue;
    const auto copied = gpu.download(in.blocks[part].data(), on_gpu[part], in.blocks[part].size());
    if (!copied) return took ? copied.failure() : took.failure();  // a fault of the kernel breaks all that follows
  }
  if (!took) return took.failure();
  const auto copied = gpu.download(workspace_image.data(), *workspace, workspace_image.size());
  if (!copied) return copied.failure();
  if (!guards_intact(workspace_image, bytes)) return Failure{FH_INTERNAL, "memory beside the workspace was written."};
  return ms;
}

}  // namespace froghopper::check
