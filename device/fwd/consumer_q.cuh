// SPDX-License-Identifier: Apache-2.0
// device/fwd: the stages of Q, of one Consumer. Only ConsumerQ waits for them and releases them. Kernel is
// Forward of a variant; the head of forward.cuh has the barriers.
//
// wait() waits for Q of the next item. The stage is read until the last S of the item; then it goes back to the
// Dispatcher, or O takes the place of Q there (OStore::through_q): O leaves while S of the next item, whose Q is in the
// other stage, is computed, and the stage goes back in the next item's first iteration.
#pragma once
#include "contract/fwd_smem.h"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/tma.cuh"

namespace froghopper::fwd {

template <class Kernel>
struct ConsumerQ {
  static constexpr bool o_leaves_here = Kernel::o_store == OStore::through_q;
  using Tile = typename Kernel::QTile;

  typename Kernel::Smem& smem;
  typename Kernel::QStage at;  // of the item whose S is computed
  bool has_o = false;          // the other stage holds O of the item before

  __device__ __forceinline__ void wait() { at.wait(smem.q_ring); }
  __device__ __forceinline__ Tile& tile() const { return smem.q[at.stage]; }

  // This warp has had the item's last S.
  __device__ __forceinline__ void release() {
    if (!o_leaves_here) at.release(smem.q_ring);
  }
  // From here on, tile() is the next item's, once wait() has returned.
  __device__ __forceinline__ void advance() { at.advance(); }

  // After advance(): the stage in which Q of the item before was, for O of that item. Whoever writes there makes sure
  // that all warps of the Consumer have had their last S of that item.
  __device__ __forceinline__ Tile& begin_o() {
    has_o = true;
    return smem.q[at.stage ^ 1];
  }
  // Waits until TMA has read that O, which is usually long ago, and releases its stage, in which the Dispatcher loads Q
  // of the item after this one. The stage of the last item is never released, and no warp waits for it: after items
  // 0 to N - 1 the Dispatcher's last fill is number N, which takes the stage of item N - 2, and this is released during
  // item N - 1.
  __device__ __forceinline__ void release_o() const {
    if (!o_leaves_here || !has_o || threadIdx.x % 32 != 0) return;
    ptx::tma_store_wait_read();
    ptx::mbarrier_arrive(&smem.q_ring.empty[at.stage ^ 1]);
  }
};

}  // namespace froghopper::fwd
