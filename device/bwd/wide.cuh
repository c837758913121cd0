// SPDX-License-Identifier: Apache-2.0
// Backward attention on Hopper, more than 128 columns: as backward.cuh, but grad_k and grad_v of the same keys do not
// fit the registers of one consumer, so each consumer has one of them, and a cluster of two CTAs shares a kv tile.
//
// Work      One item is one (sequence, key head, kv tile of 128): each CTA has 64 of its keys. A turn is one q tile of 64
//           rows and one query head, as in backward.cuh, the same one in both CTAs. The grid is persistent.
//           Each CTA adds half of the columns of grad_q, for the keys of both: half as much goes to memory, which is
//           what bounds this kernel. For that it has dS of the other, its peer, and its own columns of the peer's K.
// Roles     Dispatcher, Loaders, Usher and Herald as in backward.cuh. The first CTA's Dispatcher draws the tickets and
//           tells the other's.                                                               24 or 40 registers
//           GradV      warpgroup 1: S^T, the weights, grad_v, the first share of grad_q     240 or 232
//           GradK      warpgroup 2: dP^T, dS, grad_k, the second share of grad_q            240 or 232
//           Both multiply 64 x 64 scores and 64 x dim gradients, so their work is equal; the weights go from one to the
//           other through shared memory in fp32, in the order of the registers, so that dS is as exact as in
//           backward.cuh.
// Order     as backward.cuh
// Overlap   GradV runs ahead: it computes the weights of the next turn while GradK computes dS of this one. Neither
//           shares a product with the other, so one's products run under the other's arithmetic. Both multiply grad_q
//           one turn late, when dS of both CTAs is there without waiting.
// Barriers  item_ring, next_wanted, k_ring, v_ring, q_ring, do_ring as backward.cuh; next_wanted is the first CTA's and
//           counts the Loaders of both. Q is given back by GradV after S and by GradK after grad_k; grad_o by GradK after
//           dP and by GradV after grad_v.
//           number_here     the first CTA's Dispatcher has sent the number of the next item
//           ds_ring         what a stage holds: weights of the turn, then dS of both CTAs.
//                           empty: one arrival per warp of both consumers, after its share of grad_q has retired, and
//                           one by the peer, when its copy of the dS before has arrived; GradV waits for it
//           weights_here    one arrival per GradV warp
//           peer_room       one arrival per GradK warp of the peer: its weights are read, so the copy may come
//                           full: GradK's dS is in place, and the bytes of the peer's have arrived
//           GradV waits for loads, for room for weights (grad_q of two turns before, here, and the peer's copy of that
//           dS), and for dS of the turn before. GradK waits for loads, for weights of this turn, for the peer to have
//           taken its own weights, and for dS of the turn before. So in turn t a CTA waits for what the peer does in
//           turn t with loads and dS of t - 2 alone, or in turns before t: nobody waits for himself.
// Shared    k | k of the peer's keys | v | q[2] | grad_o[2, or 3 halves] | ds[2] | lse, delta[2] | turns[2] | items[2] |
//           rings
#pragma once
#include "device/attn/element.cuh"
#include "device/bwd/dq_sum.cuh"
#include "device/bwd/epilogue.cuh"
#include "device/bwd/producers.cuh"
#include "device/bwd/weights.cuh"
#include "device/ptx/barrier.cuh"
#include "device/ptx/cluster.cuh"
#include "device/ptx/registers.cuh"
#include "device/tile/mma.cuh"
#include "device/tile/ring.cuh"

namespace froghopper::bwd {

template <BwdVariant V>
struct Wide {
  static constexpr BwdVariant variant = V;
  static_assert(why_invalid(V) == nullptr && bwd_is_wide(V));

  static constexpr int ctas = bwd_ctas(V), keys = bwd_keys_of_cta(V);
  static constexpr int parts = bwd_do_parts(V), part_columns = V.dims.v / parts;  // of grad_o and grad_v

  using T = typename attn::Element<V.dtype>::type;
  using QTile = tile::SharedTile<V.tiles.q, V.dims.qk>;
  using DoTile = tile::SharedTile<V.tiles.q, part_columns>;
  using KTile = tile::SharedTile<keys, V.dims.qk>;
  using PeerKTile = tile::SharedTile<keys, bwd_consumers * panel_columns>;  // a panel for each share of grad_q
  using VTile = tile::SharedTile<keys, V.dims.v>;
  using DsTile = tile::SharedTile<V.tiles.q, keys>;  // dS, not transposed
  using Scores = tile::Accum<V.tiles.q>;             // S^T or dP^T, 64 keys x 64 queries
  using Weights = tile::OperandA<V.tiles.q>;
  using GradK = tile::Accum<V.dims.qk>;
  using GradVPart = tile::Accum<part_columns>;

  static constexpr int threads = bwd_threads;
  static constexpr int warps = warpgroup / 32;  // of a consumer
  // 256 columns take every register there is: a gradient has 128, scores and dP 64, grad_q 32.
  static constexpr int producer_registers = V.dims.qk == 256 ? 24 : 40;
  static constexpr int consumer_registers = V.dims.qk == 256 ? 240 : 232;

  // Columns of grad_q. Of 256 each consumer of each CTA has a panel; of 192 each GradV has one and each GradK half of the
  // third.
  static constexpr bool all_panels = V.dims.qk == 256;
  static constexpr Share share_of_grad_v = {0, panel_columns, all_panels ? 2 * panel_columns : panel_columns};
  static constexpr Share share_of_grad_k = all_panels
                                               ? Share{panel_columns, panel_columns, 2 * panel_columns}
                                               : Share{2 * panel_columns, panel_columns / 2, panel_columns / 2};

  using ItemRing = tile::Ring<2>;
  using ItemStage = tile::Cursor<2>;
  using KvRing = tile::Ring<1>;
  using KvStage = tile::Cursor<1>;
  using QRing = tile::Ring<V.tiles.stages>;
  using QStage = tile::Cursor<V.tiles.stages>;
  using DoRing = tile::Ring<bwd_do_stages(V)>;
  using DoStage = tile::Cursor<bwd_do_stages(V)>;
  using DsRing = tile::Ring<bwd_ds_stages>;

  // dS of a turn. Before, the weights lie there on their way from GradV to GradK.
  union Ds {
    struct {
      DsTile mine, peers;
    };
    float4 weights[V.tiles.q * keys / 4 / warpgroup][warpgroup];  // [group of 4 accumulators][thread]
  };

  struct Smem {
    KTile k;
    PeerKTile peer_k;
    VTile v;
    QTile q[V.tiles.stages];
    DoTile grad_o[bwd_do_stages(V)];
    Ds ds[bwd_ds_stages];
    RowsOfTurn<V.tiles.q> rows[V.tiles.stages];
    Turn turns[V.tiles.stages];
    WorkItem items[2];
    ItemRing item_ring;
    KvRing k_ring, v_ring;
    QRing q_ring;
    DoRing do_ring;
    DsRing ds_ring;
    ptx::u64 weights_here[bwd_ds_stages];
    ptx::u64 peer_room[bwd_ds_stages];
    tile::Ring<4> add_ring, added_ring;  // ordered only
    ptx::u64 next_wanted, number_here;
    ptx::u32 number;  // of the next item
  };
  static constexpr int k_bytes = KTile::bytes + PeerKTile::bytes;
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
    // The other CTA may still write to this one's memory, or read from it.
    __syncwarp();
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }

  // ---- Two CTAs ----

  static __device__ ptx::u32 peer() { return ptx::cta_in_cluster() ^ 1; }
  static __device__ int first_key(const WorkItem& item, ptx::u32 cta = ptx::cta_in_cluster()) {
    return item.kv_tile * V.tiles.kv + static_cast<int>(cta) * keys;
  }
  template <class Place>
  static __device__ void load_peer_k(Smem& smem, const Place& place, const TmaMap& map, ptx::u64* full,
                                     const WorkItem& item) {
    const int row = first_key(item, peer());
    place.load_panel(smem.peer_k, 0, map, full, row, share_of_grad_v.column());
    place.load_panel(smem.peer_k, 1, map, full, row, share_of_grad_k.column() / panel_columns * panel_columns);
  }

  // ---- What both consumers do ----

  struct Consumer {
    const BwdParams& params;
    Smem& smem;
    ptx::u32 items = 0;  // taken so far: gives stage and phase of the item, K and V rings
    ptx::u32 now = 0;    // turns so far: gives those of the rings of dS and adds
    QStage q;
    DoStage grad_o;

    __device__ const WorkItem& item() const { return smem.items[smem.item_ring.stage(items)]; }
    __device__ int first_key() const { return Wide::first_key(item()); }

    // All parts of this turn's grad_o have been read.
    __device__ __forceinline__ void give_back_do() {
      __syncwarp();
#pragma unroll
      for (int i = 0; i < parts; ++i) grad_o.release(smem.do_ring);
    }

    __device__ __forceinline__ void give_back_item() {
      __syncwarp();
      smem.item_ring.give_back(items);
      ++items;
    }

    // dq = dS of the turn before x K, for the keys of both CTAs; the share of consumer `number`.
    template <Share Its, int number>
    __device__ __forceinline__ void multiply_dq(tile::Accum<Its.count>& dq) {
      const int stage = smem.ds_ring.stage(now - 1);
      smem.ds_ring.wait(now - 1);
      // The peer's dS has arrived, so the peer may overwrite what it was copied from.
      if (number == 0 && threadIdx.x % warpgroup == 0) ptx::mbarrier_arrive_at(&smem.ds_ring.empty[stage], peer());
      Ds& ds = smem.ds[stage];
      const int col = Its.column();
      tile::mma_ab<T>(dq, ds.mine, 0, smem.k, col);
      tile::mma_ab<T, /*More=*/true>(dq, ds.peers, 0, smem.peer_k, number * panel_columns + col % panel_columns);
    }

    // The same after the last turn, and added.
    template <Share Its, int number>
    __device__ __forceinline__ void last_dq(DqSum<V, Its>& sum) {
      tile::Accum<Its.count> dq;
      multiply_dq<Its, number>(dq);
      ptx::wgmma_wait<0>();
      smem.ds_ring.give_back(now - 1);
      add_dq(sum, dq);
    }

    // Of the turn before.
    template <Share Its>
    __device__ __forceinline__ void add_dq(DqSum<V, Its>& sum, const tile::Accum<Its.count>& dq) {
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
    using Consumer::items, Consumer::now, Consumer::params, Consumer::q, Consumer::grad_o, Consumer::smem;
    DqSum<V, share_of_grad_v> dq_sum{params};

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
      this->template last_dq<share_of_grad_v, 0>(dq_sum);
    }

    template <bool Masked, bool First>
    __device__ __forceinline__ void turn(bool far, GradVPart (&dv)[parts]) {
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
#pragma unroll
      for (int i = 0; i < parts; ++i) {
        DoStage at = grad_o;
        if (i > 0) at.advance();
        at.wait(smem.do_ring);
        tile::mma_ab<T>(dv[i], p, smem.grad_o[at.stage]);
      }
      if constexpr (!First) {
        typename decltype(dq_sum)::Accum dq;
        this->template multiply_dq<share_of_grad_v, 0>(dq);
        ptx::wgmma_wait<2>();  // grad_v has read grad_o, grad_q is in flight
        this->give_back_do();
        ptx::wgmma_wait<0>();
        smem.ds_ring.give_back(now - 1);
        this->add_dq(dq_sum, dq);
      } else {
        ptx::wgmma_wait<0>();
        this->give_back_do();
      }
      dq_sum.remember(smem.turns[stage]);
      __syncwarp();
      q.release(smem.q_ring);
      ++now;
    }

    // The other consumer, and with it this one, have read dS of two turns before.
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

    __device__ __forceinline__ Hidden hidden(const Turn& turn) const {
      return Sight<V>(params.mask, this->item().rows).hidden(this->first_key() + tile::thread_row(), turn.q_tile);
    }
  };

  // ---- GradK ----

  struct OfGradK : Consumer {
    using Consumer::items, Consumer::now, Consumer::params, Consumer::q, Consumer::grad_o, Consumer::smem;
    DqSum<V, share_of_grad_k> dq_sum{params};

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
      this->template last_dq<share_of_grad_k, 1>(dq_sum);
    }

    template <bool First>
    __device__ __forceinline__ void turn(GradK& dk) {
      Scores dp, weights;
      Weights ds;
      const int stage = q.stage;

      q.wait(smem.q_ring);
      const EarlyRowValues<V.tiles.q> delta(smem.rows[stage].delta());
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
        this->template multiply_dq<share_of_grad_k, 1>(dq);
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

    __device__ __forceinline__ void multiply_dp(Scores& dp) {
      grad_o.wait(smem.do_ring);
      tile::mma_abt<T>(dp, smem.v, 0, smem.grad_o[grad_o.stage]);
      if constexpr (parts == 2) {
        DoStage second = grad_o;
        second.advance();
        second.wait(smem.do_ring);
        tile::mma_abt<T, /*Part=*/1>(dp, smem.v, 0, smem.grad_o[second.stage]);
      }
    }

    // Where they lay, this consumer may store dS then.
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
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive_at(&smem.peer_room[smem.ds_ring.stage(now)], peer());
    }

    // dS is in place, for wgmma too; the peer gets a copy.
    __device__ __forceinline__ void publish_ds() {
      ptx::fence_proxy_async_shared();
      ptx::warpgroup_sync(1);
      if (threadIdx.x % warpgroup == 0) {
        const int stage = smem.ds_ring.stage(now);
        ptx::mbarrier_arrive_expect_tx(&smem.ds_ring.full[stage], DsTile::bytes);
        ptx::mbarrier_wait(&smem.peer_room[stage], smem.ds_ring.phase(now));
        ptx::copy_to_cta(&smem.ds[stage].peers, &smem.ds_ring.full[stage], peer(), &smem.ds[stage].mine,
                         DsTile::bytes);
      }
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
      for (ptx::u64& here : smem.weights_here) ptx::mbarrier_init(&here, warps);
      smem.ds_ring.init(2 * warps + 1);
      for (ptx::u64& room : smem.peer_room) ptx::mbarrier_init(&room, warps);
      ptx::mbarrier_init(&smem.number_here, 1);
      smem.add_ring.init(/*consumer_warps=*/1);
      smem.added_ring.init(1, 2 * warps);
      ptx::mbarrier_init(&smem.next_wanted, ctas);
      ptx::fence_mbarrier_init();
    }
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
};

}  // namespace froghopper::bwd
