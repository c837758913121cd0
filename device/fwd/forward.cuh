// SPDX-License-Identifier: Apache-2.0
// Forward attention on Hopper: O = softmax(scale Q K^T + mask) V.
//
// Work      A work item is one (sequence, query head, q tile). One Consumer owns one 64-row M tile of a q tile. The
//           grid is persistent: every CTA fetches items until none is left. contract/order.h has their order, and
//           device/attn/tickets.cuh how a CTA fetches one. An M tile skips the last kv tiles of an item that only lower
//           M tiles attend to. PackGQA, split-KV: contract/split.h, rows.cuh, combine.cuh; maxlogit: max_logit.cuh.
// Roles     Dispatcher     warp 0; fetches items, publishes them, loads Q.      warpgroup 0: 40, 40, 32, 32 registers
//           Loader         warps 1 and 2, one thread each, or the whole warp for pages; loads K, or V (kv_source.cuh)
//           PaddingFiller  warp 3, ragged variants only; fills the rows of o and lse that belong to no sequence.
//           Consumer       warpgroups 1..n, n = tile_q / 64; WGMMA, softmax, store. 232, 232, 160, 112 registers
//                          Where dim_v is above 256, two Consumers share an M tile: each computes S, and a half of O.
//           Variants with FP8 MMAs have an Fp8Loader and Transposers instead: device/fwd/fp8_producers.cuh. Variants
//           that dequantise K and V have StoredLoaders and Dequantisers: device/fwd/dequantising_producers.cuh.
// Order     The kv tiles run from last to first: first the boundary tiles of a mask's upper bound (exact online
//           softmax), then the interior tiles (no mask, guarded softmax), last those of a window's lower bound (exact).
// Overlap   S = Q K^T of the next tile and O += P V of this one are in flight together; the softmax of the next tile
//           runs while P V finishes. The overlap continues across work items: the last P V of one and the first S of
//           the next are in flight together, and O is stored meanwhile. The next kernel sets up after the last fetch.
//           With scales, weights are rounded speculatively (device/attn/softmax_e4m3.cuh). Consumers issue FP8 MMAs one
//           after the other (mma_order.cuh); three of them with dim_v above 64 have no registers for S and P at once
//           (immediate_pv.cuh); O is promoted to an fp32 sum every fwd_promotion_tiles (promotion.cuh).
// Barriers  item_ring       full: the Dispatcher has written the item; empty: one arrival per Loader, Transposer and
//                           Dequantiser warp and, before its epilogue, per Consumer warp
//           next_wanted     one arrival per long item (order.late_tiles), by K's Loader once all but the last few tiles
//                           are issued; the Dispatcher waits for it before it fetches the next ticket, so that no item
//                           lies here while another CTA idles. Both judge by the published item, and the next arrival
//                           needs an item published after the wait: at most one phase ahead, so the parity is enough.
//           q_ring          full: by bytes; empty: one arrival per Consumer warp, after its last S; where O is stored
//                           through Q's stage, when it has left, after the next item's first iteration (finish.cuh)
//           k_ring, v_ring  full: by bytes; empty: one arrival per Consumer warp. K is held until the guard has
//                           passed: a warp whose weights left fp32's range computes S again. Nobody waits for others.
//           mma_order       FP8 MMAs only: a Consumer waits for the one before it; one arrival per warp of that one
//           stored_ring     with scales: tiles as they are stored. full: by bytes; empty: one arrival per Transposer or
//                           Dequantiser warp. Why that cannot hang: fp8_producers.cuh, dequantising_producers.cuh.
// Shared    q[1 or 2] | k[stages] | v[stages] | items[2] | rings. With scales, stored[fwd_stored_stages] |
//           scales[stages] | stored_ring come first, or the buffer of O where it has its own (fwd_o_store).
#pragma once
#include "contract/fwd_legality.h"
#include "contract/fwd_params.h"
#include "device/attn/element.cuh"
#include "device/attn/softmax_e4m3.cuh"
#include "device/fwd/barriers.cuh"
#include "device/fwd/batch_invariant.cuh"
#include "device/fwd/dequantising_producers.cuh"
#include "device/fwd/finish.cuh"
#include "device/fwd/fp8_producers.cuh"
#include "device/fwd/immediate_pv.cuh"
#include "device/fwd/max_logit.cuh"
#include "device/fwd/means.cuh"
#include "device/fwd/mma_order.cuh"
#include "device/fwd/padding_filler.cuh"
#include "device/fwd/producers.cuh"
#include "device/fwd/promotion.cuh"
#include "device/fwd/pv_within_softmax.cuh"
#include "device/fwd/queries_in_f16.cuh"
#include "device/fwd/registers_of.cuh"
#include "device/fwd/rows.cuh"
#include "device/fwd/schedule.cuh"
#include "device/fwd/score_mod.cuh"
#include "device/fwd/stored_tiles.cuh"
#include "device/ptx/registers.cuh"
#include "device/tile/mma.cuh"
#include "device/tile/ring.cuh"

namespace froghopper::fwd {

template <FwdVariant V>
struct Forward {
  static constexpr FwdVariant variant = V;
  static_assert(why_invalid(V) == nullptr);
  static constexpr bool fp8_mma = fwd_fp8_mma(V), dequantises = fwd_dequantises(V), scaled = fwd_scaled(V);
  static constexpr int bytes = fwd_element_bytes(V);
  using T = Pick<dequantises, ptx::f16, typename attn::Element<V.dtype>::type>;  // what is multiplied
  using QTile = tile::SharedTile<V.tiles.q, V.dims.qk, bytes>;
  using KTile = tile::SharedTile<V.tiles.kv, V.dims.qk, bytes>;
  using VTile =
      Pick<fp8_mma, tile::SharedTile<V.dims.v, V.tiles.kv, bytes>, tile::SharedTile<V.tiles.kv, V.dims.v, bytes>>;
  using Scores = tile::Accum<V.tiles.kv>;  // S: 64 query rows x one kv tile, then P in place
  using Weights = Pick<fp8_mma, tile::OperandA8<V.tiles.kv>, tile::OperandA<V.tiles.kv>>;  // P rounded
  using Output = tile::Accum<fwd_columns(V)>;  // O, unnormalised until the epilogue
  using Softmax = SoftmaxOf<V>;

  static constexpr int consumers = fwd_consumers(V), threads = fwd_threads(V), producers = fwd_producer_groups(V);
  using Registers = RegistersOf<V>;
  static constexpr int helpers = !scaled ? 1 : Registers::four ? 4 : 2;  // warps that fill V's stages
  static constexpr int stored_loaders = V.kv.in != KvIn::rows && Registers::four ? 2 : 1;
  using MeansIfAny = Pick<V.kv.smooth, Means<V>, NoMeans>;
  using ScalesIfBlocks = Pick<fwd_block_scales(V), ScalesOfBlocks<V>, NoScalesOfBlocks>;
  using MmaOrderIfAny = Pick<fp8_mma, MmaOrder<consumers>, NoMmaOrder>;  // 16-bit products overlap better without
  static constexpr bool pv_later = fp8_mma && V.dims.qk > 128;  // behind the next Consumer's S, which needs it sooner
  static constexpr bool immediate_pv = fwd_immediate_pv(V);

  static constexpr int q_stages = fwd_q_stages(V);
  using KvRing = tile::Ring<V.tiles.stages>;
  using KvStage = tile::Cursor<V.tiles.stages>;
  using QRing = tile::Ring<q_stages>;
  using QStage = tile::Cursor<q_stages>;
  using ItemRing = tile::Ring<2>;
  using ItemStage = tile::Cursor<2>;
  using StoredStage = tile::Cursor<fwd_stored_stages(V)>;
  using StoredTiles = fwd::StoredTiles<V>;
  using StoredTile = decltype(StoredTiles::v);  // V as in memory
  struct Nothing {};
  static constexpr OStore o_store = fwd_o_store(V);
  struct OwnSmem {
    tile::SharedTile<V.tiles.q, o_own_columns> o;
  };
  struct Smem : Pick<scaled, StoredSmem<V>, Pick<o_store == OStore::through_own_smem, OwnSmem, Nothing>> {
    QTile q[q_stages];
    KTile k[V.tiles.stages];
    VTile v[V.tiles.stages];
    WorkItem items[2];
    ItemRing item_ring;
    QRing q_ring;
    KvRing k_ring, v_ring;
    ptx::u64 next_wanted;
    ptx::u64 mma_order[consumers];
  };
  static constexpr int smem_bytes = fwd_smem_bytes(V);
  static_assert(sizeof(Smem) == smem_bytes);

  static __device__ void run(const FwdParams& params) {
    extern __shared__ __align__(1024) char smem_memory[];
    Smem& smem = *reinterpret_cast<Smem*>(smem_memory);
    prefetch_maps(params);
    if constexpr (V.pack_gqa) clear_padding_rows<threads>(smem.q);
    init_barriers<Forward>(smem);

    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp > 0 || V.ragged) ptx::wait_for_earlier_kernels();  // the Dispatcher of fixed lengths reads nothing yet
    if (warp < 4) {
      if constexpr (Registers::move) ptx::setmaxnreg_dec<Registers::producers>();
      if (warp == 0) Dispatcher<Forward>{params, smem}.run();
      if constexpr (fp8_mma) {
        if (is_of_loader<V>(1)) Fp8Loader<Forward>{params, smem}.run();
        if (warp >= 2) Transposer<Forward>{params, smem, warp - 2}.run();
      } else if constexpr (dequantises) {
        load_stored_tiles<Forward>(params, smem, warp);
        if (warp >= 2 && !Registers::four) Dequantiser<Forward>{params, smem, warp - 2}.run();
      } else {
        if (is_of_loader<V>(1)) Loader<Forward, KvSide::k>{params, smem, &smem.next_wanted}.run(smem.k, smem.k_ring);
        if (is_of_loader<V>(2)) Loader<Forward, KvSide::v>{params, smem, nullptr}.run(smem.v, smem.v_ring);
      }
      if (V.ragged && !V.merges_lse && warp == 3)
        PaddingFiller{params, params.order.pairs / heads_of_items<V>(params),
                      size_of(scaled ? params.eight_bit.dtype_o : V.dtype)}
            .run();
    } else if (warp < 4 * producers) {
      if constexpr (Registers::four) ptx::setmaxnreg_dec<Registers::dequantisers>();
      if constexpr (Registers::four) Dequantiser<Forward>{params, smem, warp - 4}.run();
    } else {
      if constexpr (Registers::move) ptx::setmaxnreg_inc<Registers::consumers>();
      const int number = warp / 4 - producers, half = fwd_sharers(V) > 1 ? number : 0;
      Consumer{params, smem, number - half, half}.run();
    }
  }

  // ---- Consumer ----
  // The three register tiles are locals of run() and arguments of every step, never fields: as fields, the compiler
  // duplicates them across the loop and ptxas serialises wgmma (C7511).

  struct Consumer {
    const FwdParams& params;
    Smem& smem;
    int number, half;  // of its M tile in this item's q tile; of O's columns, where two share an M tile
    ItemStage i;
    QStage q;
    KvStage k, v;
    MmaOrderIfAny mma_order = {smem.mma_order, number};
    Moved moved;            // 8-bit variants
    bool o_begins = true;   // where it multiplies at once: the next product is not added to what O has
    float slope;            // alibi variants: of the item
    attn::RowPair q_rows;   // Q that became f16: what its rows are multiplied by
    ScalesIfBlocks scales;  // of the tile whose S is next
    Finishing<Forward> finishing = {params, smem};

    __device__ void run() {
      Scores s;
      Weights p;
      Output o;
      WorkItem item = take_item();
      float scale = scale_of(item);
      qk(s, next_number());
      ptx::wgmma_wait<0>();
      mma_order.pass();
      number = next_number();

      while (!item.none()) {
        Softmax softmax = begin_softmax(scale);
        int kv_tile = m_tile_of(item).last_tile();
        first_kv_iteration(item, kv_tile--, softmax, s, p);
        finishing.give_back_q(q.stage ^ 1);
        skip(v, smem.v_ring, m_tile_of(item).skipped());
        if constexpr (immediate_pv)
          begin_immediate_pv<Forward>(*this, item, kv_tile + 1, softmax, p, o);
        else
          o.clear();
        if constexpr (fwd_joins(V))
          kv_loop_of_parts<V>(*this, item, kv_tile, softmax, s, p, o);
        else
          kv_loop(item, item.kv_begin, kv_tile, softmax, s, p, o);
        q.advance();

        softmax.complete();
        if constexpr (!immediate_pv) pv(o, p);  // the last of this item
        if constexpr (fp8_mma) promotion().finish(item.kv_begin, m_tile_of(item).last_tile(), softmax, moved, o);
        const WorkItem finished = give_back_item();
        const MeansIfAny means(params, finished, m_tile_of(finished));
        item = take_item();
        scale = scale_of(item);
        float unit = fwd_has_scales(V) ? unit_of<V>(params, finished) : 1.f;
        qk(s, next_number());                               // the first of the next
        if constexpr (!immediate_pv) ptx::wgmma_wait<1>();  // O is ready, S is not
        mma_order.pass();
        if constexpr (!immediate_pv) v.release(smem.v_ring);
        if constexpr (V.kv.smooth) means.add(params, finished, softmax, unit, o);
        finishing.run(finished, number, half, q.stage ^ 1, softmax, unit, o);
        ptx::wgmma_wait<0>();  // S is ready
        number = next_number();
      }
      finishing.wait();
    }

    __device__ __forceinline__ void kv_loop(const WorkItem& item, int begin, int kv_tile, Softmax& softmax, Scores& s,
                                            Weights& p, Output& o) {
      if constexpr (V.mask != Mask::none) {
        const MTile<V> m_tile = m_tile_of(item);
        const int boundary_above =
            max(begin, m_tile.mask_range().lowest_boundary_above(m_tile.first_row(), V.tiles.kv));
        for (; kv_tile >= boundary_above; --kv_tile) kv_iteration</*Boundary=*/true>(item, kv_tile, softmax, s, p, o);
      }
      int interior = begin;
      if constexpr (bounded_below(V.mask))
        interior =
            max(interior, m_tile_of(item).mask_range().lowest_interior_below(m_tile_of(item).last_row(), V.tiles.kv));
      for (; kv_tile >= interior; --kv_tile) kv_iteration</*Boundary=*/false>(item, kv_tile, softmax, s, p, o);
      if constexpr (bounded_below(V.mask))
        for (; kv_tile >= begin; --kv_tile) kv_iteration</*Boundary=*/true>(item, kv_tile, softmax, s, p, o);
    }

    __device__ int next_number() const { return swaps_m_tiles(V) ? consumers - 1 - number : number; }  // of next item
    // The shuffles tell the compiler that the values are the same for the whole warp.
    __device__ WorkItem take_item() {
      i.wait(smem.item_ring);
      WorkItem item = smem.items[i.stage];
      item.q_tile = __shfl_sync(~0u, item.q_tile, 0);
      item.kv_begin = __shfl_sync(~0u, item.kv_begin, 0);
      item.kv_end = __shfl_sync(~0u, item.kv_end, 0);
      slope = slope_of<V>(params, item);  // early, for it comes from memory
      const MTile<V> next_m_tile{params, item, next_number()};
      scales.begin(params, item, next_m_tile.last_tile());
      skip(k, smem.k_ring, next_m_tile.skipped(), mma_order);
      q.wait(smem.q_ring);
      if constexpr (fwd_converts_q(V)) q_rows = queries_in_f16<V>(params, item, smem.q[q.stage], number);
      return item;
    }

    // Read from shared memory again, so that what only the epilogue needs spends no registers in the loop.
    __device__ WorkItem give_back_item() {
      const WorkItem item = smem.items[i.stage];
      __syncwarp();
      i.release(smem.item_ring);
      return item;
    }

    __device__ void first_kv_iteration(const WorkItem& item, int kv_tile, Softmax& softmax, Scores& s, Weights& p) {
      if constexpr (!immediate_pv) release_k(item, kv_tile);
      apply_score_mod(s, softmax, item, kv_tile);
      if (V.mask != Mask::none || (kv_tile + 1) * V.tiles.kv > m_tile_of(item).seq_kv())
        m_tile_of(item).mask_out(s, kv_tile);
      scales.read(params, kv_tile - 1);
      softmax.step(s, m_tile_of(item).template max_offset<Softmax>(kv_tile));
      tile::round_to<T>(p, s);
    }

    // One kv tile in steady state. Between the two products and their waits lies the softmax: it hides P V, and the
    // products of the other M tiles hide it. K is given back after the guard, because a lost tile is multiplied again;
    // so a warp waits for V while it holds K. Iteration t takes K of t and V of t - 1. When it starts, the slowest warp
    // has given back K of t - 1, V of t - 2 and all before: in rings of two stages there is room for both: nothing
    // hangs.
    template <bool Boundary>
    __device__ __forceinline__ void kv_iteration(const WorkItem& item, int kv_tile, Softmax& softmax, Scores& s,
                                                 Weights& p, Output& o) {
      if constexpr (immediate_pv)
        return kv_iteration_immediate_pv<Forward, Boundary>(*this, item, kv_tile, softmax, s, p, o);
      qk(s, number, &softmax);  // S of this tile
      if (!pv_later) pv(o, p);  // O += P V of the tile before
      scales.read(params, kv_tile - 1);
      ptx::wgmma_wait<pv_later ? 0 : 1>();  // S is ready, P V is not
      mma_order.pass();
      if (pv_later && (Boundary || !pv_within_softmax(V))) pv(o, p);
      apply_score_mod(s, softmax, item, kv_tile);
      attn::RowPair rescale;
      bool grew = true;
      if constexpr (Boundary || V.batch_invariant) {
        release_k(item, kv_tile);
        if constexpr (Boundary) m_tile_of(item).mask_out(s, kv_tile);
        rescale = softmax.step(s, m_tile_of(item).template max_offset<Softmax>(kv_tile));
        if constexpr (V.batch_invariant) grew = !__all_sync(~0u, rescale.top == 1.f && rescale.bottom == 1.f);
        finish_pv(p, s);
      } else if constexpr (scaled) {
        const auto guess = guess_of<Forward>(*this, softmax, s, p, o);
        grew = !softmax.holds(guess);
        finish_pv(p, s);
        if (grew) {
          if (softmax.correct(s, guess, rescale) == attn::Fate::lost)
            rescale = recompute_scores(item, kv_tile, softmax, s);
          tile::round_to<T>(p, s);
        } else {
          softmax.keep(guess);
        }
        release_k(item, kv_tile);
      } else {
        const attn::Fate fate = softmax.later(s, rescale);
        grew = fate != attn::Fate::kept;
        if (fate == attn::Fate::lost) rescale = recompute_scores(item, kv_tile, softmax, s);
        release_k(item, kv_tile);  // not before: K may be needed again
        finish_pv(p, s);
      }
      if (grew) o.scale_rows(rescale.top, rescale.bottom);
      if constexpr (fp8_mma) {
        if (grew) moved.all();
        if (Promotion<V>::due(kv_tile, item.kv_begin, m_tile_of(item).last_tile()))
          promotion().promote(kv_tile, m_tile_of(item).last_tile(), softmax, moved, o);
      }
    }

    // A tile whose weights are lost. Where registers are full, something is spilled for the product: here, by hand, and
    // not in the loop around it.
    __device__ __forceinline__ attn::RowPair recompute_scores(const WorkItem& item, int kv_tile, Softmax& softmax,
                                                              Scores& s) {
      volatile float aside[4];
      if constexpr (Registers::crowded) softmax.put_aside(aside);
      tile::mma_abt_alone<T>(s, smem.q[q.stage], number * m_tile_rows, smem.k[k.stage]);
      if constexpr (Registers::crowded) softmax.take_back(aside);
      if constexpr (scaled) take_scales(softmax);  // those that blocks variants have read are of the next tile
      apply_score_mod(s, softmax, item, kv_tile);
      return softmax.step(s, {Softmax::max_offset_again, Softmax::max_offset_again});
    }

    __device__ __forceinline__ void finish_pv(Weights& p, const Scores& s) {
      ptx::wgmma_wait<0>();  // O is ready
      v.release(smem.v_ring);
      tile::round_to<T>(p, s);
    }

    // Scales first: a load behind products waits until they have read their operands.
    __device__ __forceinline__ void qk(Scores& s, int its_m_tile, Softmax* softmax = nullptr) {
      if (immediate_pv) k.wait(smem.k_ring);  // which is there before the iteration
      mma_order.take();
      if (!immediate_pv) k.wait(smem.k_ring);
      arrived<V>();
      if (softmax != nullptr) take_scales(*softmax);
      tile::mma_abt<T>(s, smem.q[q.stage], its_m_tile * m_tile_rows, smem.k[k.stage]);
    }

    __device__ __forceinline__ void pv(Output& o, const Weights& p) {
      v.wait(smem.v_ring);
      arrived<V>();
      if constexpr (fp8_mma)
        tile::mma_abt<T>(o, p, smem.v[v.stage]);
      else
        tile::mma_ab<T>(o, p, smem.v[v.stage], first_column<V>(half));
    }

    __device__ float scale_of(const WorkItem& item) const {  // read early, for it comes from memory
      return fwd_has_item_scale(V) && !item.none() ? scale_of_scores<V>(params, item, m_tile_of(item)) : 0.f;
    }

    __device__ Softmax begin_softmax(float scale) const {
      if constexpr (fwd_converts_q(V)) return Softmax(attn::times(q_rows, scale), smem.scales[k.stage]);
      if constexpr (scaled && !fwd_converts_q(V)) return Softmax(scale, smem.scales[k.stage]);
      if constexpr (fwd_block_scales(V)) return Softmax(scales.next);
      if constexpr (!scaled && !fwd_block_scales(V))
        return Softmax{fwd_dequantised(V) ? attn::of_all_rows(scale) : V.score_mods.alibi ? 1.f : params.scale_log2};
    }
    __device__ __forceinline__ void take_scales(Softmax& softmax) const {
      if constexpr (scaled) softmax.take(smem.scales[k.stage]);
      if constexpr (fwd_block_scales(V)) softmax.take(scales.next);
    }
    __device__ __forceinline__ void apply_score_mod(Scores& s, Softmax& softmax, const WorkItem& item,
                                                    int kv_tile) const {
      cap<V>(params, s, softmax);
      if constexpr (V.score_mods.alibi) add_alibi<V>(s, params.scale_log2, slope, m_tile_of(item), kv_tile);
    }

    __device__ __forceinline__ void release_k(const WorkItem& item, int kv_tile) {
      if constexpr (scaled) __syncwarp();  // every lane has read the scales
      k.release(smem.k_ring);
      const bool was_last_of_item = kv_tile == item.kv_begin;
      if (o_store != OStore::through_q && was_last_of_item) q.give_back(smem.q_ring);
    }

    __device__ Promotion<V> promotion() const { return {params.eight_bit, number}; }
    __device__ MTile<V> m_tile_of(const WorkItem& item) const { return {params, item, number}; }
  };
};

}  // namespace froghopper::fwd
