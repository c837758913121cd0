// SPDX-License-Identifier: Apache-2.0
// device/fwd: O over the keys of several calls (merges_lse): an fp32 tensor holds what earlier ones have, and the lse
// beside it is, as far as this call's softmax is concerned, the logit of one more key whose value is the O that is
// there. The first call of several finds nothing; the last one rounds (SumOfOParams).
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "device/attn/softmax.cuh"
#include "device/fwd/output_columns.cuh"
#include "device/ptx/registers.cuh"
#include "device/tile/accum.cuh"
#include "device/tile/constants.cuh"

namespace froghopper::fwd {

// The shares that a thread's two rows of the sum have in the result. A row that this call's keys add nothing to keeps
// what it has: what is multiplied by 0 might not be finite.
template <FwdVariant V>
struct SumOfO {
  using Output = tile::Accum<fwd_columns(V)>;

  const FwdParams& params;
  attn::Finish top, bottom;
  int half;

  __device__ __forceinline__ void leave(const tile::RowAddresses& sum, const tile::RowAddresses& rounded,
                                        Output& o) const {
    const SumOfOParams& its = params.sum_of_o;
    const int columns = columns_from<V>(params, half);
    if (its.rounds) {
      add(sum, columns, o);
      return store_o<V>(params, rounded, o, half);
    }
    if (!its.reads) return tile::store_rows_f32(sum, columns, o);
    const tile::RowAddresses changed = {sum.top, sum.bottom, sum.has_top && top.inverse != 0.f,
                                        sum.has_bottom && bottom.inverse != 0.f};
    tile::merge_rows_f32(changed, columns, top.sink_weight, bottom.sink_weight, o);
  }

 private:
  // Nothing is read of a row whose lse is -inf: earlier calls had no keys for it.
  static __device__ float share(const attn::Finish& row) {
    return row.inverse != 0.f ? row.sink_weight : row.lse == -tile::inf ? 0.f : 1.f;
  }

  // O becomes the merged O. As in merge_rows_f32(), four fragments are on their way at once.
  __device__ __forceinline__ void add(const tile::RowAddresses& sum, int columns, Output& o) const {
    constexpr int fragments = 4;
    const float share_top = share(top), share_bottom = share(bottom);
    const bool reads_top = sum.has_top && share_top != 0.f, reads_bottom = sum.has_bottom && share_bottom != 0.f;
#pragma unroll
    for (int i = 0; i < fwd_columns(V) / 2; i += 4 * fragments) {
      ptx::keep_order();
      float2 held_top[fragments], held_bottom[fragments];
#pragma unroll
      for (int fragment = 0; fragment < fragments; ++fragment) {
        const int col = tile::thread_col() + tile::col_of(i + 4 * fragment);
        held_top[fragment] = held_bottom[fragment] = {0.f, 0.f};
        if (reads_top && col < columns) held_top[fragment] = reinterpret_cast<const float2*>(sum.top)[col / 2];
        if (reads_bottom && col < columns)
          held_bottom[fragment] = reinterpret_cast<const float2*>(sum.bottom)[col / 2];
      }
#pragma unroll
      for (int fragment = 0; fragment < fragments; ++fragment) {
        float* x = o.x + i + 4 * fragment;
        x[0] = (top.inverse != 0.f ? x[0] : 0.f) + share_top * held_top[fragment].x;
        x[1] = (top.inverse != 0.f ? x[1] : 0.f) + share_top * held_top[fragment].y;
        x[2] = (bottom.inverse != 0.f ? x[2] : 0.f) + share_bottom * held_bottom[fragment].x;
        x[3] = (bottom.inverse != 0.f ? x[3] : 0.f) + share_bottom * held_bottom[fragment].y;
      }
    }
  }
};

}  // namespace froghopper::fwd
