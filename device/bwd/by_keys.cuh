// SPDX-License-Identifier: Apache-2.0
// Backward attention on Hopper, head dims above 128, up to 256: as backward.cuh, but grad_k and grad_v of the same keys
// do not fit the registers of one consumer, so each consumer has one of them, and a cluster of two CTAs shares a kv
// tile by keys. The consumers themselves are in consumers_by_keys.cuh.
//
// Work      One item is one (sequence, key head, kv tile of 128): each CTA has 64 of its keys. An iteration is one q
//           tile of 64 rows and one query head, as in backward.cuh, the same one in both CTAs. The grid is persistent.
//           Each CTA adds half of the columns of grad_q, for the keys of both: half as much goes to memory, which is
//           what bounds this kernel. For that it has dS of the other, its peer, and its own columns of the peer's K.
// Roles     Dispatcher, QLoader, GradOLoader, DqOrderWaiter and DqOrderSignaller as in backward.cuh. The first CTA's
//           Dispatcher fetches the tickets and tells the other's.
//           GradVConsumer  warpgroup 1: S^T, the weights, grad_v, the first share of grad_q
//           GradKConsumer  warpgroup 2: dP^T, dS, grad_k, the second share of grad_q
//           Registers of a thread: 24 in warpgroup 0 and 240 of a consumer at head dim 256, else 40 and 232.
//           Both multiply 64 x 64 scores and 64 x dim gradients, so their work is equal; the weights go from one to
//           the other through shared memory in fp32, in the order of the registers, so that dS is as exact as in
//           backward.cuh.
// Order     as backward.cuh, but no consumer looks for iterations whose rows attend to none of its keys
// Overlap   GradVConsumer runs ahead: it computes the weights of the next iteration while GradKConsumer computes dS of
//           this one. Neither shares a product with the other, so one's products run under the other's arithmetic. Both
//           multiply grad_q one iteration late, when dS of both CTAs is there without waiting.
// Launches  as backward.cuh
// Barriers  item_ring, fetch_next, k_ring, v_ring, q_ring, grad_o_ring as backward.cuh; fetch_next is the first CTA's
//           and counts the QLoaders of both. GradVConsumer and GradKConsumer both release Q at the end of their
//           iteration, after they have issued the adds to grad_q of the iteration before: in deterministic variants the
//           DqOrderSignaller takes that release as the sign that these adds are issued, so an earlier release of Q
//           would break the order. GradKConsumer releases grad_o after dP, GradVConsumer after grad_v.
//           number_full     the first CTA's Dispatcher has sent the number of the next item
//           ds_ring         a stage holds the weights of its iteration, then dS of both CTAs.
//                           full: GradKConsumer's dS is in place, one arrival behind the fences of its warps, and the
//                           bytes of the peer's have come; empty: one per warp of both consumers, after its share of
//                           grad_q has retired, and one by the peer's GradVConsumer: the copy of this dS has come there
//                           In deterministic variants the DqOrderWaiter arrives at full too, and there are
//                           item_adds_issued and adds_seen.
//           weights_full    one arrival per GradVConsumer warp: the weights are in the stage
//           peer_empty      one arrival per warp of the peer's GradKConsumer: it has read the weights that lay in the
//                           peer's stage, so this CTA may copy its dS there
//           GradVConsumer waits for loads, for an empty stage and for dS of the iteration before. GradKConsumer waits
//           for loads, for weights of this iteration, for the peer to have read its weights of this iteration, and for
//           dS of the iteration before. In iteration t, before GradKConsumer lets the peer copy (release_peer), only
//           one thing of the other CTA is waited for: that this CTA's dS of t - 2 has come to it. Before GradKConsumer
//           makes its own copy, it waits for two more: the other CTA's dS of t - 1, and that GradKConsumer there has
//           let it copy. So the waits form no cycle.
//           Named barrier 1: GradKConsumer's warps, before they store dS over the weights and before dS is copied.
// Shared    k | k of the peer's keys | v | q[stages] | grad_o[stages; 3 of half the columns with two slices] | ds[2] |
//           lse, delta[stages] | q_iterations[stages] | items[2] | rings
#pragma once
#include "contract/bwd_params.h"
#include "contract/bwd_variant.h"
#include "contract/shared_params.h"
#include "contract/types.h"
#include "device/bwd/columns.cuh"
#include "device/bwd/consumers_by_keys.cuh"
#include "device/bwd/dq_order.cuh"
#include "device/bwd/producers.cuh"
#include "device/bwd/q_loops_of_two_ctas.cuh"
#include "device/bwd/schedule.cuh"
#include "device/bwd/two_ctas.cuh"
#include "device/ptx/cluster.cuh"
#include "device/ptx/launch.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/types.cuh"
#include "device/tile/ring.cuh"
#include "device/tile/shared_tile.cuh"

namespace froghopper::bwd {

template <BwdVariant V>
struct ByKeys : TwoCtas<V> {
  static constexpr BwdVariant variant = V;
  static_assert(why_invalid(V) == nullptr && bwd_has_two_ctas(V) && !bwd_by_columns(V));

  using Base = TwoCtas<V>;
  using Base::keys, Base::warps;
  using typename Base::GradORing, typename Base::GradOTile, typename Base::DsRing, typename Base::DsTile,
      typename Base::ItemRing, typename Base::KTile, typename Base::KvRing, typename Base::QRing,
      typename Base::QTile, typename Base::Scores, typename Base::VTile;
  using PeerKTile = tile::SharedTile<keys, bwd_consumers * panel_columns>;  // a panel for each share of grad_q
  // Head dim 256 takes every register there is: a thread has 128 of a gradient, 64 of scores and dP, 32 of grad_q.
  static constexpr int producer_registers = V.dims.qk == 256 ? 24 : 40;
  static constexpr int consumer_registers = V.dims.qk == 256 ? 240 : 232;

  // Which columns of grad_q each consumer adds. At head dim 256 each consumer of each CTA has a panel; at 192
  // each GradVConsumer has one, and each GradKConsumer has half of the third.
  static constexpr bool whole_panels = V.dims.qk == 256;
  static constexpr DqShare dq_share_of_grad_v_consumer = {0, panel_columns,
                                                          whole_panels ? 2 * panel_columns : panel_columns};
  static constexpr DqShare dq_share_of_grad_k_consumer =
      whole_panels ? DqShare{panel_columns, panel_columns, 2 * panel_columns}
                   : DqShare{2 * panel_columns, panel_columns / 2, panel_columns / 2};

  // dS of an iteration. Before, the weights lie there on their way from GradVConsumer to GradKConsumer.
  union Ds {
    struct {
      DsTile mine, peers;
    };
    InRegisterOrder<Scores> weights;
  };

  struct Smem {
    KTile k[1];  // arrays, for the Dispatcher loads into stages
    PeerKTile peer_k[1];
    VTile v[1];
    QTile q[V.tiles.stages];
    GradOTile grad_o[bwd_grad_o_stages(V)];
    Ds ds[bwd_ds_stages];
    RowsOfQIteration<V.tiles.q> rows[V.tiles.stages];
    QIterationOf<V> q_iterations[V.tiles.stages];
    WorkItem items[2];
    ItemRing item_ring;
    KvRing k_ring, v_ring;
    QRing q_ring;
    GradORing grad_o_ring;
    DsRing ds_ring;
    ptx::u64 weights_full[bwd_ds_stages];
    ptx::u64 peer_empty[bwd_ds_stages];
    AddsSeen adds_seen;  // deterministic only, as the next
    ItemAddsIssued item_adds_issued;
    ptx::u64 fetch_next, number_full;
    ptx::u32 number;  // of the next item
  };
  static constexpr int k_bytes = KTile::bytes + PeerKTile::bytes;
  static constexpr int smem_bytes = bwd_smem_bytes(V);
  static_assert(sizeof(Smem) == smem_bytes);

  // Forced in line, as in backward.cuh.
  static __device__ __forceinline__ void run(const BwdParams& params) {
    extern __shared__ __align__(1024) char smem_memory[];
    Smem& smem = *reinterpret_cast<Smem*>(smem_memory);
    init_barriers(smem);
    ptx::let_next_kernel_start();
    run_roles<ByKeys, GradVConsumerByKeys<ByKeys>, GradKConsumerByKeys<ByKeys>>(params, smem);
  }

  // ---- Two CTAs ----

  static __device__ int m_tile_index_of_cta() { return static_cast<int>(ptx::cta_in_cluster()); }
  static __device__ ptx::u32 peer() { return ptx::cta_in_cluster() ^ 1; }
  static __device__ int first_key(const WorkItem& item, ptx::u32 cta = ptx::cta_in_cluster()) {
    return item.kv_tile * V.tiles.kv + static_cast<int>(cta) * keys;
  }
  template <class Rows>
  static __device__ void load_peer_k(PeerKTile& to, const Rows& rows, const TmaMap& map, ptx::u64* full,
                                     const WorkItem& item) {
    const int row = first_key(item, peer());
    rows.load_panel(to, 0, map, full, row, first_column<dq_share_of_grad_v_consumer>());
    rows.load_panel(to, 1, map, full, row,
                    first_column<dq_share_of_grad_k_consumer>() / panel_columns * panel_columns);
  }

  // ---- Before the roles diverge ----

  static __device__ void init_barriers(Smem& smem) {
    if (threadIdx.x == 0) {
      init_rings<ByKeys>(smem, 2 * warps);
      smem.ds_ring.init(V.deterministic ? 2 : 1, 2 * warps + 1);
      for (ptx::u64& full : smem.weights_full) ptx::mbarrier_init(&full, warps);
      for (ptx::u64& room : smem.peer_empty) ptx::mbarrier_init(&room, warps);
      ptx::mbarrier_init(&smem.number_full, 1);
      ptx::fence_mbarrier_init();
    }
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
};

}  // namespace froghopper::bwd
