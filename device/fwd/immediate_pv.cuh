// SPDX-License-Identifier: Apache-2.0
// device/fwd: iterations of Consumers that multiply at once (fwd_immediate_pv). Kernel is Forward of a variant and
// Consumer its own; forward.cuh has what an iteration is otherwise.
//
// P V follows the softmax of its tile. Only two other Consumers fill the time until then, so little stands between the
// last exponential and the issue of P V: V is awaited before the softmax, when it has long been there, and K is given
// back behind the issue. Iteration t takes K and V of t and gives both back: when it starts, the slowest warp has given
// back both of t - 1, so in rings of two stages there is room for both of t.
#pragma once
#include "device/fwd/promotion.cuh"
#include "device/fwd/rows.cuh"
#include "device/tile/mma.cuh"

namespace froghopper::fwd {

// O += P V of a tile whose V is there; the next tile may be one before which O is put aside.
template <class Kernel, class Consumer>
__device__ __forceinline__ void immediate_pv_of_tile(Consumer& its, const WorkItem& item, int kv_tile,
                                                     const typename Kernel::Softmax& softmax,
                                                     const typename Kernel::Weights& p, typename Kernel::Output& o) {
  using Promotion = Promotion<Kernel::variant>;
  tile::mma_abt<typename Kernel::T>(o, p, its.smem.v[its.v.stage], /*accumulate=*/!its.o_begins);
  its.release_k(item, kv_tile);
  const int next = kv_tile - 1, last = its.m_tile_of(item).last_tile();
  its.o_begins = Promotion::due(next, item.kv_begin, last);
  ptx::wgmma_wait<0>();
  its.v.release(its.smem.v_ring);
  if (its.o_begins) [[unlikely]]
    its.promotion().promote(next, last, softmax, its.moved, o);
}

// The first product of an item.
template <class Kernel, class Consumer>
__device__ __forceinline__ void begin_immediate_pv(Consumer& its, const WorkItem& item, int kv_tile,
                                                   const typename Kernel::Softmax& softmax,
                                                   const typename Kernel::Weights& p, typename Kernel::Output& o) {
  its.o_begins = true;
  its.v.wait(its.smem.v_ring);
  immediate_pv_of_tile<Kernel>(its, item, kv_tile, softmax, p, o);
}

template <class Kernel, bool Boundary, class Consumer>
__device__ __forceinline__ void kv_iteration_immediate_pv(Consumer& its, const WorkItem& item, int kv_tile,
                                                          typename Kernel::Softmax& softmax,
                                                          typename Kernel::Scores& s, typename Kernel::Weights& p,
                                                          typename Kernel::Output& o) {
  using T = typename Kernel::T;
  its.qk(s, its.number, &softmax);
  ptx::wgmma_wait<0>();
  its.mma_order.pass();
  its.v.wait(its.smem.v_ring);
  its.apply_score_mod(s, softmax, item, kv_tile);
  if constexpr (Boundary) {
    its.m_tile_of(item).mask_out(s, kv_tile);
    const attn::RowPair rescale =
        softmax.step(s, its.m_tile_of(item).template max_offset<typename Kernel::Softmax>(kv_tile));
    tile::round_to<T>(p, s);
    o.scale_rows(rescale.top, rescale.bottom);
    its.moved.all();
  } else {
    float limit = softmax.limit();
    ptx::computed_by_here(limit);
    const auto guess = softmax.guess(s);
    const bool holds = softmax.holds(guess, limit);
    tile::round_to<T>(p, s);  // S is not kept with P, so a guess that does not hold is never corrected
    if (holds) [[likely]] {
      softmax.keep(guess);
    } else {
      const attn::RowPair rescale = its.recompute_scores(item, kv_tile, softmax, s);
      tile::round_to<T>(p, s);
      o.scale_rows(rescale.top, rescale.bottom);
      its.moved.all();
    }
  }
  immediate_pv_of_tile<Kernel>(its, item, kv_tile, softmax, p, o);
}

}  // namespace froghopper::fwd
