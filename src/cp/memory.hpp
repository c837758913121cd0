// SPDX-License-Identifier: Apache-2.0
// cp: fill, copy, add, convert and spread in host memory, and on a GPU (cuda_memory.cpp).
#pragma once
#include <froghopper/cp.h>

namespace froghopper::cp {

fh_cp_memory host_memory();

// The functions of fh_cp_cuda_memory that launch kernels. Where one fails, fh_last_error() says why; of copy where its
// code is negative, as others are the driver's.
struct CudaKernels {
  decltype(fh_cp_memory::copy) copy;
  decltype(fh_cp_memory::add) add;
  decltype(fh_cp_memory::convert) convert;
  decltype(fh_cp_memory::spread) spread;
};
extern const CudaKernels cuda_kernels;

}  // namespace froghopper::cp
