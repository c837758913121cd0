// SPDX-License-Identifier: Apache-2.0
// device/bwd: the iterations of the consumers of by_columns.cuh, whose head says how they act together. Kernel is
// ByColumns of a variant.
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
#include "device/ptx/types.cuh"
#include "device/ptx/wgmma.cuh"
#include "device/tile/accum.cuh"
#include "device/tile/mma.cuh"

namespace froghopper::bwd {

// ---- What both consumers do ----

// consumer: 0 or 1.
template <class Kernel, int consumer>
struct ConsumerByColumns : ConsumerOfTwoCtas<Kernel> {
  using Base = ConsumerOfTwoCtas<Kernel>;
  using Base::V, Base::params, Base::smem, Base::iteration;
  using T = typename Kernel::T;
  using Scores = typename Kernel::Scores;

  // Shares of grad_q: a panel, and half of what the panels of both leave.
  static constexpr int all = Kernel::columns.qk, rest = all / 2 - panel_columns;
  static constexpr DqShare panel = {consumer * panel_columns, panel_columns, all};
  static constexpr DqShare others = {2 * panel_columns + consumer * rest, rest, all};
  DqSum<V, panel> dq_sum{params};

  __device__ ptx::u32 parity() const { return iteration & 1; }

  // Adds to this CTA's half of a sum the other one's, which goes the same way there.
  __device__ __forceinline__ void complete(Scores& half, InRegisterOrder<Scores>& theirs, ptx::u64* full) {
    const ptx::u32 thread = theirs.thread();
    ptx::mbarrier_wait(&smem.peer_empty, parity() ^ 1);
    const ptx::u32 to = ptx::smem_addr_at(&theirs.x[0][thread], Kernel::peer()),
                   bar = ptx::smem_addr_at(full, Kernel::peer());
#pragma unroll
    for (int i = 0; i < theirs.fragments; ++i)
      ptx::st_async_v4_f32(to + i * sizeof theirs.x[0], bar, half.x[4 * i], half.x[4 * i + 1], half.x[4 * i + 2],
                           half.x[4 * i + 3]);
    if (thread == 0) ptx::mbarrier_arrive_expect_tx(full, sizeof theirs);
    ptx::mbarrier_wait(full, parity());
    theirs.add_to(half);
  }

  // dq = dS of the iteration before x K.
  template <DqShare Share>
  __device__ __forceinline__ void multiply_dq(tile::Accum<Share.count>& dq) {
    constexpr int col = Share.first;
    tile::mma_ab<T>(dq, smem.ds[smem.ds_ring.stage(iteration - 1)], 0, smem.k[0], col);
  }

  template <DqShare Share>
  __device__ __forceinline__ void add_dq(const tile::Accum<Share.count>& dq) {
    const DqSum<V, Share> sum{params, dq_sum.tile};
    sum.add(dq, sum.offset());
  }

  // The same after the last iteration, and added.
  __device__ __forceinline__ void last_dq() {
    tile::Accum<panel.count> dq;
    smem.ds_ring.wait(iteration - 1);
    multiply_dq<panel>(dq);
    ptx::wgmma_wait<0>();
    add_dq<panel>(dq);
    add_others();
    this->announce_last();
  }

  // The second share, at once: both in flight do not fit the registers.
  __device__ __forceinline__ void add_others() {
    tile::Accum<others.count> dq;
    multiply_dq<others>(dq);
    ptx::wgmma_wait<0>();
    smem.ds_ring.release(iteration - 1);
    add_dq<others>(dq);
  }
};

// ---- GradVConsumer ----

template <class Kernel>
struct GradVConsumerByColumns : ConsumerByColumns<Kernel, 0> {
  using Base = ConsumerByColumns<Kernel, 0>;
  using Base::V, Base::params, Base::smem, Base::iteration, Base::q, Base::dq_sum, Base::panel, Base::others;
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
    this->complete(s, smem.s, &smem.s_full);
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
      tile::Accum<panel.count> dq;
      smem.ds_ring.wait(iteration - 1);
      this->template multiply_dq<panel>(dq);
      ptx::wgmma_wait<1>();  // grad_v has read grad_o, grad_q is in flight
      this->release_grad_o();
      ptx::wgmma_wait<0>();
      this->template add_dq<panel>(dq);
      this->add_others();
    } else {
      ptx::wgmma_wait<0>();
      this->release_grad_o();
    }
    dq_sum.remember(smem.q_iterations[stage]);
    __syncwarp();
    q.release_and_advance(smem.q_ring);
    ++iteration;
  }

  // Where the other CTA's half of S lies, from which this thread has read what it writes over.
  __device__ __forceinline__ void hand_over(const Scores& weights) {
    smem.s.store(weights);
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&smem.weights_full);
  }
};

// ---- GradKConsumer ----

template <class Kernel>
struct GradKConsumerByColumns : ConsumerByColumns<Kernel, 1> {
  using Base = ConsumerByColumns<Kernel, 1>;
  using Base::V, Base::params, Base::smem, Base::iteration, Base::q, Base::dq_sum, Base::panel, Base::others;
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
    ptx::wgmma_wait<0>();
    this->release_grad_o();
    this->complete(dp, smem.dp, &smem.dp_full);
    load_weights(weights);
    to_ds(weights, dp, delta);
    tile::round_to<T>(ds, weights);
    smem.ds_ring.wait_room(iteration);
    tile::store_transposed(smem.ds[smem.ds_ring.stage(iteration)], 0, 0, ds);
    release_peer();
    if constexpr (!First) {
      tile::Accum<panel.count> dq;
      smem.ds_ring.wait(iteration - 1);
      this->template multiply_dq<panel>(dq);
      tile::mma_ab_add<T>(dk, ds, smem.q[stage]);
      publish_ds();
      ptx::wgmma_wait<1>();  // grad_q is ready, grad_k in flight
      this->template add_dq<panel>(dq);
      this->add_others();
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

  __device__ __forceinline__ void load_weights(Scores& weights) {
    ptx::mbarrier_wait(&smem.weights_full, this->parity());
    smem.s.load(weights);
  }

  // There is room for the peer's halves of the next iteration: what this warp has stored was computed from the half of
  // dP and the weights of this one.
  __device__ __forceinline__ void release_peer() {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive_at(&smem.peer_empty, Kernel::peer());
  }

  // dS is in place, for wgmma too.
  __device__ __forceinline__ void publish_ds() {
    ptx::fence_proxy_async_shared();
    ptx::warpgroup_sync(1);
    if (threadIdx.x % warpgroup == 0) smem.ds_ring.arrive_full(iteration);
  }
};

}  // namespace froghopper::bwd
