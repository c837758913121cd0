// SPDX-License-Identifier: Apache-2.0
// Backward attention on Hopper, head dims up to 128: grad_k, grad_v and the sums of grad_q, between delta.cuh and
// grad_q.cuh.
//
//   P = 2^(scale_log2 Q K^T - lse)      dP = grad_o V^T       dS = P (dP - delta)
//   grad_v = P^T grad_o                 grad_k = scale dS^T Q    grad_q = scale dS K, summed over kv tiles
//
// Work      One item is one (sequence, key head, kv tile of 128); one Consumer = one 64-row M tile of that tile. An
//           iteration is one q tile of one query head that reads the key head; grad_k and grad_v stay in registers over
//           all of them. The grid is persistent: every CTA takes items until none is left, device/attn/tickets.cuh.
//           Everything is computed transposed (keys along rows, queries along columns), so that P^T and dS^T leave the
//           accumulators as register operands; dS goes through shared memory only for grad_q, to which both M tiles
//           contribute.
// Roles     Dispatcher        warp 0; fetches items, publishes them, loads K and V.  warpgroup 0: 24 registers
//           Loader            warps 1 and 2, one thread each; loads Q with lse and delta (and the slope of alibi
//                             variants), loads grad_o.
//           ProxyFencer       warp 3, one thread; makes dS visible to WGMMA. Where it pays: has_proxy_fencer.
//           Deterministic variants load grad_o with Q, and two threads keep the order of the adds to grad_q:
//           DqOrderWaiter     warp 3; lets the Consumers add.
//           DqOrderSignaller  warp 2; says that they have.
//           Consumer          warpgroups 1 and 2; WGMMA, weights, gradients.            240 registers
//                             Its M tile is a template argument: it keeps every shared address out of the registers.
// Order     q tiles from first to last, one query head after the other; where heads share keys under a causal mask, or
//           adds have an order, also tile by tile for all heads, or from last to first (Traversal, schedule.cuh).
//           An iteration whose rows do not all attend to all keys of the M tile carries a mask; so does the first one
//           of an item, which has no other form. Where they attend to none, its Consumer gives zeros for dS and
//           computes nothing.
// Overlap   grad_q is one iteration late: an iteration multiplies the dS of the iteration before, which both Consumers
//           finished long ago, so that neither waits for the other. dP runs under the weights, grad_v under dS, grad_q
//           and grad_k under the exchange, grad_k under the adding of grad_q. The loads of the next item's Q and grad_o
//           run under the last iterations and the epilogue of this one.
//           With 64-row q tiles lse is read before S is issued, and delta before the weights are computed: two
//           64-column wgmmas take all of shared memory's bandwidth, and a plain load behind them waits for hundreds of
//           cycles. With 128 rows it would not fit.
//           Producers sleep while they wait: their questions would take that bandwidth too.
//           The proxy fence compiles to MEMBAR.ALL.CTA, which also waits for the reductions of the iteration before. So
//           the ProxyFencer stands there, or a Consumer after grad_k is issued.
// Barriers  item_ring       full: the Dispatcher has written it; empty: one arrival per Loader, ProxyFencer,
//                           DqOrderWaiter, DqOrderSignaller and, when its item is over, Consumer warp
//           next_wanted     one arrival an item, by Q's Loader near its end; the Dispatcher waits for it before it
//                           draws the next ticket. As in device/fwd/forward.cuh.
//           k_ring, v_ring  full: by bytes; empty: one arrival per Consumer warp, after its last grad_q. Of two stages
//                           the other one's K and V are loaded while this item is computed.
//           q_ring          full: bytes of Q, lse and delta; empty: one per Consumer warp, after grad_k has read Q
//           do_ring         full: bytes of grad_o; empty: one per Consumer warp, after grad_v has read it
//           ds_stored       one arrival per Consumer warp: its rows of dS are stored, and the ProxyFencer may fence
//           ds_ring         full: one arrival by the ProxyFencer, behind its fence, or per Consumer warp, behind its
//                           own, and in deterministic variants by the DqOrderWaiter: this iteration's grad_q may be
//                           added. empty: one per Consumer warp, after its share of grad_q has retired
//           The last four advance once an iteration. Nobody can wait for itself: a Consumer in iteration t has given
//           back Q and grad_o of t - 1 and dS of t - 2, and it waits for dS of t - 1, which the other gives without
//           waiting for anything but loads and dS of t - 3; nor does the ProxyFencer, between them. Where it asks ahead
//           it also waits in iteration t for Q of t + 1, which comes when the other has ended t - 1. Deterministic:
//           last_added      full: one arrival per Consumer warp, an item's last adds are issued. Of all other
//                           iterations the DqOrderSignaller knows it when Q of the iteration after is given back.
//           seen_ring       empty: the DqOrderSignaller has seen that an iteration's adds are issued. The DqOrderWaiter
//                           waits for it before it lets those of two iterations later, so that no stage of Q comes
//                           round while the DqOrderSignaller still looks.
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
  // Beside softcap and these there is no register for lse and delta, and the cap hides the loads; with slopes there
  // is none for delta. Where CTAs add in order, early delta was 0.90 to 1.00 of the speed: docs/experiments/0019.
  static constexpr bool row_values_are_late =
      V.tiles.q != m_tile_rows || (V.softcap && (V.alibi || V.mask == Mask::chunk));
  static constexpr bool float4_interleaved = bwd_rows_float4_interleaved(V);
  using LseValues = Pick<row_values_are_late, RowValues<float4_interleaved>, EarlyRowValues<float4_interleaved>>;
  using DeltaValues = Pick<row_values_are_late || V.deterministic || V.alibi, RowValues<float4_interleaved>,
                           EarlyRowValues<float4_interleaved>>;
  static constexpr bool transposed = dq_transposed(V.tiles.q, V.dims.qk);

  // A Consumer that stands at the proxy fence itself waits there for a tenth of its time, at 128 columns. Where it does
  // so still, with 128 rows and a mask, a ProxyFencer was slower at 512 keys, and no faster in the mean:
  // docs/8-backward.md, "The proxy fence".
  static constexpr bool has_proxy_fencer = !V.deterministic && (V.tiles.q == m_tile_rows || V.mask == Mask::none);

  static constexpr bool sleeps = !V.deterministic;  // or who wakes late makes all others late
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
  // uniform ones in front of the products. Computed in every iteration (here) they leave room for a thread's own two
  // places, which with 64 rows is up to a fifth of the speed. With 128 rows the registers do better: by 2 to 5 % under
  // a mask.
  static constexpr bool places_of_threads = !V.deterministic && V.tiles.q == m_tile_rows;
  // Whether Q of the next iteration is there is asked before grad_q is added; later the answer comes behind the adds.
  // With 64 rows the loads of lse would wait there instead, and it lost 3 to 5 %; with 128 and a mask it lost 1 %.
  static constexpr bool asks_ahead = !V.deterministic && V.tiles.q != m_tile_rows && V.mask == Mask::none;

  struct Smem {
    KTile k[kv_stages];
    VTile v[kv_stages];
    QTile q[V.tiles.stages];
    DoTile grad_o[V.tiles.stages];
    DsTile ds[bwd_ds_stages];
    RowsOfQIteration<V.tiles.q> rows[V.tiles.stages];
    QIterationOf<V> q_iterations[V.tiles.stages];
    WorkItem items[2];
    ItemRing item_ring;
    KvRing k_ring, v_ring;
    QRing q_ring, do_ring;
    DsRing ds_ring;
    ptx::u64 ds_stored[bwd_ds_stages];
    tile::Ring<2> seen_ring, last_added;  // deterministic only
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
    // A kv tile's q tiles are those that attend to a key of it. The first of them may see nothing of the second M tile,
    // and where keys are forgotten the last of them nothing of the first one, if they have no more rows than that has
    // keys. With det it was 2 % slower.
    static constexpr bool may_be_fully_masked =
        V.tiles.q == m_tile_rows && !V.deterministic && (number == 1 ? V.mask != Mask::none : V.mask == Mask::window);

    const BwdParams& params;
    Smem& smem;
    unsigned items = 0;    // taken so far: gives stage and phase of the item, K and V rings
    ptx::u32 now = 0;      // iterations so far: gives those of the dS ring
    ptx::u32 q_loops = 0;  // deterministic only: items with iterations so far
    int left = 0;          // iterations of this item, with this one; asks_ahead only
    QStage q;              // of Q and of grad_o
    DqSum<V, Share{number * panel_columns, panel_columns}> dq_sum{params};
    // This thread's, in the first stage of dS and in a piece of grad_q.
    ptx::u32 ds_place = ptx::computed_here(tile::transposed_place(smem.ds[0], 0, (number * m_tile_rows)));
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
        if (item().q_begin < item().q_end) q_loop(s, dp, dk, dv);
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
    // The tile itself. Its place depends on the iteration, for all that the compiler knows.
    template <class Tile>
    __device__ __forceinline__ Tile& here(Tile& tile) const {
      if constexpr (!places_of_threads) return tile;
      return *reinterpret_cast<Tile*>(reinterpret_cast<char*>(&tile) + (now & params.zero));
    }
    __device__ int kv_stage() const { return kv_stages == 1 ? 0 : ptx::computed_here(KvRing::stage(items)); }
    __device__ const WorkItem& item() const { return smem.items[smem.item_ring.stage(items)]; }
    __device__ int first_key() const { return Backward::first_key(item()) + number * m_tile_rows; }

    __device__ __forceinline__ void q_loop(Scores& s, Scores& dp, GradK& dk, GradV& dv) {
      QLoop q_loop(params, item(), number);
      if constexpr (asks_ahead) {
        left = q_loop.all_q_iterations();
        q.wait(smem.q_ring);
      }
      masked_q_iteration</*First=*/true>(q_loop.large, s, dp, dk, dv);
      q_loop.count_first();
      do {
        for (; q_loop.masked > 0; --q_loop.masked) masked_q_iteration</*First=*/false>(q_loop.large, s, dp, dk, dv);
        for (; q_loop.clear > 0; --q_loop.clear)
          q_iteration</*Masked=*/false, /*First=*/false>(q_loop.large, s, dp, dk, dv);
      } while (q_loop.next());
      last_dq();
    }

    template <bool First>
    __device__ __forceinline__ void masked_q_iteration(bool large, Scores& s, Scores& dp, GradK& dk, GradV& dv) {
      if constexpr (may_be_fully_masked) {
        q.wait(smem.q_ring);
        if (mask_range().is_fully_masked(smem.q_iterations[q.stage].q_tile, first_key()))
          return fully_masked_q_iteration<First>();
      }
      q_iteration</*Masked=*/true, First>(large, s, dp, dk, dv);
    }

    // No row attends to a key of this M tile: its dS is zero, and the gradients of its keys get nothing.
    template <bool First>
    __device__ __forceinline__ void fully_masked_q_iteration() {
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
      dq_sum.remember(smem.q_iterations[q.stage]);
      __syncwarp();
      q.release(smem.q_ring);
      ++now;
    }

    template <bool Masked, bool First>
    __device__ __forceinline__ void q_iteration(bool large, Scores& s, Scores& dp, GradK& dk, GradV& dv) {
      DqPiece dq;
      Weights p, ds;
      const int stage = q.stage;

      if constexpr (!asks_ahead) q.wait(smem.q_ring);
      const LseValues lse(smem.rows[stage].lse());
      tile::mma_abt<T>(s, k(), number * m_tile_rows, smem.q[stage]);  // S^T
      q.wait(smem.do_ring);
      tile::mma_abt<T>(dp, v(), number * m_tile_rows, smem.grad_o[stage]);  // dP^T
      // Here what it reads comes while S is computed; before the products are issued there is no register for it.
      const ScoreBias<V.alibi> score_bias = mask_range().score_bias(key(), smem.q_iterations[stage]);
      ptx::wgmma_wait<1>();  // S is ready, dP is not
      const DeltaValues delta(smem.rows[stage].delta());
      if constexpr (Masked)
        Weigh<V, true>{params, score_bias, large, mask_range().masked_out(key(), smem.q_iterations[stage].q_tile)}
            .template run<T>(s, p, lse);
      else
        Weigh<V, false>{params, score_bias}.template run<T>(s, p, lse);
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
      dq_sum.remember(smem.q_iterations[stage]);
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
      if constexpr (V.deterministic) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) smem.last_added.announce(q_loops);
        ++q_loops;
      }
    }

    __device__ __forceinline__ MaskRange<V> mask_range() const { return MaskRange<V>(params, item().rows); }
    __device__ __forceinline__ int key() const { return first_key() + tile::thread_row(); }  // of the top values

    __device__ __forceinline__ void store_ds(const Weights& ds) {
      const int stage = smem.ds_ring.stage(now);
      if constexpr (places_of_threads)
        tile::store_transposed_at<DsTile>(ds_place + stage * DsTile::bytes, ds);
      else
        tile::store_transposed(smem.ds[stage], 0, number * m_tile_rows, ds);
      if constexpr (has_proxy_fencer) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&smem.ds_stored[stage]);
      }
    }

    // This warp's rows of dS are in place, for wgmma too.
    __device__ __forceinline__ void publish_ds() {
      if constexpr (!has_proxy_fencer) {
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
        tile::mma_ab<T>(dq, ds, number * m_tile_rows, k(), 0);
    }

    // Of the iteration before.
    __device__ __forceinline__ void add_dq(const DqPiece& dq) {
      // Of 96 columns, this warp's may be none.
      if (!transposed || number * m_tile_rows + threadIdx.x / 32 % 4 * 16 < V.dims.qk)
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
      smem.ds_ring.init(consumer_warps, has_proxy_fencer ? 1 : consumer_warps + (V.deterministic ? 1 : 0));
      for (ptx::u64& stored : smem.ds_stored) ptx::mbarrier_init(&stored, consumer_warps);
      ptx::fence_mbarrier_init();
    }
    __syncthreads();
  }
};

}  // namespace froghopper::bwd
