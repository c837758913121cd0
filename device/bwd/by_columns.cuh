// SPDX-License-Identifier: Apache-2.0
// Backward attention on Hopper, head dims above 256: as by_keys.cuh, but not even one gradient of 64 keys fits a
// consumer, so the two CTAs of a cluster have the same keys and half of the columns of every tensor each. The consumers
// themselves are in consumers_by_columns.cuh.
//
// Work      One item is one (sequence, key head, kv tile of 64), one iteration a q tile of 64 rows and one query head,
//           the same in both CTAs. Half of the columns give half of the sum that a score is, and half of dP: the CTAs
//           send each other these halves in fp32, and then both have all of S and dP, bit for bit the same. From there
//           on neither CTA needs the other: each has the gradients of its columns.
// Roles     Dispatcher, QLoader, GradOLoader, DqOrderWaiter, DqOrderSignaller, GradVConsumer and GradKConsumer as in
//           by_keys.cuh. GradVConsumer has S^T, the weights, grad_v; GradKConsumer has dP^T, dS, grad_k. Of grad_q,
//           whose columns are 3 or 4 panels in a CTA, each adds half, in two steps: first a panel, then what is left.
//           Registers of a thread: 24 in warpgroup 0, 240 of a consumer.
// Order     as backward.cuh
// Overlap   GradVConsumer runs ahead, and grad_q is multiplied one iteration late, as in by_keys.cuh. While a consumer
//           waits for the other CTA's half, the other consumer multiplies.
// Launches  as backward.cuh
// Barriers  item_ring, fetch_next, number_full, k_ring, v_ring, q_ring, grad_o_ring, item_adds_issued,
//           adds_seen       as by_keys.cuh
//           ds_ring         full: GradKConsumer's dS is in place, one arrival behind the fences of its warps; empty:
//                           one per warp of both consumers, after its shares of grad_q have retired. The DqOrderWaiter
//                           as in by_keys.cuh.
//           s_full, dp_full full by the bytes of the other CTA's half; a thread that waits for them says how many
//           weights_full    one arrival per GradVConsumer warp: the weights are in the place of the half of S
//           peer_empty      one arrival per warp of the peer's GradKConsumer: it has read the weights and the half of
//                           dP of this iteration, so that the halves of the next one may be sent
//           In iteration t a consumer waits for loads, for the peer's half of iteration t, and, before it sends its
//           own, for the peer's GradKConsumer to have read what came in iteration t - 1; of this CTA that one needs
//           only what was sent in iteration t - 1. So the waits form no cycle. The half of S becomes the weights thread
//           by thread, and the next one comes when GradKConsumer has read them.
//           Named barrier 1: GradKConsumer's warps, when dS is in place.
// Shared    k | v | q[stages] | grad_o[stages; 3 of half the columns with two slices] | ds[2] | halves of S, then
//           weights | halves of dP | lse, delta[stages] | q_iterations[stages] | items[2] | rings
#pragma once
#include "contract/bwd_params.h"
#include "contract/bwd_variant.h"
#include "device/bwd/consumers_by_columns.cuh"
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

namespace froghopper::bwd {

template <BwdVariant V>
struct ByColumns : TwoCtas<V> {
  static constexpr BwdVariant variant = V;
  static_assert(why_invalid(V) == nullptr && bwd_by_columns(V));

  using Base = TwoCtas<V>;
  using Base::warps;
  using typename Base::GradORing, typename Base::GradOTile, typename Base::DsRing, typename Base::DsTile,
      typename Base::ItemRing, typename Base::KTile, typename Base::KvRing, typename Base::QRing,
      typename Base::QTile, typename Base::Scores, typename Base::VTile;
  // With 40 and 232 at head dim 384 producers do not spill, and it was 0.97 of the speed.
  static constexpr int producer_registers = 24, consumer_registers = 240;

  struct Smem {
    KTile k[1];  // arrays, for the Dispatcher loads into stages
    VTile v[1];
    QTile q[V.tiles.stages];
    GradOTile grad_o[bwd_grad_o_stages(V)];
    DsTile ds[bwd_ds_stages];
    InRegisterOrder<Scores> s, dp;  // the peer's halves; the weights in the place of s
    RowsOfQIteration<V.tiles.q> rows[V.tiles.stages];
    QIterationOf<V> q_iterations[V.tiles.stages];
    WorkItem items[2];
    ItemRing item_ring;
    KvRing k_ring, v_ring;
    QRing q_ring;
    GradORing grad_o_ring;
    DsRing ds_ring;
    ptx::u64 s_full, dp_full, weights_full, peer_empty;
    AddsSeen adds_seen;  // deterministic only, as the next
    ItemAddsIssued item_adds_issued;
    ptx::u64 fetch_next, number_full;
    ptx::u32 number;  // of the next item
  };
  static constexpr int k_bytes = KTile::bytes;
  static constexpr int smem_bytes = bwd_smem_bytes(V);
  static_assert(sizeof(Smem) == smem_bytes);

  // Forced in line, as in backward.cuh.
  static __device__ __forceinline__ void run(const BwdParams& params) {
    extern __shared__ __align__(1024) char smem_memory[];
    Smem& smem = *reinterpret_cast<Smem*>(smem_memory);
    init_barriers(smem);
    ptx::let_next_kernel_start();
    run_roles<ByColumns, GradVConsumerByColumns<ByColumns>, GradKConsumerByColumns<ByColumns>>(params, smem);
  }

  // ---- Two CTAs ----

  static __device__ ptx::u32 peer() { return ptx::cta_in_cluster() ^ 1; }
  static __device__ int m_tile_index_of_cta() { return 0; }
  static __device__ int first_key(const WorkItem& item) { return item.kv_tile * V.tiles.kv; }

  // ---- Before the roles diverge ----

  static __device__ void init_barriers(Smem& smem) {
    if (threadIdx.x == 0) {
      init_rings<ByColumns>(smem, 2 * warps);
      smem.ds_ring.init(V.deterministic ? 2 : 1, 2 * warps);
      ptx::mbarrier_init(&smem.s_full, 1);
      ptx::mbarrier_init(&smem.dp_full, 1);
      ptx::mbarrier_init(&smem.weights_full, warps);
      ptx::mbarrier_init(&smem.peer_empty, warps);
      ptx::mbarrier_init(&smem.number_full, 1);
      ptx::fence_mbarrier_init();
    }
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
};

}  // namespace froghopper::bwd
