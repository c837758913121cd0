// SPDX-License-Identifier: Apache-2.0
// Forward attention on Hopper: O = softmax(scale Q K^T + mask) V. (In code, V is the variant and v the matrix.)
//
// Work      A work item is one (sequence, query head, q tile), with split-KV one part of its keys. One Consumer owns
//           one 64-row M tile of a q tile. The grid is persistent: every CTA fetches items until none is left.
//           contract/order.h has their order, device/attn/tickets.cuh how a CTA fetches one, schedule.cuh which kv
//           tiles it visits. An M tile skips those of them that only M tiles with larger row numbers attend to.
//           PackGQA, split-KV: contract/split.h, rows.cuh, combine.cuh; maxlogit: max_logit.cuh.
// A tile    Loaders wait for room in k_ring and v_ring, expect the bytes of K and V of a kv tile and start the loads,
//           which complete the barrier. Where the rows lie, in a tensor or in pages that a block table names, only
//           kv_source.cuh knows; where rows have scales of their own (token_scales.cuh), that file reads the block
//           table too. A Consumer waits for K, issues S = Q K^T and behind it O += P V of the tile before. It waits for
//           S, modifies it (score_mod.cuh), masks it, and makes weights of it in its place (device/attn/softmax.cuh),
//           which may move the row max and so rescale O. It releases K, waits for P V of the tile before, releases that
//           V, and rounds the weights to P. In the next iteration it waits for V and issues P V behind the next S.
// Roles     Dispatcher     warp 0, the scheduler warp; fetches items, publishes them, loads Q.
//           Loader         warps 1 and 2, one thread each, or the whole warp if K and V are paged; load K, or V
//                          (kv_source.cuh)
//           PaddingFiller  warp 3, ragged variants, where O is not merged for later calls; fills the rows of o and lse
//                          that belong to no sequence. Where warp 3 transposes or dequantises, it does that first.
//           Consumer       the last warpgroups, one for each M tile; WGMMA, softmax, store.
//                          Where dim_v is above 256, two Consumers share an M tile: each computes S, and a half of O.
//           Variants with FP8 MMAs have an Fp8Loader and Transposers instead: device/fwd/fp8_producers.cuh. Variants
//           that dequantise K and V have StoredLoaders and Dequantisers: device/fwd/dequantising_producers.cuh. Stored
//           tiles, in stored_ring, are 8-bit tiles as they are in memory, before they are transposed or dequantised.
//           Registers of a thread with 1/2/3/4 Consumers: 40/40/32/32 in warpgroup 0, 232/232/160/112 in a Consumer,
//           where 16-bit K and V are read, without PackGQA and not by cp.async (KvLayout::page_rows). The others:
//           registers_of.cuh.
// Order     The kv tiles are visited in descending key order: the boundary tiles of a mask's upper bound (exact online
//           softmax), then the interior tiles (no mask, guarded softmax), then the boundary tiles of a window's lower
//           bound (exact); device/attn/softmax.cuh has both kinds of softmax. Variants that read 8-bit K and V round
//           the weights of an interior tile before the guard has passed (device/attn/scaled_softmax.cuh). Consumers
//           issue FP8 MMAs one after the other (mma_order.cuh); three of them with dim_v above 64 have no registers for
//           both S and P (immediate_pv.cuh); O is promoted to an fp32 sum every fwd_promotion_tiles (promotion.cuh).
// Overlap   S = Q K^T of the next tile and O += P V of this one are in flight together; the softmax of the next tile
//           runs while P V finishes. The overlap continues across work items: the last P V of one and the first S of
//           the next are in flight together, and O is stored meanwhile.
// Launches  Programmatic dependent launch (device/ptx/launch.cuh): the kernel triggers the start of the next one
//           (griddepcontrol.launch_dependents) after its last ticket. With split-KV it does so before its first item,
//           since the next kernel is combine, which is small and waits itself (griddepcontrol.wait). Where PackGQA has
//           one part there is no combine, and whatever kernel comes next is let start as early. That is safe: a kernel
//           with the launch attribute waits itself, and one without it begins after this one has ended.
//           A ragged problem may be two launches, the sequences with many rows first. The second one (overlaps_another)
//           does not wait for the first before it starts. That is safe for two reasons. The first, which has no
//           combine, triggers only after its own wait, so all older kernels have ended and what they wrote is visible.
//           And the two write disjoint rows, and have counters of tickets and regions of the workspace of their own.
//           The Dispatcher of the second waits at its end, so that whoever waits for the second launch waits for both.
// Barriers  A wait on full has the parity Cursor::phase, one on empty the other parity (device/tile/ring.cuh);
//           those who wait for fetch_next and mma_order keep a parity bit each.
//           barrier         arrivals on full                        arrivals on empty
//           item_ring       1, the Dispatcher                       one per warp that reads items: the Loaders,
//                                                                   Transposers and Dequantisers once they have a copy,
//                                                                   Consumers before their epilogue
//           q_ring          1, and the bytes that it announces      one per Consumer warp, after the item's last S;
//                                                                   with OStore::through_q in the first iteration of
//                                                                   the next item, once TMA has read O of this one from
//                                                                   the stage (consumer_q.cuh)
//           k_ring, v_ring  1, and the bytes that it announces;     one per Consumer warp
//                           33 with KvLayout::page_rows
//                           (kv_source.cuh); V that is transposed,
//                           K and V that are dequantised: one per
//                           warp that does it
//           stored_ring     1, and its bytes; or 33, likewise       one per Transposer or Dequantiser warp
//           mma_order       FP8 MMAs only: one arrival per warp of the Consumer before (mma_order.cuh)
//           fetch_next      the loader of K arrives once per long item (order.deferred_tiles), when few of its tiles
//                           are left. The Dispatcher waits for that before it fetches the next ticket, so that a CTA
//                           does not hold an item that another could begin. Both decide by the same published item,
//                           and the loader cannot arrive again before another one is published: one parity bit is
//                           enough.
//           barriers.cuh has the counts. The functions are
//             item_ring       fill: Dispatcher::publish; wait and release: take_item_copy, take_tile_count
//                             (producers.cuh), Dequantiser::run_with_token_scales; Consumer::take_item, release_item
//             q_ring          fill: Dispatcher::load_q; wait: ConsumerQ::wait; release: ConsumerQ::release, release_o.
//                             After the last item, for the S that is discarded (consumer.cuh): an empty stage, by
//                             begin_fill in Dispatcher::run_by_tickets, run_evenly, run_single_item
//             k_ring, v_ring  fill: announce_loads (kv_source.cuh), Transposer::run, Dequantiser::hand_over; wait:
//                             ConsumerMma::qk, wait_v; release: ConsumerMma::release_k, release_v; both: skip
//                             (mma_order.cuh). After the last item, likewise: announce_nothing (kv_source.cuh),
//                             Dequantiser::run
//             stored_ring     fill: announce_loads; wait and release: Transposer::run, Dequantiser::dequantise_tile
//             mma_order       arrive: MmaOrder::pass_turn; wait: MmaOrder::wait_turn
//             fetch_next      arrive: run() or load() of the loader of K; wait: Dispatcher::load_q_and_fetch
//           In iterations with a guard K is held until the guard has passed, because a warp whose weights left fp32's
//           range computes S again. In 16-bit variants Consumers wait for each other in the main loop only through the
//           rings: one may be ahead of another by as many tiles as a ring has stages.
//           Why stored_ring cannot hang: fp8_producers.cuh, dequantising_producers.cuh.
//           Named barriers. Where a variant has two of these, the same threads are at both, in the same order.
//           number                   threads            use
//           of the warpgroup         a Consumer         its O leaves through Q's stage (epilogue.cuh)
//           1 + m_tile_index         an M tile's        its Q becomes f16 (queries_in_f16.cuh)
//                                    Consumers
//           1                        the two Consumers  O is merged (final_epilogue.cuh); both have looked at Q, before
//                                    of an M tile       one changes it (queries_in_f16.cuh)
// Shared    q[1 or 2] | k[stages] | v[stages] | items[2] | rings | fetch_next | mma_order. Variants that read 8-bit K
//           and V have stored[fwd_stored_stages] | scales[stages] | stored_ring | stored_scales[fwd_stored_stages] in
//           front of that, and factors[stages] and row_scales where rows of K and V have scales (token_scales.cuh);
//           others may have a buffer of O (fwd_o_store).
// Folders   What a folder below this one is for, and what its files may know, is said at the head of one of them:
//           device/attn/mask.cuh, device/tile/shared_tile.cuh, device/ptx/types.cuh, contract/types.h.
#pragma once
#include "contract/fields.h"
#include "contract/fwd_legality.h"
#include "contract/fwd_params.h"
#include "contract/fwd_smem.h"
#include "contract/fwd_variant.h"
#include "contract/types.h"
#include "device/attn/element.cuh"
#include "device/fwd/barriers.cuh"
#include "device/fwd/consumer.cuh"
#include "device/fwd/dequantising_producers.cuh"
#include "device/fwd/fp8_producers.cuh"
#include "device/fwd/kv_source.cuh"
#include "device/fwd/mma_order.cuh"
#include "device/fwd/padding_filler.cuh"
#include "device/fwd/producers.cuh"
#include "device/fwd/registers_of.cuh"
#include "device/fwd/stored_tiles.cuh"
#include "device/fwd/work_item.cuh"
#include "device/ptx/launch.cuh"
#include "device/ptx/registers.cuh"
#include "device/ptx/types.cuh"
#include "device/tile/accum.cuh"
#include "device/tile/ring.cuh"
#include "device/tile/shared_tile.cuh"

namespace froghopper::fwd {

template <FwdVariant V>
struct Forward {
  static constexpr FwdVariant variant = V;
  static_assert(why_invalid(V) == nullptr);
  static constexpr bool fp8_mma = fwd_fp8_mma(V), dequantises_on_load = fwd_dequantises_on_load(V),
                        reads_8_bit = fwd_reads_8_bit(V);
  static constexpr int bytes = fwd_element_bytes(V);
  using T = Pick<dequantises_on_load, ptx::f16, typename attn::Element<V.dtype>::type>;  // what is multiplied
  using QTile = tile::SharedTile<V.tiles.q, V.dims.qk, bytes>;
  using KTile = tile::SharedTile<V.tiles.kv, V.dims.qk, bytes>;
  using VTile =
      Pick<fp8_mma, tile::SharedTile<V.dims.v, V.tiles.kv, bytes>, tile::SharedTile<V.tiles.kv, V.dims.v, bytes>>;
  using Scores = tile::Accum<V.tiles.kv>;  // S: 64 query rows x one kv tile; then, in its place, the weights
  using Operand = Pick<fp8_mma, tile::OperandA8<V.tiles.kv>, tile::OperandA<V.tiles.kv>>;  // P
  using Output = tile::Accum<fwd_columns(V)>;  // O, unnormalised until the epilogue

  static constexpr int consumer_warpgroups = fwd_consumers(V), threads = fwd_threads(V),
                       producer_warpgroups = fwd_producer_warpgroups(V);
  using Registers = RegistersOf<V>;
  // Warps that fill the stages of V: they transpose or dequantise. A Loader of V counts as one.
  static constexpr int v_producer_warps = !reads_8_bit ? 1 : Registers::dequantising_warpgroup ? 4 : 2;
  static constexpr int stored_loaders =
      V.kv.layout != KvLayout::contiguous && Registers::dequantising_warpgroup ? 2 : 1;
  // 16-bit products overlap better without an order.
  using MmaOrderIfAny = Pick<fp8_mma, MmaOrder<consumer_warpgroups>, NoMmaOrder>;
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
  struct Empty {};
  static constexpr OStore o_store = fwd_o_store(V);
  struct OwnSmem {
    tile::SharedTile<V.tiles.q, o_own_columns> o;
  };
  using SmemOfStored = Pick<V.kv.token_scales, TokenScalesSmem<V>, StoredSmem<V>>;
  struct Smem : Pick<reads_8_bit, SmemOfStored, Pick<o_store == OStore::through_own_smem, OwnSmem, Empty>> {
    QTile q[q_stages];
    KTile k[V.tiles.stages];
    VTile v[V.tiles.stages];
    WorkItem items[2];
    ItemRing item_ring;
    QRing q_ring;
    KvRing k_ring, v_ring;
    ptx::u64 fetch_next;
    ptx::u64 mma_order[consumer_warpgroups];
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
    // A launch that overlaps with another one waits at its end instead (Launches). Fixed lengths: the Dispatcher finds
    // its first item without reading memory, and waits then.
    const bool waits_at_start = V.ragged ? !params.overlaps_another : warp > 0;
    if (waits_at_start) ptx::wait_for_earlier_kernels();
    if (warp < 4) {
      if constexpr (Registers::uses_setmaxnreg) ptx::setmaxnreg_dec<Registers::of_producer>();
      if (warp == 0) Dispatcher<Forward>{params, smem}.run();
      if constexpr (fp8_mma) {
        if (is_loader_thread<V>(1)) Fp8Loader<Forward>{params, smem}.run();
        if (warp >= 2) Transposer<Forward>{params, smem, warp - 2}.run();
      } else if constexpr (dequantises_on_load) {
        load_stored_tiles<Forward>(params, smem, warp);
        if (warp >= 2 && !Registers::dequantising_warpgroup) Dequantiser<Forward>{params, smem, warp - 2}.run();
      } else {
        if (is_loader_thread<V>(1))
          Loader<Forward, KvSide::k>{params, smem, &smem.fetch_next}.run(smem.k, smem.k_ring);
        if (is_loader_thread<V>(2)) Loader<Forward, KvSide::v>{params, smem, nullptr}.run(smem.v, smem.v_ring);
      }
      if (V.ragged && warp == 3 && (!V.merges_lse || params.sum_of_o.rounds))
        PaddingFiller{params, params.order.pairs / heads_of_items<V>(params),
                      size_of(reads_8_bit ? params.eight_bit.dtype_o : V.dtype)}
            .run();
    } else if (warp < 4 * producer_warpgroups) {
      if constexpr (Registers::dequantising_warpgroup) ptx::setmaxnreg_dec<Registers::of_dequantiser>();
      if constexpr (Registers::dequantising_warpgroup) Dequantiser<Forward>{params, smem, warp - 4}.run();
    } else {
      if constexpr (Registers::uses_setmaxnreg) ptx::setmaxnreg_inc<Registers::of_consumer>();
      const int number = warp / 4 - producer_warpgroups, half = fwd_consumers_per_m_tile(V) > 1 ? number : 0;
      Consumer<Forward>{params, smem, number - half, half}.run();
    }
  }
};

}  // namespace froghopper::fwd
