// SPDX-License-Identifier: Apache-2.0
// device/attn: the tags of device/ptx for the element types of the contract.
#pragma once
#include "contract/types.h"
#include "device/ptx/mbarrier.cuh"

namespace froghopper::attn {

template <Dtype>
struct Element;
template <>
struct Element<Dtype::bf16> {
  using type = ptx::bf16;
};
template <>
struct Element<Dtype::f16> {
  using type = ptx::f16;
};

}  // namespace froghopper::attn
