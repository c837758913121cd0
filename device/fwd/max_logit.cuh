// SPDX-License-Identifier: Apache-2.0
// device/fwd: maxlogit variants. The largest score of a sequence and head: each thread keeps that of its two rows
// during the softmax, and once an item is done a warp raises the number in memory, which began at -inf or holds what
// earlier calls left.
//
// A tile's scores are looked at where the softmax takes them: modified, masked by index, not yet overwritten. Rows past
// the end of a sequence and padding rows have scores too; they are left out by index at the end. A NaN is left out:
// `most` begins at -inf and is raised only by fmaxf, which gives the other operand where one is NaN, so it is never
// NaN when the warp compares it as an integer. Which CTA comes first does not matter, so the bits never differ.
#pragma once
#include "contract/fields.h"
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "contract/split.h"
#include "device/attn/mask.cuh"
#include "device/attn/softmax.cuh"
#include "device/fwd/rows.cuh"
#include "device/fwd/work_item.cuh"
#include "device/tile/accum.cuh"
#include "device/tile/constants.cuh"

namespace froghopper::fwd {

// A softmax that keeps the largest score. The exact step finds that of a tile anyway; the guarded one has no need of
// it, so it is looked for here.
template <class Softmax>
struct TrackingMax : Softmax {
  static constexpr bool one_scale = same<Softmax, attn::OnlineSoftmax>;  // for all tiles
  // It has one scale too, but never comes here: why_invalid() allows no max_logit where K and V were dequantised.
  static_assert(!same<Softmax, attn::OneScaleSoftmax>);

  // Of this thread's columns at least; in base 2 where tiles have scales of their own, else over the scale. It is that
  // of the whole item: restart() does not change it.
  attn::RowPair most = {-tile::inf, -tile::inf};

  template <class... Arguments>
  __device__ __forceinline__ explicit TrackingMax(Arguments... arguments) : Softmax{arguments...} {}

  template <int Cols>
  __device__ __forceinline__ attn::RowPair exact_step(tile::Accum<Cols>& s, attn::RowPair above = {0.f, 0.f}) {
    return Softmax::exact_step(s, above, [&](attn::RowPair of_tile) { offer(of_tile); });
  }
  template <int Cols>
  __device__ __forceinline__ attn::GuardResult guarded_step(tile::Accum<Cols>& s, attn::RowPair& rescale) {
    most = attn::largest_of(s, most);
    return Softmax::guarded_step(s, rescale);
  }
  template <int Cols>
  __device__ __forceinline__ auto guess(tile::Accum<Cols>& s) {
    // Scales are positive: the largest product has the largest score.
    const attn::RowPair of_tile = attn::largest_of(s, {-tile::inf, -tile::inf});
    offer({of_tile.top * attn::of_row(this->scale, false), of_tile.bottom * attn::of_row(this->scale, true)});
    return Softmax::guess(s);
  }

  // Smooth variants: what the mean of K adds to all scores of a row.
  __device__ __forceinline__ void shift_scores(attn::RowPair by) {
    most = {most.top + by.top, most.bottom + by.bottom};
    Softmax::shift_scores(by);
  }

  __device__ attn::RowPair largest_in_base_2() const {
    if constexpr (one_scale) return {most.top * this->scale_log2, most.bottom * this->scale_log2};
    return most;
  }

 private:
  __device__ __forceinline__ void offer(attn::RowPair x) {
    most = {fmaxf(most.top, x.top), fmaxf(most.bottom, x.bottom)};
  }
};

// Raises the values of an M tile's heads in memory, by all lanes of its warps: one for the 16 rows of a warp, or of
// PackGQA tiles one for each row. As integers, floats without a sign have the order of floats, and those with one the
// opposite; -inf, which is there at first, gives way to either.
template <FwdVariant V>
struct MaxLogit {
  const FwdParams& params;
  const WorkItem& item;
  MTile<V> m_tile;

  __device__ __forceinline__ void atomic_max(attn::RowPair most) const {
    if constexpr (V.pack_gqa) {
      atomic_max_of_row(tile::thread_row(), attn::quad_max(most.top));
      atomic_max_of_row(tile::thread_row() + 8, attn::quad_max(most.bottom));
    } else {
      const attn::Rows rows = m_tile.rows();
      const float top = rows.top < m_tile.seq_q() ? most.top : -tile::inf;
      const float bottom = rows.bottom < m_tile.seq_q() ? most.bottom : -tile::inf;
      const int largest = __reduce_max_sync(~0u, ordered(__float_as_int(fmaxf(top, bottom))));
      if (threadIdx.x % 32 == 0) atomic_max(item.head, __int_as_float(ordered(largest)));
    }
  }

 private:
  // A float's bits as an integer of its place in the order of floats; and back.
  static __device__ int ordered(int bits) { return bits < 0 ? bits ^ 0x7fffffff : bits; }

  __device__ void atomic_max_of_row(int row_in_m_tile, float most) const {
    const typename MTile<V>::Row row = m_tile.at(row_in_m_tile);
    if (row.exists && threadIdx.x % 4 == 0) atomic_max(row.head, most);
  }
  __device__ void atomic_max(int head, float in_base_2) const {
    if (in_base_2 == -tile::inf) return;
    const float score = in_base_2 * tile::ln2;
    float* const to = params.max_logit + static_cast<long long>(item.sequence) * params.heads_q + head;
    if (__float_as_int(score) >= 0)
      atomicMax(reinterpret_cast<int*>(to), __float_as_int(score));
    else
      atomicMin(reinterpret_cast<unsigned*>(to), __float_as_uint(score));
  }
};

}  // namespace froghopper::fwd
