// SPDX-License-Identifier: Apache-2.0
// api: the main path. A plan and the user's tensors become a result, on one page.
//
//   fh_problem --Problem::from--> Problem --make_plan--> fh_plan        once, see make_plan.cpp
//   fh_tensors --bind----------> Views    --run--------> results        every time, here
#include "src/api/run.hpp"

#include "src/base/text.hpp"
#include "src/problem/overlap.hpp"
#include "src/runtime/runtime.hpp"

namespace froghopper {
namespace {

bool writes_nothing(const Problem&);
Result<void> run_on_cpu(const fh_plan&, const Views&, void* workspace);
Result<void> check_workspace(const fh_plan&, const Views&, void* workspace, size_t bytes);

}  // namespace

Result<void> run(const fh_plan& plan, const fh_tensors& tensors, void* workspace, size_t workspace_bytes,
                 void* stream) {
  if (!plan.runs_here)
    return Failure{FH_NO_DEVICE,
                   "this plan was made for a GPU that was only named; it can be read, not run. Make one "
                   "for \"hopper\" or \"cpu\"."};
  auto views = bind(plan.problem(), tensors);  // pointers, strides, what the options demand
  if (!views) return views.failure();
  const bool nothing = writes_nothing(plan.problem());
  if (!nothing)
    if (auto ok = check_workspace(plan, *views, workspace, workspace_bytes); !ok) return ok;
  if (!plan.gpu()) return run_on_cpu(plan, *views, workspace);
  return nothing ? Result<void>() : runtime::launch(*plan.gpu(), *views, workspace, stream);
}

namespace {

// o and lse have no rows: all of them are written. Gradients of keys that no row attends to are written too, and
// max_logit.
bool writes_nothing(const Problem& p) { return p.op == FH_FORWARD && p.rows_q() == 0 && !p.max_logit; }

Result<void> check_workspace(const fh_plan& plan, const Views& views, void* workspace, size_t workspace_bytes) {
  const auto wrong = [](std::string text) { return Failure{FH_INVALID_TENSOR, std::move(text)}; };
  const size_t needed = plan.workspace_bytes();
  if (needed > 0 && !workspace)
    return wrong(text("workspace is NULL; this plan needs {} bytes (fh_plan_workspace_bytes). Give it {} memory.",
                      needed, plan.gpu() ? "GPU" : "host"));
  if (workspace_bytes < needed)
    return wrong(text("workspace_bytes is {}; this plan needs {} (fh_plan_workspace_bytes). Give it more.",
                      workspace_bytes, needed));
  if (needed > 0 && reinterpret_cast<uintptr_t>(workspace) % slice_alignment != 0)
    return wrong(
        text("workspace must be at a multiple of {} bytes, as memory of cudaMalloc is, or of aligned_alloc on a CPU, "
             "but is at address {}. Align it.",
             slice_alignment, workspace));
  if (std::string bad = shared_with_workspace(plan.problem(), views, workspace, needed); !bad.empty())
    return wrong(std::move(bad));
  return {};
}

// A GPU's address would make the process fall over, so each pointer is asked where it lies; without a driver that is
// known beforehand.
Result<void> all_on_cpu(const fh_plan& plan, const Views& views, const void* workspace) {
  if (!runtime::driver_is_loaded()) return {};
  const auto on_cpu = [&](const char* name, const void* address) -> Result<void> {
    const int gpu = address ? runtime::gpu_of(address) : -1;
    if (gpu < 0) return {};
    return Failure{
        FH_INVALID_TENSOR,
        plan.why_cpu.empty()
            ? text("{} is memory of GPU {}; this plan runs on the CPU. Make one for \"hopper\", or give it "
                   "host memory.",
                   name, gpu)
            : text("{} is memory of GPU {}; this plan runs on the CPU because of this: {} Give it host "
                   "memory if that is what you want.",
                   name, gpu, plan.why_cpu)};
  };
  for (const Tensor& tensor : tensors())
    if (auto ok = on_cpu(tensor.name, (views.*tensor.view).data); !ok) return ok;
  return plan.workspace_bytes() > 0 ? on_cpu("workspace", workspace) : Result<void>{};
}

Result<void> run_on_cpu(const fh_plan& plan, const Views& views, void* workspace) {
  if (auto here = all_on_cpu(plan, views, workspace); !here) return here;
  if (writes_nothing(plan.problem())) return check_lengths(plan.problem(), views);  // a total may be forgotten
  return cpu::run(*plan.cpu(), views, workspace);
}

}  // namespace
}  // namespace froghopper
