// SPDX-License-Identifier: Apache-2.0
// device/fwd: how the O of a finished M tile leaves: which epilogue a variant has, and through which shared memory O
// passes (fwd_o_store). Where that is a stage of Q, consumer_q.cuh says which one, and when it goes back. Before the
// epilogue a Consumer has added what was promoted (promotion.cuh) and the means (means.cuh). Kernel is Forward of a
// variant. An operation on O itself, as the gate is one, has three places, for O leaves by one of them:
//   FinalEpilogue::normalise  final_epilogue.cuh  an item with all keys
//   PartEpilogue::run         part_epilogue.cuh   split-KV: a q tile that has one part
//   Combine::finish           combine.cuh         split-KV: the others
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_smem.h"
#include "contract/fwd_variant.h"
#include "contract/types.h"
#include "device/attn/softmax.cuh"
#include "device/fwd/batch_invariant.cuh"
#include "device/fwd/consumer_q.cuh"
#include "device/fwd/final_epilogue.cuh"
#include "device/fwd/max_logit.cuh"
#include "device/fwd/part_epilogue.cuh"
#include "device/fwd/rows.cuh"
#include "device/fwd/work_item.cuh"
#include "device/ptx/barrier.cuh"
#include "device/ptx/tma.cuh"

namespace froghopper::fwd {

template <class Kernel>
struct Epilogue {
  static constexpr FwdVariant V = Kernel::variant;
  static constexpr bool through_q = Kernel::o_store == OStore::through_q,
                        through_own_smem = Kernel::o_store == OStore::through_own_smem;

  const FwdParams& params;
  typename Kernel::Smem& smem;

  // After the last kv tile of an item. m_tile_index, half, q: the Consumer's; q has advanced.
  template <class Softmax>
  __device__ void run(const WorkItem& item, int m_tile_index, int half, ConsumerQ<Kernel>& q, const Softmax& softmax,
                      float o_scale, typename Kernel::Output& o) {
    const MTile<V> m_tile{params, item, m_tile_index};
    typename Kernel::QTile* const stage_for_o = through_q ? &q.begin_o() : nullptr;
    if constexpr (V.max_logit) MaxLogit<V>{params, item, m_tile}.atomic_max(softmax.largest_in_base_2());
    if constexpr (fwd_splits(V)) return PartEpilogue<V>{params, item, m_tile, o_scale, half}.run(softmax, o);
    const FinalEpilogue<V> epilogue{params, item, m_tile.rows().top, m_tile.seq_q(), half};
    const attn::RowPair sinks = epilogue.sinks();
    if constexpr (fwd_merges_parts(V))
      return BatchInvariantEpilogue<V>{params, item, m_tile_index, half}.run(softmax, sinks, o);
    const auto top = softmax.finish_top(sinks.top, o_scale), bottom = softmax.finish_bottom(sinks.bottom, o_scale);
    if constexpr (through_own_smem) {
      // By the Consumer, not by the M tile: Consumers swap M tiles, and each waits only for its own stores.
      const int consumer = threadIdx.x / warpgroup - Kernel::producer_warpgroups;
      epilogue.run_through(smem.o, consumer * m_tile_rows, top, bottom, o);
    } else if constexpr (through_q) {
      ptx::warpgroup_sync(threadIdx.x / warpgroup);  // all warps of it have had their last S
      epilogue.run_through(*stage_for_o, m_tile_index * m_tile_rows, top, bottom, o);
    } else {
      epilogue.run(top, bottom, o);
    }
  }

  // After the last item: shared memory is there until all of it has left.
  __device__ __forceinline__ void wait() const {
    if constexpr (through_q || through_own_smem) ptx::tma_store_wait_read();
  }
};

}  // namespace froghopper::fwd
