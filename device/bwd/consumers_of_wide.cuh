// SPDX-License-Identifier: Apache-2.0
// device/bwd: the consumers of wide.cuh, whose banner says how they act together. Kernel is Wide of a variant.
#pragma once
#include "device/attn/element.cuh"
#include "device/bwd/dq_sum.cuh"
#include "device/bwd/epilogue.cuh"
#include "device/bwd/weights.cuh"
#include "device/ptx/barrier.cuh"
#include "device/ptx/cluster.cuh"
#include "device/ptx/launch.cuh"
#include "device/tile/mma.cuh"
#include "device/tile/ring.cuh"

namespace froghopper::bwd {

// ---- What both consumers do ----

// Its: the columns of grad_q that this one adds; number: 0 or 1.
template <class Kernel, Share Its, int number>
struct WideConsumer {
  static constexpr BwdVariant V = Kernel::variant;
  using T = typename Kernel::T;

  const BwdParams& params;
  typename Kernel::Smem& smem;
  ptx::u32 items = 0;  // taken so far: gives stage and phase of the item, K and V rings
  ptx::u32 now = 0;    // turns so far: gives those of the dS ring
  ptx::u32 walks = 0;  // ordered only: items with turns so far
  typename Kernel::QStage q;
  typename Kernel::DoStage grad_o;
  DqSum<V, Its> dq_sum{params};

  __device__ const WorkItem& item() const { return smem.items[smem.item_ring.stage(items)]; }
  __device__ int first_key() const { return Kernel::first_key(item()); }

  // Part i of this turn's grad_o, when it is there.
  __device__ __forceinline__ typename Kernel::DoTile& part_of_do(int i) {
    typename Kernel::DoStage at = grad_o;
    if (i > 0) at.advance();
    at.wait(smem.do_ring);
    return smem.grad_o[at.stage];
  }

  // All parts of this turn's grad_o have been read.
  __device__ __forceinline__ void give_back_do() {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < Kernel::parts; ++i) grad_o.release(smem.do_ring);
  }

  __device__ __forceinline__ void give_back_item() {
    __syncwarp();
    smem.item_ring.give_back(items);
    ++items;
  }

  // dq = dS of the turn before x K, for the keys of both CTAs.
  __device__ __forceinline__ void multiply_dq(tile::Accum<Its.count>& dq) {
    const int stage = smem.ds_ring.stage(now - 1);
    smem.ds_ring.wait(now - 1);
    // The peer's dS has arrived, so the peer may overwrite what it was copied from.
    if (number == 0 && threadIdx.x % warpgroup == 0)
      ptx::mbarrier_arrive_at(&smem.ds_ring.empty[stage], Kernel::peer());
    typename Kernel::Ds& ds = smem.ds[stage];
    const int col = first_column<Its>();
    tile::mma_ab<T>(dq, ds.mine, 0, smem.k[0], col);
    tile::mma_ab<T, /*More=*/true>(dq, ds.peers, 0, smem.peer_k[0], number * panel_columns + col % panel_columns);
  }

  // The same after the last turn, and added.
  __device__ __forceinline__ void last_dq() {
    tile::Accum<Its.count> dq;
    multiply_dq(dq);
    ptx::wgmma_wait<0>();
    smem.ds_ring.give_back(now - 1);
    dq_sum.add(dq, dq_sum.place());
    if constexpr (V.ordered) {
      __syncwarp();
      if (threadIdx.x % 32 == 0) smem.last_added.announce(walks);
      ++walks;
    }
  }
};

// ---- GradV ----
//
// The register tiles are locals of run() and arguments of every step, never fields: see device/fwd/forward.cuh.

template <class Kernel>
struct OfGradV : WideConsumer<Kernel, Kernel::share_of_grad_v, 0> {
  using Base = WideConsumer<Kernel, Kernel::share_of_grad_v, 0>;
  using Base::V, Base::params, Base::smem, Base::items, Base::now, Base::q, Base::dq_sum;
  using T = typename Kernel::T;
  using Scores = typename Kernel::Scores;
  using Weights = typename Kernel::Weights;
  using GradVPart = typename Kernel::GradVPart;
  static constexpr int parts = Kernel::parts, part_columns = Kernel::part_columns;

  __device__ void run() {
    GradVPart dv[parts];
    ptx::wait_for_earlier_kernels();
    while (true) {
      smem.item_ring.wait(items);
      if (this->item().none()) return;
#pragma unroll
      for (GradVPart& part : dv) part.clear();
      smem.k_ring.wait(items);
      smem.v_ring.wait(items);
      if (this->item().q_begin < this->item().q_end) walk(dv);
      smem.k_ring.give_back(items);
      smem.v_ring.give_back(items);
      const RowsOfKeys rows(params, this->item(), this->first_key(), V.ragged);
#pragma unroll
      for (int i = 0; i < parts; ++i) rows.template store<T>(params.grad_v, dv[i], i * part_columns);
      this->give_back_item();
    }
  }

  __device__ __forceinline__ void walk(GradVPart (&dv)[parts]) {
    Walk walk(params, this->item(), ptx::cta_in_cluster());
    turn</*Masked=*/true, /*First=*/true>(walk.far, dv);
    walk.count_first();
    do {
      for (; walk.masked > 0; --walk.masked) turn</*Masked=*/true, /*First=*/false>(walk.far, dv);
      for (; walk.clear > 0; --walk.clear) turn</*Masked=*/false, /*First=*/false>(walk.far, dv);
    } while (walk.next());
    this->last_dq();
  }

  template <bool Masked, bool First>
  __device__ __forceinline__ void turn(bool far, GradVPart (&dv)[parts]) {
    Scores s;
    Weights p;
    const int stage = q.stage;

    q.wait(smem.q_ring);
    const EarlyRowValues<bwd_rows_by_fours(V)> lse(smem.rows[stage].lse());
    tile::mma_abt<T>(s, smem.k[0], 0, smem.q[stage]);  // S^T
    const OnTop<V.alibi> on_top = sight().on_top(key(), smem.turns[stage]);
    ptx::wgmma_wait<0>();
    if constexpr (Masked)
      Weigh<V, true>{params, on_top, far, sight().hidden(key(), smem.turns[stage].q_tile)}.template run<T>(s, p, lse);
    else
      Weigh<V, false>{params, on_top}.template run<T>(s, p, lse);
    hand_over(s);
#pragma unroll
    for (int i = 0; i < parts; ++i) tile::mma_ab<T>(dv[i], p, this->part_of_do(i));
    if constexpr (!First) {
      typename decltype(dq_sum)::Accum dq;
      this->multiply_dq(dq);
      ptx::wgmma_wait<2>();  // grad_v has read grad_o, grad_q is in flight
      this->give_back_do();
      ptx::wgmma_wait<0>();
      smem.ds_ring.give_back(now - 1);
      dq_sum.add(dq, dq_sum.place());
    } else {
      ptx::wgmma_wait<0>();
      this->give_back_do();
    }
    dq_sum.remember(smem.turns[stage]);
    __syncwarp();
    q.release(smem.q_ring);
    ++now;
  }

  // There is room when both consumers have multiplied dS of two turns before and the peer has its copy of it.
  __device__ __forceinline__ void hand_over(const Scores& weights) {
    const int stage = smem.ds_ring.stage(now);
    smem.ds_ring.wait_room(now);
#pragma unroll
    for (int i = 0; i < V.tiles.q / 8; ++i)
      smem.ds[stage].weights[i][threadIdx.x % warpgroup] = {weights.x[4 * i], weights.x[4 * i + 1],
                                                            weights.x[4 * i + 2], weights.x[4 * i + 3]};
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&smem.weights_here[stage]);
  }

  __device__ __forceinline__ Sight<V> sight() const { return Sight<V>(params, this->item().rows); }
  __device__ __forceinline__ int key() const { return this->first_key() + tile::thread_row(); }  // of the top values
};

// ---- GradK ----

template <class Kernel>
struct OfGradK : WideConsumer<Kernel, Kernel::share_of_grad_k, 1> {
  using Base = WideConsumer<Kernel, Kernel::share_of_grad_k, 1>;
  using Base::V, Base::params, Base::smem, Base::items, Base::now, Base::q, Base::dq_sum;
  using T = typename Kernel::T;
  using Scores = typename Kernel::Scores;
  using Weights = typename Kernel::Weights;
  using GradK = typename Kernel::GradK;

  __device__ void run() {
    GradK dk;
    ptx::wait_for_earlier_kernels();
    while (true) {
      smem.item_ring.wait(items);
      if (this->item().none()) return;
      dk.clear();
      smem.k_ring.wait(items);
      smem.v_ring.wait(items);
      if (this->item().q_begin < this->item().q_end) walk(dk);
      smem.k_ring.give_back(items);
      smem.v_ring.give_back(items);
      dk.scale_rows(params.scale, params.scale);
      RowsOfKeys(params, this->item(), this->first_key(), V.ragged).template store<T>(params.grad_k, dk);
      this->give_back_item();
    }
  }

  __device__ __forceinline__ void walk(GradK& dk) {
    Walk walk(params, this->item(), ptx::cta_in_cluster());
    turn</*First=*/true>(dk);
    walk.count_first();
    do {
      for (int turns = walk.masked + walk.clear; turns > 0; --turns) turn</*First=*/false>(dk);
      walk.clear = 0;
    } while (walk.next());
    this->last_dq();
  }

  template <bool First>
  __device__ __forceinline__ void turn(GradK& dk) {
    Scores dp, weights;
    Weights ds;
    const int stage = q.stage;

    q.wait(smem.q_ring);
    const EarlyRowValues<bwd_rows_by_fours(V)> delta(smem.rows[stage].delta());
    multiply_dp(dp);
    take(weights);
    ptx::wgmma_wait<0>();
    this->give_back_do();
    to_ds(weights, dp, delta);
    tile::round_to<T>(ds, weights);
    tile::store_transposed(smem.ds[smem.ds_ring.stage(now)].mine, 0, 0, ds);
    invite_peer();
    if constexpr (!First) {
      typename decltype(dq_sum)::Accum dq;
      this->multiply_dq(dq);
      tile::mma_ab<T>(dk, ds, smem.q[stage]);
      publish_ds();
      ptx::wgmma_wait<1>();  // grad_q is ready, grad_k in flight
      smem.ds_ring.give_back(now - 1);
      dq_sum.add(dq, dq_sum.place());
    } else {
      tile::mma_ab<T>(dk, ds, smem.q[stage]);
      publish_ds();
    }
    dq_sum.remember(smem.turns[stage]);
    ptx::wgmma_wait<0>();  // grad_k has read Q
    __syncwarp();
    q.release(smem.q_ring);
    ++now;
  }

  __device__ __forceinline__ void multiply_dp(Scores& dp) {
    tile::mma_abt<T>(dp, smem.v[0], 0, this->part_of_do(0));
    if constexpr (Kernel::parts == 2) tile::mma_abt<T, /*Part=*/1>(dp, smem.v[0], 0, this->part_of_do(1));
  }

  // Afterwards all of this consumer's warps have them, and it may store dS where they lay.
  __device__ __forceinline__ void take(Scores& weights) {
    const int stage = smem.ds_ring.stage(now);
    ptx::mbarrier_wait(&smem.weights_here[stage], smem.ds_ring.phase(now));
#pragma unroll
    for (int i = 0; i < V.tiles.q / 8; ++i) {
      const float4 x = smem.ds[stage].weights[i][threadIdx.x % warpgroup];
      weights.x[4 * i] = x.x, weights.x[4 * i + 1] = x.y, weights.x[4 * i + 2] = x.z, weights.x[4 * i + 3] = x.w;
    }
    ptx::warpgroup_sync(1);
  }

  // There is room for the peer's dS: this warp's weights have arrived in registers, since what it has stored was
  // computed from them.
  __device__ __forceinline__ void invite_peer() {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive_at(&smem.peer_room[smem.ds_ring.stage(now)], Kernel::peer());
  }

  // dS is in place, for wgmma too; the peer gets a copy.
  __device__ __forceinline__ void publish_ds() {
    ptx::fence_proxy_async_shared();
    ptx::warpgroup_sync(1);
    if (threadIdx.x % warpgroup == 0) {
      const int stage = smem.ds_ring.stage(now);
      ptx::mbarrier_arrive_expect_tx(&smem.ds_ring.full[stage], Kernel::DsTile::bytes);
      ptx::mbarrier_wait(&smem.peer_room[stage], smem.ds_ring.phase(now));
      ptx::copy_to_cta(&smem.ds[stage].peers, &smem.ds_ring.full[stage], Kernel::peer(), &smem.ds[stage].mine,
                       Kernel::DsTile::bytes);
    }
  }
};

}  // namespace froghopper::bwd
