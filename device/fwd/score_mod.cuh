// SPDX-License-Identifier: Apache-2.0
// device/fwd: what happens to the scores of a tile between Q K^T and the softmax: softcap and ALiBi. The third score
// modification, the mask, is MTile::mask_out(): only boundary tiles have it. Gradients: device/bwd/score_mod.cuh.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "device/attn/alibi.cuh"
#include "device/attn/softmax.cuh"
#include "device/fwd/rows.cuh"
#include "device/fwd/work_item.cuh"
#include "device/tile/accum.cuh"

namespace froghopper::fwd {

// Of one item's query head.
template <FwdVariant V>
struct ScoreMod {
  using Scores = tile::Accum<V.tiles.kv>;

  float slope;  // ALiBi: what it takes from a score for each key of distance, in base 2

  // Early, for it comes from memory.
  __device__ void prefetch(const FwdParams& params, const WorkItem& item) {
    slope = !V.score_mods.alibi || item.is_end() ? 0.f : attn::slope_of(params.slopes, item.sequence, item.head);
  }

  template <class Softmax>
  __device__ __forceinline__ void apply(const FwdParams& params, Scores& s, Softmax& softmax, const MTile<V>& m_tile,
                                        int kv_tile) const {
    if constexpr (V.score_mods.softcap) cap(params, s, softmax);
    if constexpr (V.score_mods.alibi && fwd_reads_8_bit(V)) {
      add_alibi(s, softmax.scale_of_scores(), m_tile, kv_tile);  // the scale of this tile, or of capped scores
      softmax.set_scale_of_scores(1.f);
    } else if constexpr (V.score_mods.alibi) {
      add_alibi(s, params.scale_log2, m_tile, kv_tile);
    }
  }

  // What the softmax multiplies modified scores by: ALiBi leaves them in base 2. So do parts of rows that are merged
  // (batch_invariant.cuh); part_epilogue.cuh and combine.cuh take params.scale_log2, as ALiBi has no split-KV.
  static __device__ float scale_log2(const FwdParams& params) { return V.score_mods.alibi ? 1.f : params.scale_log2; }

 private:
  template <class Softmax>
  static __device__ __forceinline__ void cap(const FwdParams& params, Scores& s, Softmax& softmax) {
    if constexpr (fwd_reads_8_bit(V)) {  // cap_scale is in it: scale_of_scores(), scales.cuh
      attn::cap(s, softmax.scale_of_scores());
      softmax.set_scale_of_scores(params.scale_log2);
    } else if constexpr (V.dims.v > 192 || V.batch_invariant) {
      // At such head dims products take so long that the exponential unit keeps up. Whether a warp takes the
      // polynomial is a vote of its rows, which batch-invariant variants must not have.
      attn::cap(s, params.cap_scale);
    } else {
      attn::cap(s, params.cap_scale, params.softcap);
    }
  }

  // s becomes scores in base 2, of which the softmax takes powers as they are: s scale_log2 - slope |diagonal - key|.
  // The scale may be too small for slopes to be divided by it. A top row is as far from a column as the bottom row, 8
  // rows after it, from the column 8 further on: one distance serves two scores.
  template <class Scale>
  __device__ __forceinline__ void add_alibi(Scores& s, Scale scale_log2, const MTile<V>& m_tile, int kv_tile) const {
    const int diagonal_key = m_tile.rows().top + m_tile.mask_range().diagonal;
    const float first = slope * static_cast<float>(diagonal_key - kv_tile * V.tiles.kv - tile::thread_col());
#pragma unroll
    for (int i = 0; i < V.tiles.kv / 2; ++i) {
      const int further = tile::col_of(i) - ((i & 2) ? 8 : 0);
      const float away = __fmaf_rn(slope, static_cast<float>(-further), first);
      s.x[i] = __fmaf_rn(s.x[i], attn::of_row(scale_log2, i & 2), copysignf(away, -slope));
    }
  }
};

}  // namespace froghopper::fwd
