// SPDX-License-Identifier: Apache-2.0
// device/attn: the tags of device/ptx for the element types of the contract.
#pragma once
#include "contract/types.h"
#include "device/ptx/types.cuh"

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
template <>
struct Element<Dtype::f32> {
  using type = float;
};
template <>
struct Element<Dtype::e4m3> {
  using type = ptx::e4m3;
};
template <>
struct Element<Dtype::e5m2> {
  using type = ptx::e5m2;
};

}  // namespace froghopper::attn
