// SPDX-License-Identifier: Apache-2.0
// device/bwd: the score modifications of device/fwd/score_mod.cuh for keys along rows and queries along columns, with
// their gradients. The mask is MaskedOut, and KeyMask::score_mod(), which knows the diagonal, makes a ScoreMod: both
// are in device/bwd/schedule.cuh.
#pragma once
#include "contract/bwd_params.h"
#include "contract/bwd_variant.h"
#include "device/attn/softmax.cuh"
#include "device/tile/accum.cuh"

namespace froghopper::bwd {

// What ALiBi adds to a thread's scores, in base 2: -slope |diagonal - key|, as device/fwd/score_mod.cuh has it. The
// bottom key, 8 after the top key, is as far from a column as the top key is from the column 8 before: one distance
// serves two scores.
template <bool Alibi>
struct ScoreBias {
  float slope, first;  // slope (diagonal_key - key) of the top key and the first column

  __device__ __forceinline__ float operator()(int i) const {
    const int further = tile::col_of(i) - ((i & 2) ? 8 : 0);
    return copysignf(__fmaf_rn(slope, static_cast<float>(further), first), -slope);
  }
};
template <>
struct ScoreBias<false> {};

template <BwdVariant V>
struct ScoreMod {
  ScoreBias<V.score_mods.alibi> bias;  // its slope was prefetched with Q: QIterationOf

  // s becomes tanh(...) with softcap.
  __device__ __forceinline__ void apply(tile::Accum<V.tiles.q>& s, const BwdParams& params) const {
    if constexpr (V.score_mods.softcap) attn::cap(s, params.cap_scale);
  }
  // Value i of what apply() has left, as a score in base 2.
  __device__ __forceinline__ float in_base_2(float x, float scale_log2, int i) const {
    if constexpr (V.score_mods.alibi) return __fmaf_rn(x, scale_log2, bias(i));
    return x * scale_log2;
  }
  // The derivative of a score by q k^T, over the scale: 1 - tanh^2 with softcap. What ALiBi adds has none.
  static __device__ __forceinline__ float gradient(float x) {
    if constexpr (V.score_mods.softcap) return 1.f - x * x;
    return 1.f;
  }
};

}  // namespace froghopper::bwd
