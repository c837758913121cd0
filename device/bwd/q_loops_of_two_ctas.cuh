// SPDX-License-Identifier: Apache-2.0
// device/bwd: what by_keys.cuh and by_columns.cuh have in common: who has which role, the consumers' items, and the way
// through an item's iterations. Kernel is ByKeys or ByColumns of a variant; the iterations themselves are in
// consumers_by_keys.cuh and in consumers_by_columns.cuh.
#pragma once
#include "contract/bwd_params.h"
#include "contract/bwd_variant.h"
#include "device/bwd/columns.cuh"
#include "device/bwd/epilogue.cuh"
#include "device/bwd/producers.cuh"
#include "device/bwd/q_loop.cuh"
#include "device/bwd/schedule.cuh"
#include "device/ptx/cluster.cuh"
#include "device/ptx/launch.cuh"
#include "device/ptx/registers.cuh"
#include "device/ptx/types.cuh"
#include "device/tile/accum.cuh"
#include "device/tile/mma.cuh"

namespace froghopper::bwd {

// Scores on their way from one warpgroup to another, or to the other CTA: a thread writes, and the thread of the same
// number reads.
template <class Scores>
struct InRegisterOrder {
  static constexpr int fragments = sizeof(Scores) / sizeof(float4);
  float4 x[fragments][warpgroup];

  static __device__ __forceinline__ ptx::u32 thread() { return threadIdx.x % warpgroup; }
  __device__ __forceinline__ void store(const Scores& s) {
#pragma unroll
    for (int i = 0; i < fragments; ++i) x[i][thread()] = {s.x[4 * i], s.x[4 * i + 1], s.x[4 * i + 2], s.x[4 * i + 3]};
  }
  __device__ __forceinline__ void load(Scores& s) const {
#pragma unroll
    for (int i = 0; i < fragments; ++i) {
      const float4 fragment = x[i][thread()];
      s.x[4 * i] = fragment.x, s.x[4 * i + 1] = fragment.y, s.x[4 * i + 2] = fragment.z, s.x[4 * i + 3] = fragment.w;
    }
  }
  __device__ __forceinline__ void add_to(Scores& s) const {
#pragma unroll
    for (int i = 0; i < fragments; ++i) {
      const float4 fragment = x[i][thread()];
      s.x[4 * i] += fragment.x, s.x[4 * i + 1] += fragment.y, s.x[4 * i + 2] += fragment.z,
          s.x[4 * i + 3] += fragment.w;
    }
  }
};

// ---- What both consumers do ----

template <class Kernel>
struct ConsumerOfTwoCtas {
  static constexpr BwdVariant V = Kernel::variant;

  const BwdParams& params;
  typename Kernel::Smem& smem;
  ptx::u32 items = 0;      // taken so far: gives stage and phase of the item, K and V rings
  ptx::u32 iteration = 0;  // iterations so far: gives those of the dS ring
  ptx::u32 q_loops = 0;    // deterministic only: items with iterations so far
  typename Kernel::QStage q;
  typename Kernel::GradOStage grad_o;

  __device__ const WorkItem& item() const { return smem.items[smem.item_ring.stage(items)]; }
  __device__ int first_key() const { return Kernel::first_key(item()); }
  __device__ __forceinline__ KeyMask<V> key_mask() const { return KeyMask<V>(params, item().lengths); }
  __device__ __forceinline__ int key() const { return first_key() + tile::thread_row(); }  // of the top values

  // Slice i of this iteration's grad_o, when it is there.
  __device__ __forceinline__ typename Kernel::GradOTile& slice_of_grad_o(int i) {
    typename Kernel::GradOStage at = grad_o;
    if (i > 0) at.advance();
    at.wait(smem.grad_o_ring);
    return smem.grad_o[at.stage];
  }

  // dP^T of this iteration.
  __device__ __forceinline__ void multiply_dp(typename Kernel::Scores& dp) {
    using T = typename Kernel::T;
    tile::mma_abt<T>(dp, smem.v[0], 0, slice_of_grad_o(0));
    if constexpr (Kernel::slices == 2) tile::mma_abt<T, /*Slice=*/1>(dp, smem.v[0], 0, slice_of_grad_o(1));
  }

  // All slices of this iteration's grad_o have been read.
  __device__ __forceinline__ void release_grad_o() {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < Kernel::slices; ++i) grad_o.release_and_advance(smem.grad_o_ring);
  }

  __device__ __forceinline__ void release_item() {
    __syncwarp();
    smem.item_ring.release(items);
    ++items;
  }

  // An item's last adds to grad_q are issued.
  __device__ __forceinline__ void announce_last() {
    if constexpr (V.deterministic) {
      __syncwarp();
      if (threadIdx.x % 32 == 0) smem.item_adds_issued.announce(q_loops);
      ++q_loops;
    }
  }
};

// ---- The items of GradVConsumer and of GradKConsumer ----
//
// QIterations: q_iteration() and last_dq() of one of them, which is a ConsumerOfTwoCtas. The register tiles are locals
// of run() and arguments of every step, never fields: see device/fwd/consumer.cuh.

template <class Kernel, class QIterations>
struct ItemsOfGradVConsumer : QIterations {
  using QIterations::params, QIterations::smem, QIterations::items;
  using GradVSlice = typename Kernel::GradVSlice;
  static constexpr int slices = Kernel::slices, slice_columns = Kernel::slice_columns;

  __device__ void run() {
    GradVSlice dv[slices];
    ptx::wait_for_earlier_kernels();
    while (true) {
      smem.item_ring.wait(items);
      if (this->item().is_end()) return;
#pragma unroll
      for (GradVSlice& slice : dv) slice.clear();
      smem.k_ring.wait(items);
      smem.v_ring.wait(items);
      if (!this->item().q.none()) q_loop(dv);
      smem.k_ring.release(items);
      smem.v_ring.release(items);
      const RowsOfKeys rows(params, this->item(), this->first_key(), QIterations::V.ragged);
      const int col = column_of_cta<QIterations::V>(slices * slice_columns);
#pragma unroll
      for (int i = 0; i < slices; ++i)
        rows.template store<typename Kernel::T>(params.grad_v, dv[i], col + i * slice_columns);
      this->release_item();
    }
  }

  __device__ __forceinline__ void q_loop(GradVSlice (&dv)[slices]) {
    QLoop q_loop(params, this->item(), Kernel::m_tile_index_of_cta());
    this->template q_iteration</*Masked=*/true, /*First=*/true>(q_loop.large, dv);
    q_loop.count_first();
    do {
      for (; q_loop.masked > 0; --q_loop.masked)
        this->template q_iteration</*Masked=*/true, /*First=*/false>(q_loop.large, dv);
      for (; q_loop.unmasked > 0; --q_loop.unmasked)
        this->template q_iteration</*Masked=*/false, /*First=*/false>(q_loop.large, dv);
    } while (q_loop.next());
    this->last_dq();
  }
};

template <class Kernel, class QIterations>
struct ItemsOfGradKConsumer : QIterations {
  using QIterations::params, QIterations::smem, QIterations::items;
  using GradK = typename Kernel::GradK;

  __device__ void run() {
    GradK dk;
    ptx::wait_for_earlier_kernels();
    while (true) {
      smem.item_ring.wait(items);
      if (this->item().is_end()) return;
      dk.clear();
      smem.k_ring.wait(items);
      smem.v_ring.wait(items);
      if (!this->item().q.none()) q_loop(dk);
      smem.k_ring.release(items);
      smem.v_ring.release(items);
      dk.scale_rows(params.scale, params.scale);
      RowsOfKeys(params, this->item(), this->first_key(), QIterations::V.ragged)
          .template store<typename Kernel::T>(params.grad_k, dk, column_of_cta<QIterations::V>(Kernel::columns.qk));
      this->release_item();
    }
  }

  __device__ __forceinline__ void q_loop(GradK& dk) {
    QLoop q_loop(params, this->item(), Kernel::m_tile_index_of_cta());
    this->template q_iteration</*First=*/true>(dk);
    q_loop.count_first();
    do {
      for (int q_iterations = q_loop.masked + q_loop.unmasked; q_iterations > 0; --q_iterations)
        this->template q_iteration</*First=*/false>(dk);
      q_loop.unmasked = 0;  // next() sets masked
    } while (q_loop.next());
    this->last_dq();
  }
};

// ---- The roles ----

template <class Kernel, class QIterationsOfGradV, class QIterationsOfGradK>
__device__ __forceinline__ void run_roles(const BwdParams& params, typename Kernel::Smem& smem) {
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (warp < 4) {
    ptx::setmaxnreg_dec<Kernel::producer_registers>();
    run_producers<Kernel>(params, smem, warp);
  } else {
    ptx::setmaxnreg_inc<Kernel::consumer_registers>();
    // Braces: one pair for each base class down to ConsumerOfTwoCtas, an aggregate.
    if (warp < 8)
      ItemsOfGradVConsumer<Kernel, QIterationsOfGradV>{{{{params, smem}}}}.run();
    else
      ItemsOfGradKConsumer<Kernel, QIterationsOfGradK>{{{{params, smem}}}}.run();
  }
  // The other CTA may still write to this one's memory, or read from it.
  __syncwarp();
  ptx::cluster_arrive();
  ptx::cluster_wait();
}

}  // namespace froghopper::bwd
