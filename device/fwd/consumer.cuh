// SPDX-License-Identifier: Apache-2.0
// device/fwd: the Consumer of the forward kernel: the main loop over the kv tiles of its M tile. Kernel is Forward of a
// variant; the head of forward.cuh says how the roles act together. What some variants do otherwise is in files of
// its own: immediate_pv.cuh, pv_within_softmax.cuh and kv_loop_of_parts.cuh define members of this class.
//
// The three register tiles are locals of run() and arguments of every step, never fields: as fields, the compiler
// duplicates them across the loop, and ptxas serialises wgmma, which it tells by its advisory C7511.
#pragma once
#include "contract/fields.h"
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "contract/tile_sequence.h"
#include "contract/types.h"
#include "device/attn/scaled_softmax.cuh"
#include "device/attn/softmax.cuh"
#include "device/fwd/consumer_mma.cuh"
#include "device/fwd/consumer_q.cuh"
#include "device/fwd/epilogue.cuh"
#include "device/fwd/means.cuh"
#include "device/fwd/promotion.cuh"
#include "device/fwd/queries_in_f16.cuh"
#include "device/fwd/rows.cuh"
#include "device/fwd/scales.cuh"
#include "device/fwd/score_mod.cuh"
#include "device/fwd/softmax_choice.cuh"
#include "device/fwd/work_item.cuh"
#include "device/ptx/wgmma.cuh"
#include "device/tile/accum.cuh"

namespace froghopper::fwd {

// Whether P V stands between two halves of the exponentials: pv_within_softmax.cuh. At head dim 256 S, P and O take
// all registers, so it stands there only in variants that need no others.
constexpr bool pv_within_softmax(FwdVariant v) {
  const bool more = v.ragged || v.kv.smooth || v.max_logit || v.score_mods.softcap || v.score_mods.alibi ||
                    v.merges_lse || v.tiles.kv != scale_block;
  return fwd_fp8_mma(v) && (v.dims.qk == 192 || (v.dims.qk > 192 && !more));
}

// Under a mask, M tiles with larger row numbers attend to more kv tiles. So Consumers swap M tiles from item to item,
// the first with the last, and do equal work in the end. Variants that read 8-bit K and V do not, because their
// Consumers wait for each other in any case. Batch-invariant ones keep their sums by number, and four Consumers have no
// register for it where the mask has a lower bound.
constexpr bool swaps_m_tiles(FwdVariant v) {
  const bool own_m_tiles = !v.pack_gqa && fwd_consumers_per_m_tile(v) == 1,
             may = !fwd_reads_8_bit(v) && !fwd_merges_parts(v);
  return v.mask != Mask::none && own_m_tiles && may && (fwd_consumers(v) < 4 || !bounded_below(v.mask));
}

template <class Kernel>
struct Consumer {
  static constexpr FwdVariant V = Kernel::variant;
  static constexpr bool fp8_mma = Kernel::fp8_mma, reads_8_bit = Kernel::reads_8_bit,
                        immediate_pv = Kernel::immediate_pv, token_scales = V.kv.token_scales;
  // P V of the tile before is issued once S is ready, so that the next Consumer's S has the tensor core first.
  static constexpr bool pv_after_s = fp8_mma && V.dims.qk > 128;
  using T = typename Kernel::T;
  using Scores = typename Kernel::Scores;
  using Operand = typename Kernel::Operand;
  using Output = typename Kernel::Output;
  using Softmax = SoftmaxOf<V>;
  using MeansIfAny = Pick<V.kv.smooth, Means<V>, NoMeans>;
  using ScalesIfBlocks = Pick<fwd_block_scales(V), ScalesOfBlocks<V>, NoScalesOfBlocks>;

  const FwdParams& params;
  typename Kernel::Smem& smem;
  // The index of its M tile in the q tile of the item whose softmax or epilogue runs. The next item is taken, and its
  // first S issued, while that of the item before is still here: both use next_m_tile_index(). Before the first item it
  // is the Consumer's number, so where Consumers swap M tiles they do so for the first item already.
  int m_tile_index;
  int half;  // of O's columns, where two Consumers share an M tile
  typename Kernel::ItemStage items;
  ConsumerQ<Kernel> q = {smem};
  ConsumerMma<Kernel> mma = {smem, half, {smem.mma_order, m_tile_index}};
  RowMaxMoved row_max_moved;  // FP8 MMAs only
  bool o_begins = true;       // immediate_pv: the next product is not added to what O has
  ScoreMod<V> score_mod;      // of the item
  attn::RowPair q_rows;       // Q that became f16: what its rows are multiplied by
  ScalesIfBlocks scales;      // of the tile whose S is next
  Epilogue<Kernel> epilogue = {params, smem};

  // When P V of tile t - 1 is issued:
  //   variants                                      in an iteration
  //   FP8 MMAs, three Consumers, dim_v above 64     of t - 1, right after its own softmax: immediate_pv.cuh
  //   other FP8 MMAs, head dims above 128           of t, once S of t has completed (pv_after_s)
  //   of these, some (pv_within_softmax)            of t if that is an interior tile, between two halves of its
  //                                                 exponentials: pv_within_softmax.cuh
  //   all others                                    of t, behind S of t, which is still in flight
  // The last are, for item i with the kv tiles 0, 1, ... last, in the order of issue (between two | products overlap):
  //   S(i, 0) | softmax | S(i, 1) P V(i, 0) | softmax | ... | S(i, last) P V(i, last - 1) | softmax |
  //   P V(i, last) S(i + 1, 0) | epilogue of i, softmax of (i + 1, 0) | ...
  // So there is one S for every tile, and one more after the last item. That one multiplies whatever lies in the
  // stages, and its result is discarded: for it the Dispatcher completes an empty stage of q_ring, and the role that
  // fills k_ring an empty stage of that. No V is needed.
  __device__ void run() {
    Scores s;
    Operand p;
    Output o;
    mma.begin();
    WorkItem item = take_item();
    float scale = scale_of(item);
    mma.qk(s, q.tile(), next_m_tile_index(), [] {});  // S of the first item's first tile
    ptx::wgmma_wait<0>();
    mma.pass_turn();
    m_tile_index = next_m_tile_index();

    while (!item.is_end()) {
      Softmax softmax = begin_softmax(scale);
      float o_scale = 1.f;
      if constexpr (token_scales) o_scale = mma.token_factors().o_scale;
      int kv_tile = m_tile_of(item).first_tile();
      first_kv_iteration(item, kv_tile, softmax, s, p);
      q.release_o();
      mma.skip_v(m_tile_of(item).skipped());  // whose K take_item() has skipped
      if constexpr (immediate_pv)
        begin_immediate_pv(item, kv_tile, softmax, p, o);
      else
        o.clear();
      kv_tile = item.kv.next(kv_tile);
      if constexpr (fwd_merges_parts(V))
        kv_loop_of_parts(item, kv_tile, softmax, s, p, o);
      else
        kv_loop(item, item.kv.visited_from(kv_tile), softmax, s, p, o);
      q.advance();

      softmax.complete();
      if constexpr (!immediate_pv) mma.pv(o, p);  // the last of this item
      if constexpr (fp8_mma) promotion().finish(m_tile_of(item).tiles(), softmax, row_max_moved, o);
      const WorkItem finished = release_item();
      const MeansIfAny means(params, finished, m_tile_of(finished), half);
      item = take_item();
      scale = scale_of(item);
      if constexpr (fwd_has_scales(V) && !token_scales) o_scale = o_scale_of<V>(params, finished);
      mma.qk(s, q.tile(), next_m_tile_index(), [] {});    // the first of the next
      if constexpr (!immediate_pv) ptx::wgmma_wait<1>();  // O is ready, S is not
      mma.pass_turn();
      if constexpr (!immediate_pv) mma.release_v();
      if constexpr (V.kv.smooth) means.add(params, finished, softmax, o_scale, o);
      epilogue.run(finished, m_tile_index, half, q, softmax, o_scale, o);
      ptx::wgmma_wait<0>();  // S is ready
      m_tile_index = next_m_tile_index();
    }
    epilogue.wait();
  }

  // All tiles of a sequence of tiles; the one visited before them has had its S and its softmax.
  __device__ __forceinline__ void kv_loop(const WorkItem& item, TileSequence<int> tiles, Softmax& softmax, Scores& s,
                                          Operand& p, Output& o) {
    int kv_tile = tiles.first();
    if constexpr (V.mask != Mask::none) {
      const int lowest_upper_boundary = m_tile_of(item).lowest_upper_boundary_tile(tiles);
      for (; kv_tile >= lowest_upper_boundary; kv_tile = tiles.next(kv_tile))
        kv_iteration</*Boundary=*/true>(item, kv_tile, softmax, s, p, o);
    }
    int lowest_interior = tiles.last();
    if constexpr (bounded_below(V.mask)) lowest_interior = m_tile_of(item).lowest_interior_tile(tiles);
    for (; kv_tile >= lowest_interior; kv_tile = tiles.next(kv_tile))
      kv_iteration</*Boundary=*/false>(item, kv_tile, softmax, s, p, o);
    if constexpr (bounded_below(V.mask))
      for (; tiles.not_past_last(kv_tile); kv_tile = tiles.next(kv_tile))
        kv_iteration</*Boundary=*/true>(item, kv_tile, softmax, s, p, o);
  }

  // The first tile: its S is there, and there is no O yet.
  __device__ void first_kv_iteration(const WorkItem& item, int kv_tile, Softmax& softmax, Scores& s, Operand& p) {
    if constexpr (!immediate_pv && !token_scales) release_k(item, kv_tile);
    modify_scores(item, kv_tile, softmax, s);
    if (V.mask != Mask::none || (kv_tile + 1) * V.tiles.kv > m_tile_of(item).seq_kv())
      m_tile_of(item).mask_out(s, kv_tile);
    scales.read(params, item.kv.next(kv_tile));
    softmax.exact_step(s, m_tile_of(item).template headroom<Softmax>(kv_tile));
    round_weights(p, s);
    if constexpr (token_scales) release_k(item, kv_tile);
  }

  // One kv tile in steady state. Between the issue of the two products and the wait for P V lies the softmax: P V runs
  // under it, and it runs under the products of the other M tiles.
  // Where there is a guard, K of the tile is released only after it has passed, since recompute_scores() multiplies K
  // again; so a warp may wait for V while it still holds K. With token scales a warp holds the stage of K until P is
  // rounded, because the factors of the tile's rows lie in the same stage.
  // No deadlock: iterations count up, and iteration t needs K(t) and V(t - 1). A warp that enters iteration t has
  // released K(t - 1), V(t - 2) and everything before. So with rings of two stages there is always room for K(t) and
  // V(t - 1), even for the slowest warp. Between two items: MTile::first_tile().
  template <bool Boundary>
  __device__ __forceinline__ void kv_iteration(const WorkItem& item, int kv_tile, Softmax& softmax, Scores& s,
                                               Operand& p, Output& o) {
    if constexpr (immediate_pv) return kv_iteration_immediate_pv<Boundary>(item, kv_tile, softmax, s, p, o);
    mma.qk(s, q.tile(), m_tile_index, [&] { set_scales(softmax); });  // S of this tile
    if (!pv_after_s) mma.pv(o, p);                                    // O += P V of the tile before
    scales.read(params, item.kv.next(kv_tile));
    ptx::wgmma_wait<pv_after_s ? 0 : 1>();  // S is ready, P V is not
    mma.pass_turn();
    if (pv_after_s && (Boundary || !pv_within_softmax(V))) mma.pv(o, p);
    modify_scores(item, kv_tile, softmax, s);
    attn::RowPair rescale;
    bool moved = true;  // the row max of some row, by the step or because S was computed again
    if constexpr (Boundary || V.batch_invariant) {
      if constexpr (!token_scales) release_k(item, kv_tile);
      if constexpr (Boundary) m_tile_of(item).mask_out(s, kv_tile);
      rescale = softmax.exact_step(s, m_tile_of(item).template headroom<Softmax>(kv_tile));
      if constexpr (V.batch_invariant) moved = !__all_sync(~0u, rescale.top == 1.f && rescale.bottom == 1.f);
      finish_pv(p, s);
      if constexpr (token_scales) release_k(item, kv_tile);
    } else if constexpr (reads_8_bit) {
      const auto guess = guess_of(softmax, s, p, o);
      moved = !softmax.holds(guess);
      finish_pv(p, s);
      if (moved) {
        if (softmax.correct(s, guess, rescale) == attn::GuardResult::recompute)
          rescale = recompute_scores(item, kv_tile, softmax, s);
        round_weights(p, s);
      } else {
        softmax.keep(guess);
      }
      release_k(item, kv_tile);
    } else {
      const attn::GuardResult result = softmax.guarded_step(s, rescale);
      moved = result != attn::GuardResult::kept;
      if (result == attn::GuardResult::recompute) rescale = recompute_scores(item, kv_tile, softmax, s);
      release_k(item, kv_tile);  // not before: K may be needed again
      finish_pv(p, s);
    }
    if (moved) o.scale_rows(rescale.top, rescale.bottom);
    if constexpr (fp8_mma) {
      if (moved) row_max_moved.all();
      if (Promotion<V>::due(kv_tile, m_tile_of(item).tiles()))
        promotion().promote(kv_tile, m_tile_of(item).tiles(), softmax, row_max_moved, o);
    }
  }

  // S of a tile whose weights are lost. Where registers are full, the product needs some that are spilled here by hand,
  // so that the compiler does not spill them in the loop.
  __device__ __forceinline__ attn::RowPair recompute_scores(const WorkItem& item, int kv_tile, Softmax& softmax,
                                                            Scores& s) {
    volatile float aside[4];
    if constexpr (Kernel::Registers::crowded) softmax.save(aside);
    mma.qk_again(s, q.tile(), m_tile_index);
    if constexpr (Kernel::Registers::crowded) softmax.restore(aside);
    // Block variants keep this tile's scales in the softmax: `scales` already has the next tile's.
    if constexpr (reads_8_bit) set_scales(softmax);
    modify_scores(item, kv_tile, softmax, s);
    return softmax.exact_step(s, {Softmax::headroom_again, Softmax::headroom_again});
  }

  // P takes the registers that P V of the tile before has read.
  __device__ __forceinline__ void finish_pv(Operand& p, const Scores& s) {
    ptx::wgmma_wait<0>();  // O is ready
    mma.release_v();
    round_weights(p, s);
  }
  __device__ __forceinline__ void round_weights(Operand& p, const Scores& s) const {
    if constexpr (token_scales)
      tile::round_scaled_to<T>(p, s, mma.token_factors().v);
    else
      tile::round_to<T>(p, s);
  }
  // The scales of its keys come before what modifies scores.
  __device__ __forceinline__ void modify_scores(const WorkItem& item, int kv_tile, Softmax& softmax,
                                                Scores& s) const {
    if constexpr (token_scales) tile::scale_columns(s, mma.token_factors().k);
    score_mod.apply(params, s, softmax, m_tile_of(item), kv_tile);
  }

  // ---- Variants that do it otherwise ----

  // pv_within_softmax.cuh
  __device__ __forceinline__ auto guess_of(Softmax& softmax, Scores& s, const Operand& p, Output& o);
  // immediate_pv.cuh
  __device__ __forceinline__ void begin_immediate_pv(const WorkItem& item, int kv_tile, const Softmax& softmax,
                                                     const Operand& p, Output& o);
  __device__ __forceinline__ void multiply_v_immediately(const WorkItem& item, int kv_tile, const Softmax& softmax,
                                                         const Operand& p, Output& o);
  template <bool Boundary>
  __device__ __forceinline__ void kv_iteration_immediate_pv(const WorkItem& item, int kv_tile, Softmax& softmax,
                                                            Scores& s, Operand& p, Output& o);
  // kv_loop_of_parts.cuh
  __device__ __forceinline__ void kv_loop_of_parts(const WorkItem& item, int kv_tile, Softmax& softmax, Scores& s,
                                                   Operand& p, Output& o);

  // ---- Items ----

  __device__ MTile<V> m_tile_of(const WorkItem& item) const { return {params, item, m_tile_index}; }
  __device__ int next_m_tile_index() const {  // of its M tile in the next item
    return swaps_m_tiles(V) ? Kernel::consumer_warpgroups - 1 - m_tile_index : m_tile_index;
  }
  // The Consumer's number; of two that share an M tile, that of the first.
  __device__ int consumer() const {
    static_assert(!swaps_m_tiles(V));
    return m_tile_index;
  }
  __device__ Promotion<V> promotion() const { return {params, consumer()}; }
  __device__ __forceinline__ void release_k(const WorkItem& item, int kv_tile) {
    mma.release_k();
    if (item.kv.is_last(kv_tile)) q.release();
  }

  // Waits for the next item, passes by the K tiles that its M tile skips, and waits for its Q. The shuffles tell the
  // compiler that the values are the same for the whole warp.
  __device__ WorkItem take_item() {
    items.wait(smem.item_ring);
    WorkItem item = smem.items[items.stage];
    item.q_tile = __shfl_sync(~0u, item.q_tile, 0);
    item.kv.begin = __shfl_sync(~0u, item.kv.begin, 0);
    item.kv.end = __shfl_sync(~0u, item.kv.end, 0);
    score_mod.prefetch(params, item);
    const MTile<V> next{params, item, next_m_tile_index()};
    scales.begin(params, item, next.first_tile());
    mma.skip_k(next.skipped());
    q.wait();
    if constexpr (fwd_converts_q(V)) q_rows = queries_in_f16<V>(params, item, q.tile(), next_m_tile_index(), half);
    return item;
  }
  // The item that is finished, read from shared memory again, so that what only the epilogue needs spends no registers
  // in the loop.
  __device__ WorkItem release_item() {
    const WorkItem item = smem.items[items.stage];
    __syncwarp();
    items.release_and_advance(smem.item_ring);
    return item;
  }

  // ---- Scales ----

  // Read early, for it comes from memory. item may be the next one already: where Consumers swap M tiles, the scale
  // is the head's and depends on no M tile.
  __device__ float scale_of(const WorkItem& item) const {
    return fwd_has_item_scale(V) && !item.is_end() ? scale_of_scores<V>(params, item, m_tile_of(item)) : 0.f;
  }
  // mma.scales() and scales.next are attn::TileScales, by one convention each.
  __device__ Softmax begin_softmax(float scale) const {
    if constexpr (fwd_converts_q(V)) return Softmax(attn::positive_product(q_rows, scale), mma.scales());
    if constexpr (reads_8_bit && !fwd_converts_q(V)) return Softmax(scale, mma.scales());
    if constexpr (fwd_block_scales(V)) return Softmax(scales.next);
    if constexpr (!reads_8_bit && !fwd_block_scales(V))
      return Softmax{fwd_dequantised_by_earlier_launch(V) ? attn::of_all_rows(scale)
                                                          : ScoreMod<V>::scale_log2(params)};
  }
  __device__ __forceinline__ void set_scales(Softmax& softmax) const {
    if constexpr (reads_8_bit) softmax.set_scales(mma.scales());
    if constexpr (fwd_block_scales(V)) softmax.set_scales(scales.next);
  }
};

}  // namespace froghopper::fwd

// The members that are defined elsewhere.
#include "device/fwd/immediate_pv.cuh"
#include "device/fwd/kv_loop_of_parts.cuh"
#include "device/fwd/pv_within_softmax.cuh"
