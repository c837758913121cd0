// SPDX-License-Identifier: Apache-2.0
// device/fwd: how a Consumer ends an item: which epilogue there is, and by way of which shared memory O leaves
// (fwd_way_of_o). Kernel is Forward of a variant.
#pragma once
#include "device/fwd/epilogue.cuh"
#include "device/fwd/exact.cuh"
#include "device/fwd/max_logit.cuh"

namespace froghopper::fwd {

template <class Kernel>
struct Finishing {
  static constexpr FwdVariant V = Kernel::variant;
  static constexpr bool by_q = Kernel::way_of_o == WayOfO::by_q, by_its_own = Kernel::way_of_o == WayOfO::by_its_own;

  const FwdParams& params;
  typename Kernel::Smem& smem;
  bool has_stored = false;  // by_q: so that the stage of Q which is not this item's holds an O

  // All tiles of an item are in. number, half: as the Consumer's; stage: of the item's Q.
  template <class Softmax>
  __device__ void run(const WorkItem& item, int number, int half, int stage, const Softmax& softmax, float unit,
                      typename Kernel::Output& o) {
    const Strip<V> its{params, item, number};
    if constexpr (V.max_logit) MaxLogit<V>{params, item, its}.raise(softmax.largest_in_base_2());
    if constexpr (V.split) return PartEpilogue<V>{params, item, its, unit, half}.run(softmax, o);
    const Epilogue<V> epilogue{params, item, its.rows().top, its.seq_q(), half};
    const attn::RowPair sinks = epilogue.sinks();
    if constexpr (fwd_joins(V)) return ExactEpilogue<V>{params, item, number, half}.run(softmax, sinks.top, o);
    const auto top = softmax.finish_top(sinks.top, unit), bottom = softmax.finish_bottom(sinks.bottom, unit);
    if constexpr (by_its_own) {
      epilogue.run_by_way_of(smem.o, number * strip, top, bottom, o);
    } else if constexpr (by_q) {
      has_stored = true;
      ptx::warpgroup_sync(threadIdx.x / warpgroup);  // all warps of it have had their last S
      epilogue.run_by_way_of(smem.q[stage], number * strip, top, bottom, o);
    } else {
      epilogue.run(top, bottom, o);
    }
  }

  // by_q, after the first turn of an item: gives back Q of the one before, in whose place O was. It has left long ago.
  // The Dispatcher fills that stage for the item after this one, which nobody waits for before.
  __device__ __forceinline__ void give_back_q(int stage_before) const {
    if (!by_q || !has_stored || threadIdx.x % 32 != 0) return;
    ptx::tma_store_wait_read();
    ptx::mbarrier_arrive(&smem.q_ring.empty[stage_before]);
  }

  // After the last item: shared memory is there until all of it has left.
  __device__ __forceinline__ void wait() const {
    if constexpr (by_q || by_its_own) ptx::tma_store_wait_read();
  }
};

}  // namespace froghopper::fwd
