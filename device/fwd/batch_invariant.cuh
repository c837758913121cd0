// SPDX-License-Identifier: Apache-2.0
// device/fwd: batch-invariant variants. For finite V a row's bits depend only on its q, on the keys that it attends to
// and on their positions, whatever tile it lies in and whichever rows lie next to it:
//
// - Every tile takes the exact step. The guarded one is a vote of a warp; the one vote of the exact step, whether a row
//   is large, changes no bit of the other rows.
// - Tiles have 64 keys, and what a row does not attend to of them adds 0 x V to sums that stay as they are; only where
//   V is not finite is that NaN.
// - Keys are cut into parts at the same keys for all rows (batch_invariant_parts, contract/split.h), each is a
//   softmax of its own, and parts are merged in descending key order (device/attn/lse_merge.cuh). A split-KV variant
//   leaves that to device/fwd/combine.cuh; others keep what they have in the workspace, which stays in L2
//   (kv_loop_of_parts.cuh).
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "contract/split.h"
#include "contract/types.h"
#include "device/attn/lse_merge.cuh"
#include "device/fwd/final_epilogue.cuh"
#include "device/fwd/rows.cuh"
#include "device/fwd/score_mod.cuh"
#include "device/fwd/work_item.cuh"
#include "device/fwd/workspace_o.cuh"
#include "device/ptx/registers.cuh"
#include "device/tile/accum.cuh"

namespace froghopper::fwd {

// The parts so far of one Consumer's rows, merged, in the workspace (workspace_o.cuh). The header is the PartOfRow of
// the two rows.
template <FwdVariant V>
struct PartsSoFar {
  using Output = tile::Accum<fwd_columns(V)>;
  static constexpr int fragments = WorkspaceO<V>::fragments;

  const FwdParams& params;
  int consumer;

  struct PartPair {  // of this thread's two rows
    PartOfRow top, bottom;
  };

  // Merges a part with those before it, if there are any.
  template <int Together>
  __device__ __forceinline__ void merge(bool first, PartPair& rows, Output& o) const {
    if (first) return;
    const float4* const sums = address();
    const float4 old = *sums;
    const attn::LseMerge top = attn::merge({old.x, old.y}, rows.top, ScoreMod<V>::scale_log2(params));
    const attn::LseMerge bottom = attn::merge({old.z, old.w}, rows.bottom, ScoreMod<V>::scale_log2(params));
#pragma unroll
    for (int i = 0; i < fragments; i += Together) {
      ptx::keep_order();
      add<Together>(o, i, sums, top, bottom);
    }
    rows = {top.row, bottom.row};
  }
  __device__ __forceinline__ void keep(const PartPair& rows, const Output& o) const {
    float4* const sums = address();
    *sums = float4{rows.top.row_max, rows.top.sum, rows.bottom.row_max, rows.bottom.sum};
#pragma unroll
    for (int i = 0; i < fragments; ++i)
      sums[(WorkspaceO<V>::headers + i) * warpgroup] =
          float4{o.x[4 * i], o.x[4 * i + 1], o.x[4 * i + 2], o.x[4 * i + 3]};
  }

 private:
  template <int Together>
  static __device__ __forceinline__ void add(Output& o, int at, const float4* sums, const attn::LseMerge& top,
                                             const attn::LseMerge& bottom) {
    WorkspaceO<V>::template apply<Together>(o, at, sums, [&](float* x, const float4& sum) {
      x[0] = attn::merged(sum.x, x[0], top);
      x[1] = attn::merged(sum.y, x[1], top);
      x[2] = attn::merged(sum.z, x[2], bottom);
      x[3] = attn::merged(sum.w, x[3], bottom);
    });
  }
  __device__ float4* address() const { return WorkspaceO<V>::address(params, consumer); }
};

// The epilogue of these variants: merges the part with the lowest keys with those above it. S of the next item is being
// computed, so there are few registers.
template <FwdVariant V>
struct BatchInvariantEpilogue {
  const FwdParams& params;
  const WorkItem& item;
  int m_tile_index, half;  // the Consumer's, whose number is their sum

  template <class Softmax, class Output>
  __device__ __forceinline__ void run(const Softmax& softmax, attn::RowPair sinks, Output& o) const {
    const MTile<V> m_tile{params, item, m_tile_index};
    typename PartsSoFar<V>::PartPair rows{softmax.part_top(), softmax.part_bottom()};
    const bool first = batch_invariant_part_at(item.kv.last()) == batch_invariant_part_at(m_tile.first_tile());
    PartsSoFar<V>{params, m_tile_index + half}.template merge<4>(first, rows, o);
    FinalEpilogue<V>{params, item, m_tile.rows().top, m_tile.seq_q(), half}.run(
        attn::finish_part(rows.top, ScoreMod<V>::scale_log2(params), sinks.top),
        attn::finish_part(rows.bottom, ScoreMod<V>::scale_log2(params), sinks.bottom), o);
  }
};

}  // namespace froghopper::fwd
