// SPDX-License-Identifier: Apache-2.0
// plan: which kernels compute a backward problem on a device.
#include "src/plan/backward.hpp"

namespace froghopper {

Result<Plan> plan_backward(const Problem&, const Device&, const Hints&) {
  return Failure{FH_UNSUPPORTED, "op is FH_BACKWARD; the Hopper kernels compute the forward pass. Use FH_FORWARD."};
}

}  // namespace froghopper
