// SPDX-License-Identifier: Apache-2.0
// device/attn: the scales of one kv tile, where tiles of K and V have scales of their own.
#pragma once
#include "device/ptx/math.cuh"

namespace froghopper::attn {

// Two conventions, by which softmax reads them (Consumer::begin_softmax, device/fwd/consumer.cuh), so that the
// Consumers have no divisions in their loop:
//   ScaledSoftmax   An Fp8Loader or a StoredLoader computes them by of(). k is the scale of the tile's keys, and
//                   log2_v_scale = log2(first_weight x scale of the tile's V / scale of O).
//   TileSoftmax     The dequantise kernel has prepared them (BlockScales, contract/shared_params.h). k is all that the
//                   tile's scores are multiplied by, in base 2, and log2_v_scale = log2(scale of the tile's V / scale
//                   of O).
struct alignas(8) TileScales {
  float k, log2_v_scale;

  static constexpr float first_weight = 16.f, first_log2_v_scale = 4.f;
  static __device__ TileScales of(float k, float v, float o_scale) {
    return {k, first_log2_v_scale + ptx::lg2_approx(v * ptx::rcp_approx(o_scale))};
  }
};

}  // namespace froghopper::attn
