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
//                           through Q's stage, when it has left, after the next item's first iteration (epilogue.cuh)
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
#include "device/fwd/barriers.cuh"
#include "device/fwd/consumer.cuh"
#include "device/fwd/dequantising_producers.cuh"
#include "device/fwd/fp8_producers.cuh"
#include "device/fwd/immediate_pv.cuh"
#include "device/fwd/kv_loop_of_parts.cuh"
#include "device/fwd/padding_filler.cuh"
#include "device/fwd/producers.cuh"
#include "device/fwd/pv_within_softmax.cuh"
#include "device/fwd/registers_of.cuh"
#include "device/fwd/schedule.cuh"
#include "device/fwd/stored_tiles.cuh"
#include "device/ptx/registers.cuh"
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

  static constexpr int consumers = fwd_consumers(V), threads = fwd_threads(V), producers = fwd_producer_groups(V);
  using Registers = RegistersOf<V>;
  static constexpr int helpers = !scaled ? 1 : Registers::four ? 4 : 2;  // warps that fill V's stages
  static constexpr int stored_loaders = V.kv.in != KvIn::rows && Registers::four ? 2 : 1;
  using MmaOrderIfAny = Pick<fp8_mma, MmaOrder<consumers>, NoMmaOrder>;  // 16-bit products overlap better without
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
      Consumer<Forward>{params, smem, number - half, half}.run();
    }
  }
};

}  // namespace froghopper::fwd
