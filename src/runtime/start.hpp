// SPDX-License-Identifier: Apache-2.0
// runtime: puts one kernel into a stream.
#pragma once
#include "src/plan/kernel.hpp"
#include "src/runtime/driver.hpp"

namespace froghopper::runtime {

struct Start {
  CUkernel kernel;
  int64_t grid;
  int threads, smem_bytes;
  bool overlaps;  // with the kernel before it in the stream, for which it waits itself
  void* params;
};
CUresult start(const Driver&, const Start&, CUstream);

// Why the driver refused that.
Failure launch_failure(const Driver&, const Gpu&, const KernelSpec&, int64_t grid, CUresult);

}  // namespace froghopper::runtime
