// SPDX-License-Identifier: Apache-2.0
// device/fwd: iterations of variants that issue P V of a tile right after its own softmax, and not behind S of the next
// tile (fwd_immediate_pv); consumer.cuh has the others.
//
// P V follows the softmax of its tile. Only two other Consumers fill the time until then, so little stands between the
// last exponential and the issue of P V: V is awaited before the softmax, when it has long been there, and K is
// released behind the issue. Iteration t needs K and V of t and releases both: when it starts, the slowest warp has
// released both of t - 1, so in rings of two stages there is room for both of t.
#pragma once
#include "contract/tile_sequence.h"
#include "device/attn/softmax.cuh"
#include "device/fwd/consumer.cuh"
#include "device/fwd/promotion.cuh"
#include "device/fwd/work_item.cuh"
#include "device/ptx/registers.cuh"
#include "device/ptx/wgmma.cuh"
#include "device/tile/accum.cuh"

namespace froghopper::fwd {

// O += P V of a tile whose V is there. Then O is promoted, if that is due before P V of the next tile.
template <class Kernel>
__device__ __forceinline__ void Consumer<Kernel>::multiply_v_immediately(const WorkItem& item, int kv_tile,
                                                                         const Softmax& softmax, const Operand& p,
                                                                         Output& o) {
  mma.pv_of_fp8(o, p, /*accumulate=*/!o_begins);
  release_k(item, kv_tile);
  const int next = item.kv.next(kv_tile);
  const TileSequence<int> tiles = m_tile_of(item).tiles();
  o_begins = Promotion<V>::due(next, tiles);
  ptx::wgmma_wait<0>();
  mma.release_v();
  if (o_begins) [[unlikely]]
    promotion().promote(next, tiles, softmax, row_max_moved, o);
}

// The first product of an item.
template <class Kernel>
__device__ __forceinline__ void Consumer<Kernel>::begin_immediate_pv(const WorkItem& item, int kv_tile,
                                                                     const Softmax& softmax, const Operand& p,
                                                                     Output& o) {
  o_begins = true;
  mma.wait_v();
  multiply_v_immediately(item, kv_tile, softmax, p, o);
}

template <class Kernel>
template <bool Boundary>
__device__ __forceinline__ void Consumer<Kernel>::kv_iteration_immediate_pv(const WorkItem& item, int kv_tile,
                                                                            Softmax& softmax, Scores& s, Operand& p,
                                                                            Output& o) {
  mma.qk(s, q.tile(), m_tile_index, [&] { set_scales(softmax); });
  ptx::wgmma_wait<0>();
  mma.pass_turn();
  mma.wait_v();
  score_mod.apply(params, s, softmax, m_tile_of(item), kv_tile);
  if constexpr (Boundary) {
    m_tile_of(item).mask_out(s, kv_tile);
    const attn::RowPair rescale = softmax.exact_step(s, m_tile_of(item).template headroom<Softmax>(kv_tile));
    tile::round_to<T>(p, s);
    o.scale_rows(rescale.top, rescale.bottom);
    row_max_moved.all();
  } else {
    float limit = softmax.limit();
    ptx::force(limit);
    const auto guess = softmax.guess(s);
    const bool holds = softmax.holds(guess, limit);
    tile::round_to<T>(p, s);  // S is not kept with P, so a guess that does not hold is never corrected
    if (holds) [[likely]] {
      softmax.keep(guess);
    } else {
      const attn::RowPair rescale = recompute_scores(item, kv_tile, softmax, s);
      tile::round_to<T>(p, s);
      o.scale_rows(rescale.top, rescale.bottom);
      row_max_moved.all();
    }
  }
  multiply_v_immediately(item, kv_tile, softmax, p, o);
}

}  // namespace froghopper::fwd
