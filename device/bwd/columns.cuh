// SPDX-License-Identifier: Apache-2.0
// device/bwd: whose columns are whose, among the CTAs of a cluster and their consumers.
#pragma once
#include "contract/bwd_variant.h"
#include "device/ptx/cluster.cuh"

namespace froghopper::bwd {

// The first column of those that this CTA has of a tensor, where the CTAs of a cluster have so many each.
template <BwdVariant V>
__device__ __forceinline__ int column_of_cta(int columns) {
  if constexpr (!bwd_by_columns(V)) return 0;
  return static_cast<int>(ptx::cta_in_cluster()) * columns;
}

// What one consumer adds of a tile of grad_q: columns [first, first + count) of its pieces side by side (dq_sum.cuh);
// in the CTAs of a cluster, `step` columns further each. These are columns of grad_q, but for q tiles of 128 rows:
// there the second piece has the same columns as the first, of rows 64 to 127.
struct DqShare {
  int first, count, step = 0;
};

// The first column of it in this CTA. The fields are read as constants: through a member function of a template
// argument they would be loads from global memory, in front of every iteration's adds.
template <DqShare Share>
__device__ __forceinline__ int first_column() {
  constexpr int first = Share.first, step = Share.step;
  if constexpr (step == 0) return first;
  return first + step * static_cast<int>(ptx::cta_in_cluster());
}

}  // namespace froghopper::bwd
