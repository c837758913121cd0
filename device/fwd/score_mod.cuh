// SPDX-License-Identifier: Apache-2.0
// device/fwd: what becomes of the products of a tile before the softmax, in softcap and alibi variants.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "device/attn/alibi.cuh"
#include "device/attn/softmax_e4m3.cuh"
#include "device/fwd/rows.cuh"

namespace froghopper::fwd {

template <FwdVariant V, class Softmax>
__device__ __forceinline__ void cap(const FwdParams& params, tile::Accum<V.tiles.kv>& s, Softmax& softmax) {
  if constexpr (!V.score_mods.softcap) return;
  if constexpr (fwd_scaled(V)) {
    attn::cap(s, softmax.scale);
    softmax.take_scale(params.scale_log2);
    // Exact: the polynomial is for all rows of a warp or none
  } else if constexpr (V.dims.v > 192 || V.batch_invariant) {
    attn::cap(s, params.cap_scale);  // products take so long that the exponential unit keeps up
  } else {
    attn::cap(s, params.cap_scale, params.softcap);
  }
}

// What alibi takes from a score for each key of distance, in base 2: of the query head of an item.
template <FwdVariant V>
__device__ __forceinline__ float slope_of(const FwdParams& params, const WorkItem& item) {
  if (!V.score_mods.alibi || item.none()) return 0.f;
  return attn::slope_of(params.slopes, item.sequence, item.head);
}

// s becomes scores in base 2, of which the softmax takes powers as they are: s scale_log2 - slope |level - key|. The
// scale may be too small for slopes to be divided by it. A top row is as far from a column as the bottom row, 8 rows
// below, from the column 8 further on: one distance serves two scores.
template <FwdVariant V>
__device__ __forceinline__ void add_alibi(tile::Accum<V.tiles.kv>& s, float scale_log2, float slope,
                                          const MTile<V>& its, int kv_tile) {
  const int level = its.rows().top + its.mask_range().diagonal;
  const float first = slope * static_cast<float>(level - kv_tile * V.tiles.kv - tile::thread_col());
#pragma unroll
  for (int i = 0; i < V.tiles.kv / 2; ++i) {
    const int further = tile::col_of(i) - ((i & 2) ? 8 : 0);
    const float away = __fmaf_rn(slope, static_cast<float>(-further), first);
    s.x[i] = __fmaf_rn(s.x[i], scale_log2, copysignf(away, -slope));
  }
}

}  // namespace froghopper::fwd
