// SPDX-License-Identifier: Apache-2.0
// device/fwd: which softmax the Consumers of a variant have.
#pragma once
#include "contract/fields.h"
#include "contract/fwd_variant.h"
#include "device/attn/scaled_softmax.cuh"
#include "device/attn/softmax.cuh"
#include "device/attn/tile_softmax.cuh"
#include "device/fwd/max_logit.cuh"

namespace froghopper::fwd {

// The softmax of a variant's Consumers, by the scales that its K and V have.
template <FwdVariant V>
struct PlainSoftmaxOf {
  using Scale = Pick<fwd_converts_q(V), attn::RowPair, float>;
  using type = Pick<fwd_reads_8_bit(V), attn::ScaledSoftmax<fwd_fp8_mma(V), Scale>,
                    Pick<fwd_block_scales(V), attn::TileSoftmax,
                         Pick<fwd_dequantised_by_earlier_launch(V), attn::OneScaleSoftmax, attn::OnlineSoftmax>>>;
};
template <FwdVariant V>
using SoftmaxOf = Pick<V.max_logit, TrackingMax<typename PlainSoftmaxOf<V>::type>, typename PlainSoftmaxOf<V>::type>;

}  // namespace froghopper::fwd
