// SPDX-License-Identifier: Apache-2.0
// runtime: on which GPU a launch takes place, and in which context. The tensors decide, not what is current.
#pragma once
#include "src/problem/tensors.hpp"
#include "src/runtime/driver.hpp"

namespace froghopper::runtime {

// The GPU that holds q and, checked, everything else: the other tensors and the workspace.
Result<const Gpu*> home_of(const Driver&, const Views&, const void* workspace);

// The context to launch in: the stream's, which must be of that GPU. `current`: it is current already.
struct LaunchContext {
  CUcontext context;
  bool current;
};
Result<LaunchContext> launch_context(const Driver&, const Gpu&, CUstream stream);

}  // namespace froghopper::runtime
