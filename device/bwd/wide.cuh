// SPDX-License-Identifier: Apache-2.0
// Backward attention on Hopper, more than 128 columns: as backward.cuh, but grad_k and grad_v of the same keys do not
// fit the registers of one consumer, so each consumer has one of them.
//
// Work      One item is one (sequence, key head, kv tile of 64); a turn is one q tile of 64 rows and one query head, as
//           in backward.cuh. The grid is persistent.
// Roles     Dispatcher, Loaders as in backward.cuh.                                              24 or 40 registers
//           GradV      warpgroup 1: S^T, the weights, grad_v, the first pieces of grad_q     240 or 232
//           GradK      warpgroup 2: dP^T, dS, grad_k, the last pieces of grad_q              240 or 232
//           Both multiply 64 x 64 scores and 64 x dim gradients, so their work is equal; the weights go from one to the
//           other through shared memory in fp32, in the order of the registers, so that dS is as exact as in
//           backward.cuh.
// Order     as backward.cuh
// Overlap   GradV runs ahead: it computes the weights of the next turn while GradK computes dS of this one. Neither
//           shares a product with the other, so one's products run under the other's arithmetic. Both multiply grad_q
//           one turn late, when dS is there without waiting.
// Barriers  item_ring, next_wanted, k_ring, v_ring, q_ring, do_ring as backward.cuh. Q is given back by GradV after S
//           and by GradK after grad_k; grad_o by GradK after dP and by GradV after grad_v.
//           weight_ring     full: one arrival per GradV warp, its weights are written; empty: one per GradK warp, they
//                           are read. One stage; ordinary stores and loads, so no fence.
//           ds_ring         full: one arrival per GradK warp, behind its fence; empty: one per warp of both, after its
//                           pieces of grad_q have retired
//           GradV waits for loads, for room for weights (GradK has read those of the turn before, which needs loads
//           alone) and for dS of the turn before. GradK waits for loads, for weights of this turn, for room for dS
//           (GradV's grad_q of two turns before) and for its own dS. So the one that is behind never waits for the
//           other.
// Shared    k | v | q[2] | grad_o[2] | ds[2] | weights | lse, delta[2] | turns[2] | items[2] | rings
#pragma once
#include "device/attn/element.cuh"
#include "device/bwd/dq_sum.cuh"
#include "device/bwd/epilogue.cuh"
#include "device/bwd/producers.cuh"
#include "device/bwd/weights.cuh"
#include "device/ptx/registers.cuh"
#include "device/tile/mma.cuh"
#include "device/tile/ring.cuh"

namespace froghopper::bwd {

template <BwdVariant V>
struct Wide {
  static constexpr BwdVariant variant = V;
  static_assert(why_invalid(V) == nullptr && bwd_is_wide(V));

  using T = typename attn::Element<V.dtype>::type;
  using QTile = tile::SharedTile<V.tiles.q, V.dims.qk>;
  using DoTile = tile::SharedTile<V.tiles.q, V.dims.v>;
  using KTile = tile::SharedTile<V.tiles.kv, V.dims.qk>;
  using VTile = tile::SharedTile<V.tiles.kv, V.dims.v>;
  using DsTile = tile::SharedTile<V.tiles.q, V.tiles.kv>;  // dS, not transposed
  using Scores = tile::Accum<V.tiles.q>;                   // S^T or dP^T, 64 keys x 64 queries
  using Weights = tile::OperandA<V.tiles.q>;
  using GradK = tile::Accum<V.dims.qk>;
  using GradV = tile::Accum<V.dims.v>;

  static constexpr int threads = bwd_threads;
  static constexpr int warps = warpgroup / 32;  // of a consumer
  // 256 columns take every register there is: a gradient has 128, grad_q 64, scores 32.
  static constexpr int producer_registers = V.dims.qk == 256 ? 24 : 40;
  static constexpr int consumer_registers = V.dims.qk == 256 ? 240 : 232;

  // Pieces of grad_q, 64 columns each. GradV has as many as GradK, or one more.
  static constexpr int pieces = dq_pieces(V.tiles.q, V.dims.qk);
  static constexpr int pieces_of_grad_v = (pieces + 1) / 2;

  using ItemRing = tile::Ring<2>;
  using ItemStage = tile::Cursor<2>;
  using KvRing = tile::Ring<1>;
  using KvStage = tile::Cursor<1>;
  using QRing = tile::Ring<V.tiles.stages>;
  using QStage = tile::Cursor<V.tiles.stages>;
  using DsRing = tile::Ring<bwd_ds_stages>;

  struct Smem {
    KTile k;
    VTile v;
    QTile q[V.tiles.stages];
    DoTile grad_o[V.tiles.stages];
    DsTile ds[bwd_ds_stages];
    float4 weights[V.tiles.q * V.tiles.kv / 4 / warpgroup][warpgroup];  // [group of 4 accumulators][thread]
    RowsOfTurn<V.tiles.q> rows[V.tiles.stages];
    Turn turns[V.tiles.stages];
    WorkItem items[2];
    ItemRing item_ring;
    KvRing k_ring, v_ring;
    QRing q_ring, do_ring;
    tile::Ring<1> weight_ring;
    DsRing ds_ring;
    tile::Ring<4> add_ring, added_ring;  // ordered only
    ptx::u64 next_wanted;
  };
  static constexpr int smem_bytes = bwd_smem_bytes(V);
  static_assert(sizeof(Smem) == smem_bytes);

  static __device__ void run(const BwdParams& params) {
    extern __shared__ __align__(1024) char smem_memory[];
    Smem& smem = *reinterpret_cast<Smem*>(smem_memory);
    init_barriers(smem);
    ptx::let_next_kernel_start();

    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp < 4) {
      ptx::setmaxnreg_dec<producer_registers>();
      if (warp == 0) Dispatcher<Wide>{params, smem}.run();
      if (threadIdx.x == 32) QLoader<Wide>{params, smem}.run();
      if constexpr (V.ordered) {
        if (threadIdx.x == 64) herald<Wide>(params, smem);
        if (threadIdx.x == 96) usher<Wide>(params, smem);
      } else {
        if (threadIdx.x == 64) GradOLoader<Wide>{params, smem}.run();
      }
    } else {
      ptx::setmaxnreg_inc<consumer_registers>();
      if (warp < 8)
        OfGradV{params, smem}.run();
      else
        OfGradK{params, smem}.run();
    }
  }

  // ---- What both consumers do ----

  struct Consumer {
    const BwdParams& params;
    Smem& smem;
    ptx::u32 items = 0;  // taken so far: gives stage and phase of the item, K and V rings
    ptx::u32 now = 0;    // turns so far: gives those of the rings of weights, dS and adds
    QStage q;            // of Q and of grad_o

    __device__ const WorkItem& item() const { return smem.items[smem.item_ring.stage(items)]; }
    __device__ int first_key() const { return item().kv_tile * V.tiles.kv; }

    __device__ __forceinline__ void give_back_item() {
      __syncwarp();
      smem.item_ring.give_back(items);
      ++items;
    }

    // dq = dS of the turn before x K, some pieces of it.
    template <int First, int Count>
    __device__ __forceinline__ void multiply_dq(tile::Accum<Count * panel_columns>& dq) {
      smem.ds_ring.wait(now - 1);
      tile::mma_ab<T>(dq, smem.ds[smem.ds_ring.stage(now - 1)], 0, smem.k, First * panel_columns);
    }

    // The same after the last turn, and added.
    template <int First, int Count>
    __device__ __forceinline__ void last_dq(DqSum<V, First, Count>& sum) {
      tile::Accum<Count * panel_columns> dq;
      multiply_dq<First, Count>(dq);
      ptx::wgmma_wait<0>();
      smem.ds_ring.give_back(now - 1);
      add_dq(sum, dq);
    }

    // Of the turn before.
    template <int First, int Count>
    __device__ __forceinline__ void add_dq(DqSum<V, First, Count>& sum,
                                           const tile::Accum<Count * panel_columns>& dq) {
      if constexpr (V.ordered) smem.add_ring.wait(now - 1);
      sum.add(dq);
      if constexpr (V.ordered) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) smem.added_ring.announce(now - 1);
      }
    }
  };

  // ---- GradV ----
  //
  // The register tiles are locals of run() and arguments of every step, never fields: see device/fwd/forward.cuh.

  struct OfGradV : Consumer {
    using Consumer::items, Consumer::now, Consumer::params, Consumer::q, Consumer::smem;
    static constexpr int first_piece = 0, my_pieces = pieces_of_grad_v;
    DqSum<V, first_piece, my_pieces> dq_sum{params};

    __device__ void run() {
      GradV dv;
      ptx::wait_for_earlier_kernels();
      while (true) {
        smem.item_ring.wait(items);
        if (this->item().none()) return;
        dv.clear();
        smem.k_ring.wait(items);
        smem.v_ring.wait(items);
        if (this->item().q_begin < this->item().q_end) walk(dv);
        smem.k_ring.give_back(items);
        smem.v_ring.give_back(items);
        RowsOfKeys(params, this->item(), this->first_key(), V.ragged).template store<T>(params.grad_v, dv);
        this->give_back_item();
      }
    }

    __device__ __forceinline__ void walk(GradV& dv) {
      Walk walk(params, this->item(), 0);
      turn</*Masked=*/true, /*First=*/true>(walk.far, dv);
      walk.count_first();
      do {
        for (; walk.masked > 0; --walk.masked) turn</*Masked=*/true, /*First=*/false>(walk.far, dv);
        for (; walk.clear > 0; --walk.clear) turn</*Masked=*/false, /*First=*/false>(walk.far, dv);
      } while (walk.next());
      this->last_dq(dq_sum);
    }

    template <bool Masked, bool First>
    __device__ __forceinline__ void turn(bool far, GradV& dv) {
      Scores s;
      Weights p;
      const int stage = q.stage;

      q.wait(smem.q_ring);
      const EarlyRowValues<V.tiles.q> lse(smem.rows[stage].lse());
      tile::mma_abt<T>(s, smem.k, 0, smem.q[stage]);  // S^T
      ptx::wgmma_wait<0>();
      if constexpr (Masked)
        Weigh<V, true>{params, far, hidden(smem.turns[stage])}.template run<T>(s, p, lse);
      else
        Weigh<V, false>{params, false, {}}.template run<T>(s, p, lse);
      hand_over(s);
      q.wait(smem.do_ring);
      tile::mma_ab<T>(dv, p, smem.grad_o[stage]);
      if constexpr (!First) {
        typename decltype(dq_sum)::Accum dq;
        this->template multiply_dq<first_piece, my_pieces>(dq);
        ptx::wgmma_wait<0>();
        smem.ds_ring.give_back(now - 1);
        this->add_dq(dq_sum, dq);
      } else {
        ptx::wgmma_wait<0>();
      }
      q.give_back(smem.do_ring);
      dq_sum.remember(smem.turns[stage]);
      __syncwarp();
      q.release(smem.q_ring);
      ++now;
    }

    __device__ __forceinline__ void hand_over(const Scores& weights) {
      smem.weight_ring.wait_room(now);
#pragma unroll
      for (int i = 0; i < V.tiles.q / 8; ++i)
        smem.weights[i][threadIdx.x % warpgroup] = {weights.x[4 * i], weights.x[4 * i + 1], weights.x[4 * i + 2],
                                                    weights.x[4 * i + 3]};
      __syncwarp();
      if (threadIdx.x % 32 == 0) smem.weight_ring.announce(now);
    }

    __device__ __forceinline__ Hidden hidden(const Turn& turn) const {
      return Sight<V>(params.mask, this->item().rows).hidden(this->first_key() + tile::thread_row(), turn.q_tile);
    }
  };

  // ---- GradK ----

  struct OfGradK : Consumer {
    using Consumer::items, Consumer::now, Consumer::params, Consumer::q, Consumer::smem;
    static constexpr int first_piece = pieces_of_grad_v, my_pieces = pieces - pieces_of_grad_v;
    DqSum<V, first_piece, my_pieces> dq_sum{params};

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
      Walk walk(params, this->item(), 0);
      turn</*First=*/true>(dk);
      walk.count_first();
      do {
        for (int turns = walk.masked + walk.clear; turns > 0; --turns) turn</*First=*/false>(dk);
        walk.clear = 0;
      } while (walk.next());
      this->last_dq(dq_sum);
    }

    template <bool First>
    __device__ __forceinline__ void turn(GradK& dk) {
      Scores dp, weights;
      Weights ds;
      const int stage = q.stage;

      q.wait(smem.q_ring);
      const EarlyRowValues<V.tiles.q> delta(smem.rows[stage].delta());
      q.wait(smem.do_ring);
      tile::mma_abt<T>(dp, smem.v, 0, smem.grad_o[stage]);  // dP^T
      take(weights);
      ptx::wgmma_wait<0>();
      q.give_back(smem.do_ring);
      to_ds(weights, dp, delta);
      tile::round_to<T>(ds, weights);
      smem.ds_ring.wait_room(now);
      tile::store_transposed(smem.ds[smem.ds_ring.stage(now)], 0, 0, ds);
      if constexpr (!First) {
        typename decltype(dq_sum)::Accum dq;
        this->template multiply_dq<first_piece, my_pieces>(dq);
        tile::mma_ab<T>(dk, ds, smem.q[stage]);
        publish_ds();
        ptx::wgmma_wait<1>();  // grad_q is ready, grad_k in flight
        smem.ds_ring.give_back(now - 1);
        this->add_dq(dq_sum, dq);
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

    __device__ __forceinline__ void take(Scores& weights) {
      smem.weight_ring.wait(now);
#pragma unroll
      for (int i = 0; i < V.tiles.q / 8; ++i) {
        const float4 x = smem.weights[i][threadIdx.x % warpgroup];
        weights.x[4 * i] = x.x, weights.x[4 * i + 1] = x.y, weights.x[4 * i + 2] = x.z, weights.x[4 * i + 3] = x.w;
      }
      __syncwarp();
      smem.weight_ring.give_back(now);
    }

    // This warp's rows of dS are in place, for wgmma too.
    __device__ __forceinline__ void publish_ds() {
      ptx::fence_proxy_async_shared();
      __syncwarp();
      if (threadIdx.x % 32 == 0) smem.ds_ring.announce(now);
    }
  };

  // ---- Before the roles part ----

  static __device__ void init_barriers(Smem& smem) {
    if (threadIdx.x == 0) {
      smem.item_ring.init(2 * warps + (V.ordered ? 3 : 2));
      smem.k_ring.init(2 * warps);
      smem.v_ring.init(2 * warps);
      smem.q_ring.init(2 * warps);
      smem.do_ring.init(2 * warps);
      smem.weight_ring.init(warps, warps);
      smem.ds_ring.init(2 * warps, warps);
      smem.add_ring.init(/*consumer_warps=*/1);
      smem.added_ring.init(1, 2 * warps);
      ptx::mbarrier_init(&smem.next_wanted, 1);
      ptx::fence_mbarrier_init();
    }
    __syncthreads();
  }
};

}  // namespace froghopper::bwd
