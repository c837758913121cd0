// SPDX-License-Identifier: Apache-2.0
// Backward attention on Hopper, up to 128 columns: grad_k, grad_v and the sums of grad_q, between delta.cuh and
// grad_q.cuh.
//
//   P = 2^(scale_log2 Q K^T - lse)      dP = grad_o V^T       dS = P (dP - delta)
//   grad_v = P^T grad_o                 grad_k = scale dS^T Q    grad_q = scale dS K, summed over kv tiles
//
// Work      One item is one (sequence, key head, kv tile of 128); one Consumer = one 64-row strip of that tile. A turn
//           is one q tile of one query head that reads the key head; grad_k and grad_v stay in registers over all of
//           them. The grid is persistent: every CTA takes items until none is left, device/attn/tickets.cuh.
//           Everything is computed transposed (keys along rows, queries along columns), so that P^T and dS^T leave the
//           accumulators as register operands; dS goes through shared memory only for grad_q, to which both strips
//           contribute.
// Roles     Dispatcher warp 0; takes items, publishes them, loads K and V.       warpgroup 0: 24 registers
//           Loader     warps 1 and 2, one thread each; loads Q with lse and delta (and the slope of alibi variants),
//                      loads grad_o.
//           Fencer     warp 3, one thread; makes dS visible to wgmma. Where it pays: has_fencer.
//           In det variants grad_o is loaded with Q, and two threads keep the order of adds to grad_q:
//           Usher      warp 3, lets the Consumers add.   Herald   warp 2, says that they have.
//           Consumer   warpgroups 1 and 2; wgmma, weights, gradients.            240 registers
//           The strip is a template argument: it keeps every shared address out of the registers.
// Order     q tiles from first to last, one query head after the other; where heads share keys under a causal mask, or
//           adds have an order, also tile by tile for all heads, or from last to first (Way, device/bwd/schedule.cuh).
//           A turn whose rows do not all see all keys of the strip carries a mask; so does the first one of an item,
//           which has no other form. Where they see none, its Consumer gives zeros for dS and computes nothing.
// Overlap   grad_q is one turn late: a turn multiplies the dS of the turn before, which both Consumers finished long
//           ago, so that neither waits for the other. dP runs under the weights, grad_v under dS, grad_q and grad_k
//           under the exchange, grad_k under the adding of grad_q. The loads of the next item's Q and grad_o run under
//           the last turns and the epilogue of this one.
//           With 64-row q tiles lse is read before S is issued, and delta before the weights are computed: two
//           64-column wgmmas take all of shared memory's bandwidth, and a plain load behind them waits for hundreds of
//           cycles. With 128 rows it would not fit.
//           Producers sleep while they wait: their questions would take that bandwidth too.
//           The proxy fence compiles to MEMBAR.ALL.CTA, which also waits for the reductions of the turn before. So
//           the Fencer stands there, or a Consumer after grad_k is issued.
// Barriers  item_ring       full: the Dispatcher has written it; empty: one per Loader, Fencer, Usher, Herald and, when
//                           its item is over, Consumer warp
//           next_wanted     one arrival an item, by Q's Loader near its end; the Dispatcher waits for it before it
//                           draws the next ticket. As in device/fwd/forward.cuh.
//           k_ring, v_ring  full: by bytes; empty: one arrival per Consumer warp, after its last grad_q. Of two stages
//                           the other one's K and V are loaded while this item is computed.
//           q_ring          full: bytes of Q, lse and delta; empty: one per Consumer warp, after grad_k has read Q
//           do_ring         full: bytes of grad_o; empty: one per Consumer warp, after grad_v has read it
//           ds_stored       one arrival per Consumer warp: its rows of dS are in place, and the Fencer may see to it
//           ds_ring         full: one arrival by the Fencer, behind its fence, or per Consumer warp, behind its own;
//                           empty: one per Consumer warp, after its share of grad_q has retired
//                           In det variants the Usher arrives at full too: this turn's grad_q may be added.
//           The last four advance once a turn. Nobody can wait for himself: a Consumer in turn t has given back Q and
//           grad_o of t - 1 and dS of t - 2, and it waits for dS of t - 1, which the other gives without waiting for
//           anything but loads and dS of t - 3; nor does the Fencer, between them. Where it asks ahead it also waits in
//           turn t for Q of t + 1, which comes when the other has ended t - 1. In det variants there are two more:
//           last_added      full: one arrival per Consumer warp, an item's last adds are issued. Of all other turns
//                           the Herald sees it when Q of the turn after is given back.
//           seen_ring       empty: the Herald has seen that a turn's adds are issued. The Usher waits for it before he
//                           lets those of two turns later, so that no stage of Q comes round while he still looks.
// Shared    k, v[1 or 2] | q[stages] | grad_o[stages] | ds[2] | lse, delta[stages] | items[2] | rings; gradients go
//           from registers to global memory
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
struct Backward {
  static constexpr BwdVariant variant = V;
  static_assert(why_invalid(V) == nullptr && !bwd_is_wide(V));

  using T = typename attn::Element<V.dtype>::type;
  using QTile = tile::SharedTile<V.tiles.q, V.dims.qk>;
  using DoTile = tile::SharedTile<V.tiles.q, V.dims.v>;
  using KTile = tile::SharedTile<V.tiles.kv, V.dims.qk>;
  using VTile = tile::SharedTile<V.tiles.kv, V.dims.v>;
  using DsTile = tile::SharedTile<V.tiles.q, V.tiles.kv>;  // dS, not transposed
  using Scores = tile::Accum<V.tiles.q>;      // S^T of 64 keys and a q tile, then P^T, dS^T in place; dP^T
  using Weights = tile::OperandA<V.tiles.q>;  // P^T or dS^T rounded to T
  using GradK = tile::Accum<V.dims.qk>;       // of 64 keys
  using GradV = tile::Accum<V.dims.v>;
  using DqPiece = tile::Accum<panel_columns>;  // this consumer's piece of grad_q

  static constexpr int threads = bwd_threads, ctas = bwd_ctas(V);
  static constexpr int k_bytes = KTile::bytes;
  static constexpr int consumer_warps = bwd_consumers * warpgroup / 32;
  // Beside softcap and these there is no register for lse and delta, and the cap hides the loads; beside slopes there
  // is none for delta. Where CTAs add in order, early delta was 0.90 to 1.00 of the speed: docs/experiments/0019.
  static constexpr bool numbers_are_late = V.tiles.q != strip || (V.softcap && (V.alibi || V.mask == Mask::chunk));
  static constexpr bool by_fours = bwd_rows_by_fours(V);
  using LseValues = Pick<numbers_are_late, RowValues<by_fours>, EarlyRowValues<by_fours>>;
  using DeltaValues = Pick<numbers_are_late || V.ordered || V.alibi, RowValues<by_fours>, EarlyRowValues<by_fours>>;
  static constexpr bool transposed = dq_transposed(V.tiles.q, V.dims.qk);

  // A Consumer that stands at the proxy fence itself waits there for a tenth of its time, at 128 columns. Where it does
  // so still, with 128 rows and a mask, a Fencer was slower at 512 keys, and no faster in the mean: docs/8-backward.md,
  // "The proxy fence".
  static constexpr bool has_fencer = !V.ordered && (V.tiles.q == strip || V.mask == Mask::none);

  static constexpr bool sleeps = !V.ordered;  // or who wakes late makes all others late
  using ItemRing = tile::Ring<2>;
  using ItemStage = tile::Cursor<2, sleeps>;
  static constexpr int kv_stages = bwd_kv_stages(V);
  using KvRing = tile::Ring<kv_stages>;
  using KvStage = tile::Cursor<kv_stages, sleeps>;
  using QRing = tile::Ring<V.tiles.stages>;
  using QStage = tile::Cursor<V.tiles.stages, sleeps>;
  using DoStage = QStage;
  using DsRing = tile::Ring<bwd_ds_stages>;

  // Where K and V lie for each of their products is 16 constants, of which most would be kept in registers and moved to
  // uniform ones in front of the products. Computed in every turn (here) they leave room for a thread's own two places,
  // which with 64 rows is up to a fifth of the speed. With 128 rows the registers do better: by 2 to 5 % under a mask.
  static constexpr bool places_of_threads = !V.ordered && V.tiles.q == strip;
  // Whether Q of the next turn is there is asked before grad_q is added; later the answer comes behind the adds. With
  // 64 rows the loads of lse would wait there instead, and it lost 3 to 5 %; with 128 and a mask it lost 1 %.
  static constexpr bool asks_ahead = !V.ordered && V.tiles.q != strip && V.mask == Mask::none;

  struct Smem {
    KTile k[kv_stages];
    VTile v[kv_stages];
    QTile q[V.tiles.stages];
    DoTile grad_o[V.tiles.stages];
    DsTile ds[bwd_ds_stages];
    RowsOfTurn<V.tiles.q> rows[V.tiles.stages];
    TurnOf<V> turns[V.tiles.stages];
    WorkItem items[2];
    ItemRing item_ring;
    KvRing k_ring, v_ring;
    QRing q_ring, do_ring;
    DsRing ds_ring;
    ptx::u64 ds_stored[bwd_ds_stages];
    tile::Ring<2> seen_ring, last_added;  // ordered only
    ptx::u64 next_wanted;
  };
  static constexpr int smem_bytes = bwd_smem_bytes(V);
  static_assert(sizeof(Smem) == smem_bytes);

  // The compiler calls what is as large unless told so, and of products in flight over a call it makes one after the
  // other (C7510).
  static __device__ __forceinline__ void run(const BwdParams& params) {
    extern __shared__ __align__(1024) char smem_memory[];
    Smem& smem = *reinterpret_cast<Smem*>(smem_memory);
    init_barriers(smem);
    ptx::let_next_kernel_start();

    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp < 4) {
      ptx::setmaxnreg_dec<24>();
      run_producers<Backward>(params, smem, warp);
    } else {
      ptx::setmaxnreg_inc<240>();
      if (warp < 8)
        Consumer<0>{params, smem}.run();
      else
        Consumer<1>{params, smem}.run();
    }
  }

  static __device__ int first_key(const WorkItem& item) { return item.kv_tile * V.tiles.kv; }

  // ---- Consumer ----
  //
  // The register tiles are locals of run() and arguments of every step, never fields: see device/fwd/forward.cuh.

  template <int number>
  struct Consumer {
    // A kv tile's q tiles are those that see a key of it. The first of them may see nothing of the second strip, and
    // where keys are forgotten the last of them nothing of the first one, if they have no more rows than that has keys.
    // With det it was 2 % slower.
    static constexpr bool may_see_nothing =
        V.tiles.q == strip && !V.ordered && (number == 1 ? V.mask != Mask::none : V.mask == Mask::window);

    const BwdParams& params;
    Smem& smem;
    unsigned items = 0;  // taken so far: gives stage and phase of the item, K and V rings
    ptx::u32 now = 0;    // turns so far: gives those of the dS ring
    ptx::u32 walks = 0;  // ordered only: items with turns so far
    int left = 0;        // turns of this item, with this one; asks_ahead only
    QStage q;            // of Q and of grad_o
    DqSum<V, Share{number * panel_columns, panel_columns}> dq_sum{params};
    // This thread's, in the first stage of dS and in a piece of grad_q.
    ptx::u32 ds_place = ptx::computed_here(tile::transposed_place(smem.ds[0], 0, (number * strip)));
    ptx::u32 dq_place = ptx::computed_here(dq_sum.place());

    __device__ void run() {
      Scores s, dp;
      GradK dk;
      GradV dv;
      ptx::wait_for_earlier_kernels();
      while (true) {
        smem.item_ring.wait(items);
        if (item().none()) return;
        dk.clear();
        dv.clear();
        smem.k_ring.wait(items);
        smem.v_ring.wait(items);
        if (item().q_begin < item().q_end) walk(s, dp, dk, dv);
        smem.k_ring.give_back(items);
        smem.v_ring.give_back(items);
        epilogue(dk, dv);
        __syncwarp();
        smem.item_ring.give_back(items);
        ++items;
      }
    }

    __device__ __forceinline__ KTile& k() const { return here(smem.k[kv_stage()]); }
    __device__ __forceinline__ VTile& v() const { return here(smem.v[kv_stage()]); }
    // The tile itself. Its place depends on the turn, for all that the compiler knows.
    template <class Tile>
    __device__ __forceinline__ Tile& here(Tile& tile) const {
      if constexpr (!places_of_threads) return tile;
      return *reinterpret_cast<Tile*>(reinterpret_cast<char*>(&tile) + (now & params.zero));
    }
    __device__ int kv_stage() const { return kv_stages == 1 ? 0 : ptx::computed_here(KvRing::stage(items)); }
    __device__ const WorkItem& item() const { return smem.items[smem.item_ring.stage(items)]; }
    __device__ int first_key() const { return Backward::first_key(item()) + number * strip; }

    __device__ __forceinline__ void walk(Scores& s, Scores& dp, GradK& dk, GradV& dv) {
      Walk walk(params, item(), number);
      if constexpr (asks_ahead) {
        left = walk.all_turns();
        q.wait(smem.q_ring);
      }
      masked_turn</*First=*/true>(walk.far, s, dp, dk, dv);
      walk.count_first();
      do {
        for (; walk.masked > 0; --walk.masked) masked_turn</*First=*/false>(walk.far, s, dp, dk, dv);
        for (; walk.clear > 0; --walk.clear) turn</*Masked=*/false, /*First=*/false>(walk.far, s, dp, dk, dv);
      } while (walk.next());
      last_dq();
    }

    template <bool First>
    __device__ __forceinline__ void masked_turn(bool far, Scores& s, Scores& dp, GradK& dk, GradV& dv) {
      if constexpr (may_see_nothing) {
        q.wait(smem.q_ring);
        if (sight().sees_nothing(smem.turns[q.stage].q_tile, first_key())) return turn_of_nothing<First>();
      }
      turn</*Masked=*/true, First>(far, s, dp, dk, dv);
    }

    // No row sees a key of this strip: its dS is zero, and the gradients of its keys get nothing.
    template <bool First>
    __device__ __forceinline__ void turn_of_nothing() {
      DqPiece dq;
      Weights ds;
      ds.clear();
      smem.ds_ring.wait_room(now);
      store_ds(ds);
      if constexpr (!First) multiply_dq(dq, now - 1);
      publish_ds();
      q.wait(smem.do_ring);
      q.give_back(smem.do_ring);
      if constexpr (!First) {
        ptx::wgmma_wait<0>();
        smem.ds_ring.give_back(now - 1);
        add_dq(dq);
      }
      dq_sum.remember(smem.turns[q.stage]);
      __syncwarp();
      q.release(smem.q_ring);
      ++now;
    }

    template <bool Masked, bool First>
    __device__ __forceinline__ void turn(bool far, Scores& s, Scores& dp, GradK& dk, GradV& dv) {
      DqPiece dq;
      Weights p, ds;
      const int stage = q.stage;

      if constexpr (!asks_ahead) q.wait(smem.q_ring);
      const LseValues lse(smem.rows[stage].lse());
      tile::mma_abt<T>(s, k(), number * strip, smem.q[stage]);  // S^T
      q.wait(smem.do_ring);
      tile::mma_abt<T>(dp, v(), number * strip, smem.grad_o[stage]);  // dP^T
      // Here what it reads comes while S is computed; before the products are issued there is no register for it.
      const OnTop<V.alibi> on_top = sight().on_top(key(), smem.turns[stage]);
      ptx::wgmma_wait<1>();  // S is ready, dP is not
      const DeltaValues delta(smem.rows[stage].delta());
      if constexpr (Masked)
        Weigh<V, true>{params, on_top, far, sight().hidden(key(), smem.turns[stage].q_tile)}.template run<T>(s, p,
                                                                                                             lse);
      else
        Weigh<V, false>{params, on_top}.template run<T>(s, p, lse);
      tile::mma_ab<T>(dv, p, smem.grad_o[stage]);
      ptx::wgmma_wait<1>();  // dP is ready, grad_v in flight
      to_ds(s, dp, delta);
      tile::round_to<T>(ds, s);
      smem.ds_ring.wait_room(now);
      store_ds(ds);
      if constexpr (!First) multiply_dq(dq, now - 1);
      tile::mma_ab<T>(dk, ds, smem.q[stage]);
      publish_ds();
      ptx::wgmma_wait<1>();  // grad_v and grad_q are ready, grad_k in flight
      q.give_back(smem.do_ring);
      if constexpr (!First) smem.ds_ring.give_back(now - 1);
      if constexpr (asks_ahead) await_next_q();
      if constexpr (!First) add_dq(dq);
      dq_sum.remember(smem.turns[stage]);
      ptx::wgmma_wait<0>();  // grad_k has read Q
      __syncwarp();
      q.release(smem.q_ring);
      ++now;
    }

    __device__ __forceinline__ void await_next_q() {
      if (--left == 0) return;
      QStage next = q;
      next.advance();
      next.wait(smem.q_ring);
    }

    __device__ __forceinline__ void last_dq() {
      DqPiece dq;
      multiply_dq(dq, now - 1);
      ptx::wgmma_wait<0>();
      smem.ds_ring.give_back(now - 1);
      add_dq(dq);
      if constexpr (V.ordered) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) smem.last_added.announce(walks);
        ++walks;
      }
    }

    __device__ __forceinline__ Sight<V> sight() const { return Sight<V>(params, item().rows); }
    __device__ __forceinline__ int key() const { return first_key() + tile::thread_row(); }  // of the top values

    __device__ __forceinline__ void store_ds(const Weights& ds) {
      const int stage = smem.ds_ring.stage(now);
      if constexpr (places_of_threads)
        tile::store_transposed_at<DsTile>(ds_place + stage * DsTile::bytes, ds);
      else
        tile::store_transposed(smem.ds[stage], 0, number * strip, ds);
      if constexpr (has_fencer) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&smem.ds_stored[stage]);
      }
    }

    // This warp's rows of dS are in place, for wgmma too.
    __device__ __forceinline__ void publish_ds() {
      if constexpr (!has_fencer) {
        ptx::fence_proxy_async_shared();
        __syncwarp();
        if (threadIdx.x % 32 == 0) smem.ds_ring.announce(now);
      }
    }

    __device__ __forceinline__ void multiply_dq(DqPiece& dq, unsigned of) {
      DsTile& ds = smem.ds[smem.ds_ring.stage(of)];
      smem.ds_ring.wait(of);
      if constexpr (transposed)
        tile::mma_atbt<T>(dq, k(), number * panel_columns, ds, 0);
      else
        tile::mma_ab<T>(dq, ds, number * strip, k(), 0);
    }

    // Of the turn before.
    __device__ __forceinline__ void add_dq(const DqPiece& dq) {
      // Of 96 columns, this warp's may be none.
      if (!transposed || number * strip + threadIdx.x / 32 % 4 * 16 < V.dims.qk)
        dq_sum.add(dq, places_of_threads ? dq_place : dq_sum.place());
    }

    __device__ void epilogue(GradK& dk, GradV& dv) {
      dk.scale_rows(params.scale, params.scale);
      const RowsOfKeys rows(params, item(), first_key(), V.ragged);
      rows.store<T>(params.grad_v, dv);
      rows.store<T>(params.grad_k, dk);
    }
  };

  // ---- Before the roles part ----

  static __device__ void init_barriers(Smem& smem) {
    if (threadIdx.x == 0) {
      init_rings<Backward>(smem, consumer_warps);
      smem.ds_ring.init(consumer_warps, has_fencer ? 1 : consumer_warps + (V.ordered ? 1 : 0));
      for (ptx::u64& stored : smem.ds_stored) ptx::mbarrier_init(&stored, consumer_warps);
      ptx::fence_mbarrier_init();
    }
    __syncthreads();
  }
};

}  // namespace froghopper::bwd
