// SPDX-License-Identifier: Apache-2.0
// device/fwd: how the O of a finished M tile leaves: which epilogue a variant has, and through which shared memory O
// passes (fwd_o_store). Before, a Consumer has added what was promoted (promotion.cuh) and the means (means.cuh).
// Kernel is Forward of a variant.
#pragma once
#include "contract/fwd_smem.h"
#include "device/fwd/batch_invariant.cuh"
#include "device/fwd/final_epilogue.cuh"
#include "device/fwd/max_logit.cuh"
#include "device/fwd/part_epilogue.cuh"

namespace froghopper::fwd {

template <class Kernel>
struct Epilogue {
  static constexpr FwdVariant V = Kernel::variant;
  static constexpr bool through_q = Kernel::o_store == OStore::through_q,
                        through_own_smem = Kernel::o_store == OStore::through_own_smem;

  const FwdParams& params;
  typename Kernel::Smem& smem;
  bool has_stored = false;  // through_q: so that the stage of Q which is not this item's holds an O

  // All tiles of an item are in. number, half: as the Consumer's; stage: of the item's Q.
  template <class Softmax>
  __device__ void run(const WorkItem& item, int number, int half, int stage, const Softmax& softmax, float unit,
                      typename Kernel::Output& o) {
    const MTile<V> its{params, item, number};
    if constexpr (V.max_logit) MaxLogit<V>{params, item, its}.raise(softmax.largest_in_base_2());
    if constexpr (fwd_splits(V)) return PartEpilogue<V>{params, item, its, unit, half}.run(softmax, o);
    const FinalEpilogue<V> of_all{params, item, its.rows().top, its.seq_q(), half};
    const attn::RowPair sinks = of_all.sinks();
    if constexpr (fwd_joins(V))
      return BatchInvariantEpilogue<V>{params, item, number, half}.run(softmax, sinks.top, o);
    const auto top = softmax.finish_top(sinks.top, unit), bottom = softmax.finish_bottom(sinks.bottom, unit);
    if constexpr (through_own_smem) {
      of_all.run_through(smem.o, number * m_tile_rows, top, bottom, o);
    } else if constexpr (through_q) {
      has_stored = true;
      ptx::warpgroup_sync(threadIdx.x / warpgroup);  // all warps of it have had their last S
      of_all.run_through(smem.q[stage], number * m_tile_rows, top, bottom, o);
    } else {
      of_all.run(top, bottom, o);
    }
  }

  // through_q, after the first iteration of an item: waits until the copy engine has read O of the item before, which
  // is usually long ago, and gives back the stage of Q where it was. The Dispatcher needs that stage only for the item
  // after this one. That of the last item is never given back: the Dispatcher's last fill takes the other stage.
  __device__ __forceinline__ void give_back_q(int stage_before) const {
    if (!through_q || !has_stored || threadIdx.x % 32 != 0) return;
    ptx::tma_store_wait_read();
    ptx::mbarrier_arrive(&smem.q_ring.empty[stage_before]);
  }

  // After the last item: shared memory is there until all of it has left.
  __device__ __forceinline__ void wait() const {
    if constexpr (through_q || through_own_smem) ptx::tma_store_wait_read();
  }
};

}  // namespace froghopper::fwd
