// SPDX-License-Identifier: Apache-2.0
// Forward attention on Hopper: O = softmax(scale Q K^T + mask) V.
//
// Work      One item is one (sequence, query head, q tile); one Consumer = one 64-row strip of that tile. The grid is
//           persistent: every CTA takes items until none is left. Their order: contract/order.h. How a CTA gets one:
//           device/attn/tickets.cuh. A strip skips the last kv tiles of an item where only lower strips see them.
//           Packed and split variants (contract/split.h): a tile has rows of several heads, device/fwd/rows.cuh; an
//           item is a part of a tile's keys, and device/fwd/combine.cuh comes after. maxlogit variants: max_logit.cuh.
// Roles     Dispatcher warp 0; takes items, publishes them, loads Q.         warpgroup 0: 40, 40, 32, 32 registers
//           Loader     warps 1 and 2, one thread each, or all of pages; loads K, loads V (kv_source.cuh).
//           Sweeper    warp 3, ragged variants only; clears rows of no sequence.
//           Consumer   warpgroups 1..n, n = tile_q / 64; wgmma, softmax, store.   232, 232, 160, 112 (registers_of.cuh)
//                      Two share a strip where V has more than 256 columns: each computes S, and a half of O.
//           8-bit variants: device/fwd/narrow_producers.cuh; widened ones have 16 bits.
//           NarrowLoader  warp 1, one thread; loads K and V, and the scales of their tiles.
//           Transposer    warps 2 and 3; V -> V^T, the only form that wgmma reads of 8-bit numbers.
//           Widening variants, 8-bit K and V beside 16-bit Q or packed: device/fwd/widening_producers.cuh.
//           RawLoader  warp 1, one thread; loads K and V as in memory, and the scales of their tiles.
//           Widener    warps 2 and 3, or 4 to 7; makes f16 tiles of them. Consumers make f16 of Q, each of its strip.
// Order     kv tiles run from last to first: tiles cut by the upper bound of a mask come first (exact online softmax),
//           the steady loop carries no mask (guarded softmax), tiles cut by a window's lower bound come last (exact).
// Overlap   S = Q K^T of the next tile and O += P V of this one are in flight together; the softmax of the next tile
//           runs while P V finishes. Over the seam between two items it goes on: the last P V of one and the first S
//           of the next are in flight together, O is stored beside that S. The next kernel sets up after the last draw.
//           With scales weights are rounded before it is known that they could be (device/attn/softmax_e4m3.cuh).
//           8-bit variants issue products in turn (turn_taking.cuh); three Consumers beside more than 64 columns have
//           no registers for S beside P (at_once.cuh); O goes to a sum every fwd_promotion_tiles (promotion.cuh).
// Barriers  item_ring       full: the Dispatcher has written it; empty: one arrival per Loader, Transposer and Widener
//                           warp and, before its epilogue, per Consumer warp
//           next_wanted     one arrival a long item (order.late_tiles), by K's Loader once all but the last few tiles
//                           are issued; the Dispatcher waits for it before it draws the next ticket, so that no item
//                           lies here while another CTA idles. Both judge by the published item, and the next arrival
//                           needs an item that is published after the wait: at most one phase ahead, so the parity
//                           is enough. The Loader gets there with what is published and loaded already.
//           q_ring          full: by bytes; empty: one arrival per Consumer warp, after its last S; where O leaves by
//                           Q's place, when it has left, after the first turn of the next item (finish.cuh)
//           k_ring, v_ring  full: by bytes; empty: one arrival per Consumer warp. K is held until the guard has
//                           passed: a warp whose weights left fp32's range computes S again. Nobody waits for others.
//           turns           8-bit variants, which do: a Consumer waits for the one before, one arrival a warp of it
//           raw_ring        with scales: tiles as in memory. full: by bytes; empty: one arrival per Transposer or
//                           Widener warp. What these fill is full by one arrival each, behind its proxy fence. Why that
//                           cannot hang: narrow_producers.cuh, widening_producers.cuh.
// Shared    q[1 or 2] | k[stages] | v[stages] | items[2] | rings; O leaves by registers or by Q's place (fwd_way_of_o)
//           With scales it begins with raw[fwd_raw_stages] | scales[stages] | raw_ring; where O has a place, with that
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "device/attn/element.cuh"
#include "device/attn/softmax_e4m3.cuh"
#include "device/fwd/at_once.cuh"
#include "device/fwd/barriers.cuh"
#include "device/fwd/between.cuh"
#include "device/fwd/exact.cuh"
#include "device/fwd/finish.cuh"
#include "device/fwd/max_logit.cuh"
#include "device/fwd/means.cuh"
#include "device/fwd/narrow_producers.cuh"
#include "device/fwd/producers.cuh"
#include "device/fwd/promotion.cuh"
#include "device/fwd/queries_in_f16.cuh"
#include "device/fwd/raw_tiles.cuh"
#include "device/fwd/registers_of.cuh"
#include "device/fwd/rows.cuh"
#include "device/fwd/schedule.cuh"
#include "device/fwd/scores.cuh"
#include "device/fwd/sweep.cuh"
#include "device/fwd/turn_taking.cuh"
#include "device/fwd/widening_producers.cuh"
#include "device/ptx/registers.cuh"
#include "device/tile/mma.cuh"
#include "device/tile/ring.cuh"

namespace froghopper::fwd {

template <FwdVariant V>
struct Forward {
  static constexpr FwdVariant variant = V;
  static_assert(why_invalid(V) == nullptr);
  static constexpr bool narrow = fwd_narrow(V), widens = fwd_widens(V), scaled = fwd_scaled(V);
  static constexpr int bytes = fwd_element_bytes(V);
  using T = Pick<widens, ptx::f16, typename attn::Element<V.dtype>::type>;  // what is multiplied
  using QTile = tile::SharedTile<V.tiles.q, V.dims.qk, bytes>;
  using KTile = tile::SharedTile<V.tiles.kv, V.dims.qk, bytes>;
  using VTile =
      Pick<narrow, tile::SharedTile<V.dims.v, V.tiles.kv, bytes>, tile::SharedTile<V.tiles.kv, V.dims.v, bytes>>;
  using Scores = tile::Accum<V.tiles.kv>;  // S: 64 query rows x one kv tile, then P in place
  using Weights = Pick<narrow, tile::OperandA8<V.tiles.kv>, tile::OperandA<V.tiles.kv>>;  // P rounded
  using Output = tile::Accum<fwd_columns(V)>;  // O, unnormalised until the epilogue
  using Softmax = SoftmaxOf<V>;

  static constexpr int consumers = fwd_consumers(V), threads = fwd_threads(V), producers = fwd_producer_groups(V);
  using Registers = RegistersOf<V>;
  static constexpr int helpers = !scaled ? 1 : Registers::four ? 4 : 2;  // warps that fill V's stages
  static constexpr int raw_loaders = V.kv_in != KvIn::rows && Registers::four ? 2 : 1;
  using MeansIfAny = Pick<V.smooth, Means<V>, NoMeans>;
  using ScalesIfBlocks = Pick<V.blocks, ScalesOfBlocks<V>, NoScalesOfBlocks>;
  using Turns = Pick<narrow, TurnTaking<consumers>, NoTurns>;  // 16-bit products overlap better without
  static constexpr bool pv_later = narrow && V.dims.qk > 128;  // behind the next Consumer's S, which needs it sooner
  static constexpr bool at_once = fwd_multiplies_at_once(V);

  static constexpr int q_stages = fwd_q_stages(V);
  using KvRing = tile::Ring<V.tiles.stages>;
  using KvStage = tile::Cursor<V.tiles.stages>;
  using QRing = tile::Ring<q_stages>;
  using QStage = tile::Cursor<q_stages>;
  using ItemRing = tile::Ring<2>;
  using ItemStage = tile::Cursor<2>;
  using RawStage = tile::Cursor<fwd_raw_stages(V)>;
  using RawTiles = fwd::RawTiles<V>;
  using RawTile = decltype(RawTiles::v);  // V as in memory
  struct Nothing {};
  static constexpr WayOfO way_of_o = fwd_way_of_o(V);
  struct OwnSmem {
    tile::SharedTile<V.tiles.q, o_own_columns> o;
  };
  struct Smem : Pick<scaled, RawSmem<V>, Pick<way_of_o == WayOfO::by_its_own, OwnSmem, Nothing>> {
    QTile q[q_stages];
    KTile k[V.tiles.stages];
    VTile v[V.tiles.stages];
    WorkItem items[2];
    ItemRing item_ring;
    QRing q_ring;
    KvRing k_ring, v_ring;
    ptx::u64 next_wanted;
    ptx::u64 turns[consumers];
  };
  static constexpr int smem_bytes = fwd_smem_bytes(V);
  static_assert(sizeof(Smem) == smem_bytes);

  static __device__ void run(const FwdParams& params) {
    extern __shared__ __align__(1024) char smem_memory[];
    Smem& smem = *reinterpret_cast<Smem*>(smem_memory);
    prefetch_maps(params);
    if constexpr (V.packed) clear_rows_of_nobody<threads>(smem.q);
    init_barriers<Forward>(smem);

    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp > 0 || V.ragged) ptx::wait_for_earlier_kernels();  // the Dispatcher of fixed lengths reads nothing yet
    if (warp < 4) {
      if constexpr (Registers::move) ptx::setmaxnreg_dec<Registers::producers>();
      if (warp == 0) Dispatcher<Forward>{params, smem}.run();
      if constexpr (narrow) {
        if (is_of_loader<V>(1)) NarrowLoader<Forward>{params, smem}.run();
        if (warp >= 2) Transposer<Forward>{params, smem, warp - 2}.run();
      } else if constexpr (widens) {
        load_raw_tiles<Forward>(params, smem, warp);
        if (warp >= 2 && !Registers::four) Widener<Forward>{params, smem, warp - 2}.run();
      } else {
        if (is_of_loader<V>(1)) Loader<Forward, KvSide::k>{params, smem, &smem.next_wanted}.run(smem.k, smem.k_ring);
        if (is_of_loader<V>(2)) Loader<Forward, KvSide::v>{params, smem, nullptr}.run(smem.v, smem.v_ring);
      }
      if (V.ragged && !V.merges && warp == 3)
        Sweeper{params, params.order.pairs / heads_of_items<V>(params),
                size_of(scaled ? params.narrow.dtype_o : V.dtype)}
            .run();
    } else if (warp < 4 * producers) {
      if constexpr (Registers::four) ptx::setmaxnreg_dec<Registers::wideners>();
      if constexpr (Registers::four) Widener<Forward>{params, smem, warp - 4}.run();
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
    int number, half;  // of its strip in this item's q tile; of O's columns, where two share a strip
    ItemStage i;
    QStage q;
    KvStage k, v;
    Turns turns = {smem.turns, number};
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
      turns.pass();
      number = next_number();

      while (!item.none()) {
        Softmax softmax = begin_softmax(scale);
        int kv_tile = strip_of(item).last_tile();
        first_turn(item, kv_tile--, softmax, s, p);
        finishing.give_back_q(q.stage ^ 1);
        skip(v, smem.v_ring, strip_of(item).skipped());
        if constexpr (at_once)
          begin_at_once<Forward>(*this, item, kv_tile + 1, softmax, p, o);
        else
          o.clear();
        if constexpr (fwd_joins(V))
          walk_parts<V>(*this, item, kv_tile, softmax, s, p, o);
        else
          walk(item, item.kv_begin, kv_tile, softmax, s, p, o);
        q.advance();

        softmax.complete();
        if constexpr (!at_once) pv(o, p);  // the last of this item
        if constexpr (narrow) promotion().finish(item.kv_begin, strip_of(item).last_tile(), softmax, moved, o);
        const WorkItem finished = give_back_item();
        const MeansIfAny means(params, finished, strip_of(finished));
        item = take_item();
        scale = scale_of(item);
        float unit = fwd_has_scales(V) ? unit_of<V>(params, finished) : 1.f;
        qk(s, next_number());                          // the first of the next
        if constexpr (!at_once) ptx::wgmma_wait<1>();  // O is ready, S is not
        turns.pass();
        if constexpr (!at_once) v.release(smem.v_ring);
        if constexpr (V.smooth) means.add(params, finished, softmax, unit, o);
        finishing.run(finished, number, half, q.stage ^ 1, softmax, unit, o);
        ptx::wgmma_wait<0>();  // S is ready
        number = next_number();
      }
      finishing.wait();
    }

    __device__ __forceinline__ void walk(const WorkItem& item, int begin, int kv_tile, Softmax& softmax, Scores& s,
                                         Weights& p, Output& o) {
      if constexpr (V.mask != Mask::none) {
        const Strip<V> strip = strip_of(item);
        const int cut_above = max(begin, strip.sight().lowest_cut_above(strip.first_row(), V.tiles.kv));
        for (; kv_tile >= cut_above; --kv_tile) turn</*Cut=*/true>(item, kv_tile, softmax, s, p, o);
      }
      int uncut = begin;
      if constexpr (bounded_below(V.mask))
        uncut = max(uncut, strip_of(item).sight().lowest_uncut_below(strip_of(item).last_row(), V.tiles.kv));
      for (; kv_tile >= uncut; --kv_tile) turn</*Cut=*/false>(item, kv_tile, softmax, s, p, o);
      if constexpr (bounded_below(V.mask))
        for (; kv_tile >= begin; --kv_tile) turn</*Cut=*/true>(item, kv_tile, softmax, s, p, o);
    }

    __device__ int next_number() const { return change_places(V) ? consumers - 1 - number : number; }  // of next item
    // The shuffles tell the compiler that the values are the same for the whole warp.
    __device__ WorkItem take_item() {
      i.wait(smem.item_ring);
      WorkItem item = smem.items[i.stage];
      item.q_tile = __shfl_sync(~0u, item.q_tile, 0);
      item.kv_begin = __shfl_sync(~0u, item.kv_begin, 0);
      item.kv_end = __shfl_sync(~0u, item.kv_end, 0);
      slope = slope_of<V>(params, item);  // early, for it comes from memory
      const Strip<V> next_strip{params, item, next_number()};
      scales.begin(params, item, next_strip.last_tile());
      skip(k, smem.k_ring, next_strip.skipped(), turns);
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

    __device__ void first_turn(const WorkItem& item, int kv_tile, Softmax& softmax, Scores& s, Weights& p) {
      if constexpr (!at_once) release_k(item, kv_tile);
      bend(s, softmax, item, kv_tile);
      if (V.mask != Mask::none || (kv_tile + 1) * V.tiles.kv > strip_of(item).seq_kv())
        strip_of(item).hide(s, kv_tile);
      scales.read(params, kv_tile - 1);
      softmax.step(s, strip_of(item).template headroom<Softmax>(kv_tile));
      tile::round_to<T>(p, s);
    }

    // One kv tile in steady state. Between the two products and their waits lies the softmax: it hides P V, and the
    // products of the other strips hide it. K is given back after the guard, because a lost tile is multiplied again;
    // so a warp waits for V while it holds K. Turn t takes K of t and V of t - 1. When it starts, the slowest warp has
    // given back K of t - 1, V of t - 2 and all before: in rings of two stages there is room for both: nothing hangs.
    template <bool Cut>
    __device__ __forceinline__ void turn(const WorkItem& item, int kv_tile, Softmax& softmax, Scores& s, Weights& p,
                                         Output& o) {
      if constexpr (at_once) return turn_at_once<Forward, Cut>(*this, item, kv_tile, softmax, s, p, o);
      qk(s, number, &softmax);  // S of this tile
      if (!pv_later) pv(o, p);  // O += P V of the tile before
      scales.read(params, kv_tile - 1);
      ptx::wgmma_wait<pv_later ? 0 : 1>();  // S is ready, P V is not
      turns.pass();
      if (pv_later && (Cut || !multiplies_between(V))) pv(o, p);
      bend(s, softmax, item, kv_tile);
      attn::RowPair age;
      bool grew = true;
      if constexpr (Cut || V.exact) {
        release_k(item, kv_tile);
        if constexpr (Cut) strip_of(item).hide(s, kv_tile);
        age = softmax.step(s, strip_of(item).template headroom<Softmax>(kv_tile));
        if constexpr (V.exact) grew = !__all_sync(~0u, age.top == 1.f && age.bottom == 1.f);
        finish_pv(p, s);
      } else if constexpr (scaled) {
        const auto guess = guess_of<Forward>(*this, softmax, s, p, o);
        grew = !softmax.holds(guess);
        finish_pv(p, s);
        if (grew) {
          if (softmax.correct(s, guess, age) == attn::Fate::lost) age = again(item, kv_tile, softmax, s);
          tile::round_to<T>(p, s);
        } else {
          softmax.keep(guess);
        }
        release_k(item, kv_tile);
      } else {
        const attn::Fate fate = softmax.later(s, age);
        grew = fate != attn::Fate::kept;
        if (fate == attn::Fate::lost) age = again(item, kv_tile, softmax, s);
        release_k(item, kv_tile);  // not before: K may be needed again
        finish_pv(p, s);
      }
      if (grew) o.scale_rows(age.top, age.bottom);
      if constexpr (narrow) {
        if (grew) moved.all();
        if (Promotion<V>::due(kv_tile, item.kv_begin, strip_of(item).last_tile()))
          promotion().promote(kv_tile, strip_of(item).last_tile(), softmax, moved, o);
      }
    }

    // A tile whose weights are lost. Where registers are full, something is spilled for the product: here, by hand, and
    // not in the loop around it.
    __device__ __forceinline__ attn::RowPair again(const WorkItem& item, int kv_tile, Softmax& softmax, Scores& s) {
      volatile float aside[4];
      if constexpr (Registers::crowded) softmax.put_aside(aside);
      tile::mma_abt_alone<T>(s, smem.q[q.stage], number * strip, smem.k[k.stage]);
      if constexpr (Registers::crowded) softmax.take_back(aside);
      if constexpr (scaled) take_scales(softmax);  // those that blocks variants have read are of the next tile
      bend(s, softmax, item, kv_tile);
      return softmax.step(s, {Softmax::headroom_again, Softmax::headroom_again});
    }

    __device__ __forceinline__ void finish_pv(Weights& p, const Scores& s) {
      ptx::wgmma_wait<0>();  // O is ready
      v.release(smem.v_ring);
      tile::round_to<T>(p, s);
    }

    // Scales first: a load behind products waits until they have read their operands.
    __device__ __forceinline__ void qk(Scores& s, int its_strip, Softmax* softmax = nullptr) {
      if (at_once) k.wait(smem.k_ring);  // which is there before the turn
      turns.take();
      if (!at_once) k.wait(smem.k_ring);
      arrived<V>();
      if (softmax != nullptr) take_scales(*softmax);
      tile::mma_abt<T>(s, smem.q[q.stage], its_strip * strip, smem.k[k.stage]);
    }

    __device__ __forceinline__ void pv(Output& o, const Weights& p) {
      v.wait(smem.v_ring);
      arrived<V>();
      if constexpr (narrow)
        tile::mma_abt<T>(o, p, smem.v[v.stage]);
      else
        tile::mma_ab<T>(o, p, smem.v[v.stage], first_column<V>(half));
    }

    __device__ float scale_of(const WorkItem& item) const {  // read early, for it comes from memory
      return fwd_has_scales(V) && !V.blocks && !item.none() ? scale_of_scores<V>(params, item, strip_of(item)) : 0.f;
    }

    __device__ Softmax begin_softmax(float scale) const {
      if constexpr (fwd_converts_q(V)) return Softmax(attn::times(q_rows, scale), smem.scales[k.stage]);
      if constexpr (scaled && !fwd_converts_q(V)) return Softmax(scale, smem.scales[k.stage]);
      if constexpr (V.blocks) return Softmax(scales.next);
      if constexpr (!scaled && !V.blocks)
        return Softmax{V.widened ? attn::of_all_rows(scale) : V.alibi ? 1.f : params.scale_log2};
    }
    __device__ __forceinline__ void take_scales(Softmax& softmax) const {
      if constexpr (scaled) softmax.take(smem.scales[k.stage]);
      if constexpr (V.blocks) softmax.take(scales.next);
    }
    __device__ __forceinline__ void bend(Scores& s, Softmax& softmax, const WorkItem& item, int kv_tile) const {
      cap<V>(params, s, softmax);
      if constexpr (V.alibi) put_slope_on<V>(s, params.scale_log2, slope, strip_of(item), kv_tile);
    }

    __device__ __forceinline__ void release_k(const WorkItem& item, int kv_tile) {
      if constexpr (scaled) __syncwarp();  // every lane has read the scales
      k.release(smem.k_ring);
      const bool was_last_of_item = kv_tile == item.kv_begin;
      if (way_of_o != WayOfO::by_q && was_last_of_item) q.give_back(smem.q_ring);
    }

    __device__ Promotion<V> promotion() const { return {params.narrow, number}; }
    __device__ Strip<V> strip_of(const WorkItem& item) const { return {params, item, number}; }
  };
};

}  // namespace froghopper::fwd
