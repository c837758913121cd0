// SPDX-License-Identifier: Apache-2.0
// device/bwd: the iterations of the consumers of by_keys.cuh, whose head says how they act together. Kernel is
// ByKeys of a variant.
#pragma once
#include "contract/bwd_variant.h"
#include "contract/types.h"
#include "device/bwd/columns.cuh"
#include "device/bwd/dq_sum.cuh"
#include "device/bwd/q_loops_of_two_ctas.cuh"
#include "device/bwd/score_mod.cuh"
#include "device/bwd/weights.cuh"
#include "device/ptx/barrier.cuh"
#include "device/ptx/cluster.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/shared_memory.cuh"
#include "device/ptx/wgmma.cuh"
#include "device/tile/accum.cuh"
#include "device/tile/mma.cuh"

namespace froghopper::bwd {

// ---- What both consumers do ----

// Share: what this one adds of grad_q; consumer: 0 or 1.
template <class Kernel, DqShare Share, int consumer>
struct ConsumerByKeys : ConsumerOfTwoCtas<Kernel> {
  using Base = ConsumerOfTwoCtas<Kernel>;
  using Base::V, Base::params, Base::smem, Base::iteration;
  using T = typename Kernel::T;

  DqSum<V, Share> dq_sum{params};

  // dq = dS of the iteration before x K, for the keys of both CTAs.
  __device__ __forceinline__ void multiply_dq(tile::Accum<Share.count>& dq) {
    const int stage = smem.ds_ring.stage(iteration - 1);
    smem.ds_ring.wait(iteration - 1);
    // The peer's dS has arrived, so the peer may overwrite what it was copied from.
    if (consumer == 0 && threadIdx.x % warpgroup == 0)
      ptx::mbarrier_arrive_at(&smem.ds_ring.empty[stage], Kernel::peer());
    typename Kernel::Ds& ds = smem.ds[stage];
    const int col = first_column<Share>();
    tile::mma_ab<T>(dq, ds.mine, 0, smem.k[0], col);
    tile::mma_ab_add<T>(dq, ds.peers, 0, smem.peer_k[0], consumer * panel_columns + col % panel_columns);
  }

  // The same after the last iteration, and added.
  __device__ __forceinline__ void last_dq() {
    tile::Accum<Share.count> dq;
    multiply_dq(dq);
    ptx::wgmma_wait<0>();
    smem.ds_ring.release(iteration - 1);
    dq_sum.add(dq, dq_sum.offset());
    this->announce_last();
  }
};

// ---- GradVConsumer ----

template <class Kernel>
struct GradVConsumerByKeys : ConsumerByKeys<Kernel, Kernel::dq_share_of_grad_v_consumer, 0> {
  using Base = ConsumerByKeys<Kernel, Kernel::dq_share_of_grad_v_consumer, 0>;
  using Base::V, Base::params, Base::smem, Base::iteration, Base::q, Base::dq_sum;
  using T = typename Kernel::T;
  using Scores = typename Kernel::Scores;
  using Operand = typename Kernel::Operand;
  using GradVSlice = typename Kernel::GradVSlice;
  static constexpr int slices = Kernel::slices;

  template <bool Masked, bool First>
  __device__ __forceinline__ void q_iteration(bool large, GradVSlice (&dv)[slices]) {
    Scores s;
    Operand p;
    const int stage = q.stage;

    q.wait(smem.q_ring);
    const EarlyRowValues<bwd_rows_float4_interleaved(V)> lse(smem.rows[stage].lse());
    tile::mma_abt<T>(s, smem.k[0], 0, smem.q[stage]);  // S^T
    const ScoreMod<V> score_mod = this->key_mask().score_mod(this->key(), smem.q_iterations[stage]);
    ptx::wgmma_wait<0>();
    if constexpr (Masked)
      Weigh<V, true>{params, score_mod, large,
                     this->key_mask().masked_out(this->key(), smem.q_iterations[stage].q_tile)}
          .template run<T>(s, p, lse);
    else
      Weigh<V, false>{params, score_mod}.template run<T>(s, p, lse);
    hand_over(s);
#pragma unroll
    for (int i = 0; i < slices; ++i) tile::mma_ab_add<T>(dv[i], p, this->slice_of_grad_o(i));
    if constexpr (!First) {
      typename decltype(dq_sum)::Accum dq;
      this->multiply_dq(dq);
      ptx::wgmma_wait<2>();  // grad_v has read grad_o, grad_q is in flight
      this->release_grad_o();
      ptx::wgmma_wait<0>();
      smem.ds_ring.release(iteration - 1);
      dq_sum.add(dq, dq_sum.offset());
    } else {
      ptx::wgmma_wait<0>();
      this->release_grad_o();
    }
    dq_sum.remember(smem.q_iterations[stage]);
    __syncwarp();
    q.release_and_advance(smem.q_ring);
    ++iteration;
  }

  // There is room when both consumers have multiplied dS of two iterations before and the peer has its copy of it.
  __device__ __forceinline__ void hand_over(const Scores& weights) {
    const int stage = smem.ds_ring.stage(iteration);
    smem.ds_ring.wait_room(iteration);
    smem.ds[stage].weights.store(weights);
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&smem.weights_full[stage]);
  }
};

// ---- GradKConsumer ----

template <class Kernel>
struct GradKConsumerByKeys : ConsumerByKeys<Kernel, Kernel::dq_share_of_grad_k_consumer, 1> {
  using Base = ConsumerByKeys<Kernel, Kernel::dq_share_of_grad_k_consumer, 1>;
  using Base::V, Base::params, Base::smem, Base::iteration, Base::q, Base::dq_sum;
  using T = typename Kernel::T;
  using Scores = typename Kernel::Scores;
  using Operand = typename Kernel::Operand;
  using GradK = typename Kernel::GradK;

  template <bool First>
  __device__ __forceinline__ void q_iteration(GradK& dk) {
    Scores dp, weights;
    Operand ds;
    const int stage = q.stage;

    q.wait(smem.q_ring);
    const EarlyRowValues<bwd_rows_float4_interleaved(V)> delta(smem.rows[stage].delta());
    this->multiply_dp(dp);
    load_weights(weights);
    ptx::wgmma_wait<0>();
    this->release_grad_o();
    to_ds(weights, dp, delta);
    tile::round_to<T>(ds, weights);
    tile::store_transposed(smem.ds[smem.ds_ring.stage(iteration)].mine, 0, 0, ds);
    release_peer();
    if constexpr (!First) {
      typename decltype(dq_sum)::Accum dq;
      this->multiply_dq(dq);
      tile::mma_ab_add<T>(dk, ds, smem.q[stage]);
      publish_ds();
      ptx::wgmma_wait<1>();  // grad_q is ready, grad_k in flight
      smem.ds_ring.release(iteration - 1);
      dq_sum.add(dq, dq_sum.offset());
    } else {
      tile::mma_ab_add<T>(dk, ds, smem.q[stage]);
      publish_ds();
    }
    dq_sum.remember(smem.q_iterations[stage]);
    ptx::wgmma_wait<0>();  // grad_k has read Q
    __syncwarp();
    q.release_and_advance(smem.q_ring);
    ++iteration;
  }

  // Afterwards all of this consumer's warps have them, and it may store dS where they lay.
  __device__ __forceinline__ void load_weights(Scores& weights) {
    const int stage = smem.ds_ring.stage(iteration);
    ptx::mbarrier_wait(&smem.weights_full[stage], smem.ds_ring.phase(iteration));
    smem.ds[stage].weights.load(weights);
    ptx::warpgroup_sync(1);
  }

  // There is room for the peer's dS: this warp's weights have arrived in registers, since what it has stored was
  // computed from them. That the peer's copy, which the async proxy writes, follows GradVConsumer's stores of these
  // weights needs no proxy fence here: stores that another warp has read are performed.
  __device__ __forceinline__ void release_peer() {
    if (threadIdx.x % 32 == 0)
      ptx::mbarrier_arrive_at(&smem.peer_empty[smem.ds_ring.stage(iteration)], Kernel::peer());
  }

  // dS is in place, for wgmma too; the peer gets a copy.
  __device__ __forceinline__ void publish_ds() {
    ptx::fence_proxy_async_shared();
    ptx::warpgroup_sync(1);
    if (threadIdx.x % warpgroup == 0) {
      const int stage = smem.ds_ring.stage(iteration);
      ptx::mbarrier_arrive_expect_tx(&smem.ds_ring.full[stage], Kernel::DsTile::bytes);
      ptx::mbarrier_wait(&smem.peer_empty[stage], smem.ds_ring.phase(iteration));
      ptx::copy_to_cta(&smem.ds[stage].peers, &smem.ds_ring.full[stage], Kernel::peer(), &smem.ds[stage].mine,
                       Kernel::DsTile::bytes);
    }
  }
};

}  // namespace froghopper::bwd
