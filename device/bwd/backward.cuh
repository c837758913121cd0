// SPDX-License-Identifier: Apache-2.0
// Backward attention on Hopper, head dims up to 128: grad_k, grad_v and the sums of grad_q, between delta.cuh and
// grad_q.cuh.
//
//   P = 2^(scale_log2 Q K^T - lse)      dP = grad_o V^T       dS = P (dP - delta)
//   grad_v = P^T grad_o                 grad_k = scale dS^T Q    grad_q = scale dS K, summed over kv tiles
//
// Work      One item is one (sequence, key head, kv tile of 128); a Consumer has one 64-row M tile of that tile. An
//           iteration is one q tile of one query head that reads the key head; grad_k and grad_v stay in registers over
//           all of them. The grid is persistent: every CTA takes items until none is left, device/attn/tickets.cuh.
//           Everything is computed transposed (keys along rows, queries along columns), so that P^T and dS^T leave the
//           accumulators as register operands; dS goes through shared memory only for grad_q, to which both M tiles
//           contribute.
// Roles     Dispatcher        warp 0; fetches items, publishes them, loads K and V.  warpgroup 0: 24 registers
//           QLoader           warp 1, one thread; loads Q with lse and delta (and the slope of alibi variants).
//           GradOLoader       warp 2, one thread; loads grad_o.
//           ProxyFencer       warp 3, one thread; makes dS visible to WGMMA. Where it pays: has_proxy_fencer.
//           In deterministic variants the QLoader loads grad_o too, and two threads keep the order of adds to grad_q:
//           DqOrderWaiter     warp 3; lets the Consumers add.
//           DqOrderSignaller  warp 2; says that they have.
//           Consumer          warpgroups 1 and 2; WGMMA, weights, gradients.            240 registers
//                             Its M tile is a template argument: it keeps every shared address out of the registers.
// Order     The iterations of an item come in one of three orders (Traversal, q_tile_sequence.cuh):
//             by_heads      all q tiles of one query head, from first to last, then those of the next head
//             rows_rising   q tile by q tile, from first to last, each for all query heads
//             rows_falling  likewise, from last to first
//           The latter two where query heads share keys under a causal mask, or where adds to grad_q have an order.
//           An iteration whose rows do not all attend to all keys of the M tile carries a mask; so does the first one
//           of an item, which has no other form. Where they attend to none, a Consumer may give zeros for dS and
//           compute nothing: Consumer::may_be_fully_masked says in which variants it does.
// Overlap   grad_q is one iteration late: an iteration multiplies the dS of the iteration before, which both Consumers
//           finished long ago, so that neither waits for the other. dP runs under the weights, grad_v under dS, grad_q
//           and grad_k under the exchange, grad_k under the adding of grad_q. The loads of the next item's Q and grad_o
//           run under the last iterations and the epilogue of this one.
//           With 64-row q tiles lse is read before S is issued, and delta before the weights are computed: two
//           64-column wgmmas take all of shared memory's bandwidth, and a plain load behind them waits for hundreds of
//           cycles. With 128 rows it would not fit.
//           Producers sleep while they wait: polling would take that bandwidth too.
//           The proxy fence compiles to MEMBAR.ALL.CTA, which also waits for the reductions of the iteration before. So
//           the ProxyFencer stands there, or a Consumer after grad_k is issued.
// Launches  delta, this kernel and grad_q overlap (device/ptx/launch.cuh). This one lets grad_q start at once, for that
//           waits before it reads anything. What it does itself before delta has ended: it finds items (lengths,
//           tickets, slopes), and it loads K, V and grad_o, none of which delta writes. With a gate delta does write
//           the grad_o that is loaded here: then the host launches this kernel without overlap (src/plan/backward.cpp).
// Barriers  (mbarriers; there are no named ones)
//           item_ring       full: the Dispatcher has written it; empty: one arrival per producer thread that the
//                           variant has (QLoader, GradOLoader, ProxyFencer, or if deterministic QLoader,
//                           DqOrderWaiter, DqOrderSignaller) and, when its item is over, Consumer warp
//           fetch_next       one arrival an item, by the QLoader near its end; the Dispatcher waits for it before it
//                           fetches the next ticket. As in device/fwd/forward.cuh, but after every item, also a short
//                           one.
//           k_ring, v_ring  full: one arrival of the loader, and the bytes that it announces, as in q_ring and
//                           grad_o_ring; empty: one arrival per Consumer warp, after its last grad_q. Of two stages the
//                           other one's K and V are loaded while this item is computed.
//           q_ring          full: bytes of Q, lse and delta; empty: one per Consumer warp, after grad_k has read Q and
//                           after the adds to grad_q of the iteration before are issued (the DqOrderSignaller relies on
//                           the second)
//           grad_o_ring     full: bytes of grad_o; empty: one per Consumer warp, after grad_v has read it
//           ds_stored       one arrival per Consumer warp: its rows of dS are stored, and the ProxyFencer may fence
//           ds_ring         full: with a ProxyFencer one arrival, by it, after its proxy fence. Without one, one per
//                           Consumer warp, after the warp's own fence; in deterministic variants one more, by the
//                           DqOrderWaiter, which means that grad_q of this iteration may be added. empty: one per
//                           Consumer warp, after its products of grad_q have read dS
//           q_ring, grad_o_ring, ds_stored and ds_ring advance once an iteration. Deterministic variants only
//           (dq_order.cuh):
//           item_adds_issued
//                           one arrival per Consumer warp: the last adds of an item are issued. For every other
//                           iteration n the DqOrderSignaller waits for the release of Q of n + 1 (q_ring, empty)
//                           instead.
//           adds_seen       one arrival by the DqOrderSignaller, when it has seen that the adds of iteration n are
//                           issued. The DqOrderWaiter waits for that before it lets iteration n + 2 pass. Otherwise a
//                           barrier of q_ring could complete two phases while the DqOrderSignaller waits for one of
//                           them, and the parity would be ambiguous.
//           The waits form no cycle. In iteration t a Consumer has released Q and grad_o of t - 1 and dS of t - 2, and
//           it waits for dS of t - 1, of both Consumers. The other Consumer, before it publishes its dS of t - 1, waits
//           for
//             - the loads of t - 1
//             - room for dS of t - 1: that both have multiplied dS of t - 3; the first Consumer did so in its t - 2
//             - dS of t - 2, of both; the first Consumer published its own in its t - 2
//           The ProxyFencer, between them, adds no other wait. A Consumer that waits for Q early (waits_q_early) also
//           waits in iteration t for Q of t + 1, which comes when the other Consumer has ended t - 1.
// Shared    k, v[1 or 2] | q[stages] | grad_o[stages] | ds[2] | lse, delta[stages] | q_iterations[stages] | items[2] |
//           rings; gradients go from registers to global memory
#pragma once
#include "contract/bwd_params.h"
#include "contract/bwd_variant.h"
#include "contract/fields.h"
#include "device/attn/element.cuh"
#include "device/bwd/consumer.cuh"
#include "device/bwd/dq_order.cuh"
#include "device/bwd/dq_sum.cuh"
#include "device/bwd/policy.cuh"
#include "device/bwd/producers.cuh"
#include "device/bwd/schedule.cuh"
#include "device/bwd/weights.cuh"
#include "device/ptx/launch.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/registers.cuh"
#include "device/ptx/types.cuh"
#include "device/tile/accum.cuh"
#include "device/tile/ring.cuh"
#include "device/tile/shared_tile.cuh"

namespace froghopper::bwd {

template <BwdVariant V>
struct Backward {
  static constexpr BwdVariant variant = V;
  static_assert(why_invalid(V) == nullptr && !bwd_has_two_ctas(V));

  using T = typename attn::Element<V.dtype>::type;
  using QTile = tile::SharedTile<V.tiles.q, V.dims.qk>;
  using GradOTile = tile::SharedTile<V.tiles.q, V.dims.v>;
  using KTile = tile::SharedTile<V.tiles.kv, V.dims.qk>;
  using VTile = tile::SharedTile<V.tiles.kv, V.dims.v>;
  using DsTile = tile::SharedTile<V.tiles.q, V.tiles.kv>;  // dS, not transposed
  using Scores = tile::Accum<V.tiles.q>;      // S^T of 64 keys and a q tile, then the weights, dS^T in place; dP^T
  using Operand = tile::OperandA<V.tiles.q>;  // P^T or dS^T rounded to T
  using GradK = tile::Accum<V.dims.qk>;       // of 64 keys
  using GradV = tile::Accum<V.dims.v>;
  using Policy = PolicyOf<V>;
  static constexpr bool has_proxy_fencer = Policy::has_proxy_fencer, sleeps = Policy::sleeps;

  static constexpr int threads = bwd_threads, ctas = bwd_ctas(V);
  static constexpr int k_bytes = KTile::bytes;
  static constexpr int consumer_warps = bwd_consumers * warpgroup / 32;
  static constexpr bool float4_interleaved = bwd_rows_float4_interleaved(V);
  using LseValues = Pick<Policy::lse_is_late, RowValues<float4_interleaved>, EarlyRowValues<float4_interleaved>>;
  using DeltaValues = Pick<Policy::delta_is_late, RowValues<float4_interleaved>, EarlyRowValues<float4_interleaved>>;
  static constexpr bool dq_is_transposed = dq_transposed(V.tiles.q, V.dims.qk);

  using ItemRing = tile::Ring<2>;
  using ItemStage = tile::Cursor<2, sleeps>;
  static constexpr int kv_stages = bwd_kv_stages(V);
  using KvRing = tile::Ring<kv_stages>;
  using KvStage = tile::Cursor<kv_stages, sleeps>;
  using QRing = tile::Ring<V.tiles.stages>;
  using QStage = tile::Cursor<V.tiles.stages, sleeps>;
  using GradOStage = QStage;
  using DsRing = tile::Ring<bwd_ds_stages>;

  struct Smem {
    KTile k[kv_stages];
    VTile v[kv_stages];
    QTile q[V.tiles.stages];
    GradOTile grad_o[V.tiles.stages];
    DsTile ds[bwd_ds_stages];
    RowsOfQIteration<V.tiles.q> rows[V.tiles.stages];
    QIterationOf<V> q_iterations[V.tiles.stages];
    WorkItem items[2];
    ItemRing item_ring;
    KvRing k_ring, v_ring;
    QRing q_ring, grad_o_ring;
    DsRing ds_ring;
    ptx::u64 ds_stored[bwd_ds_stages];
    AddsSeen adds_seen;  // deterministic only, as the next
    ItemAddsIssued item_adds_issued;
    ptx::u64 fetch_next;
  };
  static constexpr int smem_bytes = bwd_smem_bytes(V);
  static_assert(sizeof(Smem) == smem_bytes);

  // Forced in line: the compiler would make a function call of it, and ptxas serialises wgmma where products are in
  // flight over a call (its advisory C7510).
  static __device__ __forceinline__ void run(const BwdParams& params) {
    extern __shared__ __align__(1024) char smem_memory[];
    Smem& smem = *reinterpret_cast<Smem*>(smem_memory);
    init_barriers(smem);
    ptx::let_next_kernel_start();  // at once: grad_q.cuh waits before it reads anything

    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp < 4) {
      ptx::setmaxnreg_dec<24>();
      run_producers<Backward>(params, smem, warp);
    } else {
      ptx::setmaxnreg_inc<240>();
      if (warp < 8)
        Consumer<Backward, 0>{params, smem}.run();
      else
        Consumer<Backward, 1>{params, smem}.run();
    }
  }

  static __device__ int first_key(const WorkItem& item) { return item.kv_tile * V.tiles.kv; }

  // ---- Before the roles diverge ----

  static __device__ void init_barriers(Smem& smem) {
    if (threadIdx.x == 0) {
      init_rings<Backward>(smem, consumer_warps);
      smem.ds_ring.init(has_proxy_fencer ? 1 : consumer_warps + (V.deterministic ? 1 : 0), consumer_warps);
      for (ptx::u64& stored : smem.ds_stored) ptx::mbarrier_init(&stored, consumer_warps);
      ptx::fence_mbarrier_init();
    }
    __syncthreads();
  }
};

}  // namespace froghopper::bwd
