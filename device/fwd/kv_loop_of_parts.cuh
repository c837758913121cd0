// SPDX-License-Identifier: Apache-2.0
// device/fwd: the main loop of batch-invariant Consumers whose items have several parts, each of which is a softmax of
// its own. device/fwd/batch_invariant.cuh says why. Between two parts products do not overlap: the other Consumers' do.
// K and V are waited for and released in order, one stage at a time, and nothing is held meanwhile.
#pragma once
#include "contract/split.h"
#include "contract/tile_sequence.h"
#include "device/fwd/batch_invariant.cuh"
#include "device/fwd/consumer.cuh"
#include "device/fwd/work_item.cuh"
#include "device/ptx/wgmma.cuh"

namespace froghopper::fwd {

// All tiles of an item from kv_tile on, in descending key order. The tile visited before it, kv_tile + 1, which is the
// M tile's first one, has had first_kv_iteration(). The part with the lowest keys is left to the epilogue, as the whole
// item is in other variants.
template <class Kernel>
__device__ __forceinline__ void Consumer<Kernel>::kv_loop_of_parts(const WorkItem& item, int kv_tile,
                                                                   Softmax& softmax, Scores& s, Operand& p,
                                                                   Output& o) {
  const int first_tile = kv_tile + 1;  // of the M tile
  for (;;) {
    const int part = batch_invariant_part_at(kv_tile + 1);  // that of the tile before
    const TileSequence<int> tiles = batch_invariant_part_from(item.kv, kv_tile + 1).visited_from(kv_tile);
    kv_loop(item, tiles, softmax, s, p, o);
    if (item.kv.is_last(tiles.last())) return;
    softmax.complete();
    mma.pv(o, p);  // the last of this part
    ptx::wgmma_wait<0>();
    mma.release_v();
    // The Consumer's number: of two that share an M tile, consumer() is that of the first.
    const PartsSoFar<V> sums{params, consumer() + half};
    typename PartsSoFar<V>::PartPair rows{softmax.part_top(), softmax.part_bottom()};
    sums.template merge<8>(batch_invariant_part_at(first_tile) == part, rows, o);
    sums.keep(rows, o);
    o.clear();
    softmax.restart();
    kv_tile = item.kv.next(tiles.last());
    mma.qk(s, q.tile(), m_tile_index, [] {});
    ptx::wgmma_wait<0>();
    first_kv_iteration(item, kv_tile, softmax, s, p);
    kv_tile = item.kv.next(kv_tile);
  }
}

}  // namespace froghopper::fwd
