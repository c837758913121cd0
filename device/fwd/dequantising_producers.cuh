// SPDX-License-Identifier: Apache-2.0
// device/fwd: the roles that move 8-bit K and V that are multiplied as f16 (fwd_dequantises_on_load). forward.cuh says
// how the roles act together. Kernel is Forward of a variant.
//
// Every e4m3 and every e5m2 value is an f16 value too, so dequantising is exact, infinities and NaN included; scales
// go elsewhere, K's into the factor of the scores and V's into the weights (device/attn/scaled_softmax.cuh).
//
// StoredLoader -- stored_ring --> Dequantisers -- k_ring, v_ring --> Consumers.
//
// No deadlock. K and V tiles pass through all rings in one order, K of a tile before its V. The StoredLoader waits only
// for an empty stage, a Dequantiser only for a full one and an empty one. So it suffices that k_ring and v_ring have
// room for the tile that the slowest Consumer warp waits for. In iteration t that is K(t) or V(t - 1), and the warp has
// released K(t - 1), V(t - 2) and everything before: in rings of two stages there is room for both. Between two items
// it holds the last V of one while it skips the first K tiles of the next, stages - 1 at most (MTile::first_tile). The
// K that it needs comes after as many V tiles as it skips: with the one that it holds they are no more than there are
// stages.
#pragma once
#include "contract/fields.h"
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "contract/types.h"
#include "device/attn/element.cuh"
#include "device/fwd/kv_source.cuh"
#include "device/fwd/producers.cuh"
#include "device/fwd/scales.cuh"
#include "device/fwd/stored_tiles.cuh"
#include "device/fwd/token_scales.cuh"
#include "device/fwd/work_item.cuh"
#include "device/ptx/async_copy.cuh"
#include "device/ptx/fp8.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/registers.cuh"
#include "device/ptx/shared_memory.cuh"
#include "device/ptx/types.cuh"
#include "device/tile/shared_tile.cuh"

namespace froghopper::fwd {

template <FwdVariant V>
using ScalesOfTiles = Pick<V.kv.token_scales, NoScalesAhead, ScalesAhead<V>>;

// Loads K and V as they are in memory, one after the other, K of a tile with its scales before its V: one thread, or a
// warp where K and V are paged.
template <class Kernel>
struct StoredLoader {
  static constexpr FwdVariant V = Kernel::variant;

  const FwdParams& params;
  typename Kernel::Smem& smem;
  typename Kernel::ItemStage items;
  typename Kernel::StoredStage stored;

  __device__ void run() {
    while (true) {
      const WorkItem item = take_item_copy<Kernel>(smem, items);
      if (item.is_end()) return;
      KvSource<V, KvSide::k> keys(params, item);
      KvSource<V, KvSide::v> values(params, item);
      const int fetch_tile = defers_fetch<V>(params, item) ? fetch_at(item) : -1;
      ScalesOfTiles<V> scales(params, item, item.kv.first());
      for (const int kv_tile : item.kv.in_order()) {
        if (kv_tile == fetch_tile && is_leading_thread<V>()) ptx::mbarrier_arrive(&smem.fetch_next);
        stored.wait_room(smem.stored_ring);
        if (is_leading_thread<V>()) smem.stored_scales[stored.stage] = scales.of_tile();
        scales.read(params, item, item.kv.next_or_last(kv_tile));
        load(&Kernel::StoredTiles::k, keys, kv_tile);
        stored.wait_room(smem.stored_ring);
        load(&Kernel::StoredTiles::v, values, kv_tile);
      }
    }
  }

  template <class Tile, KvSide Side>
  __device__ void load(Tile Kernel::StoredTiles::*tile, KvSource<V, Side>& source, int kv_tile) {
    ptx::u64* full = announce_loads<V>(stored, smem.stored_ring, Tile::bytes);
    source.load(smem.stored[stored.stage].*tile, full, kv_tile);
    stored.advance();
  }
};

// The same where K and V are paged and a second warp is free: a warp for K and one for V, which alternate in the ring.
// To issue the loads of a tile takes as long as to read the tile.
// With an odd number of stages each warp fills every stage, and the parity is unambiguous all the same. Number the
// tiles by their position in the ring: the warp of K fills the even positions, that of V the odd ones. A warp that
// waits for room for position p has filled p - 2, so position p - 2 - stages was empty. Stages are emptied in the order
// of the ring, and there are two or more; so position p - 2 x stages, which had the stage of p two laps ago, is
// empty too, and the barrier is at most one phase behind the one that the warp waits for.
template <class Kernel, KvSide Side>
struct StoredLoaderOf {
  static constexpr FwdVariant V = Kernel::variant;

  const FwdParams& params;
  typename Kernel::Smem& smem;
  typename Kernel::ItemStage items;
  typename Kernel::StoredStage stored;

  __device__ void run() {
    if (Side == KvSide::v) stored.advance();
    while (true) {
      const WorkItem item = take_item_copy<Kernel>(smem, items);
      if (item.is_end()) return;
      KvSource<V, Side> source(params, item);
      const int fetch_tile = Side == KvSide::k && defers_fetch<V>(params, item) ? fetch_at(item) : -1;
      ScalesOfTiles<V> scales(params, item, item.kv.first());
      for (const int kv_tile : item.kv.in_order()) {
        if (kv_tile == fetch_tile && is_leading_thread<V>()) ptx::mbarrier_arrive(&smem.fetch_next);
        stored.wait_room(smem.stored_ring);
        if (Side == KvSide::k && is_leading_thread<V>()) smem.stored_scales[stored.stage] = scales.of_tile();
        if (Side == KvSide::k) scales.read(params, item, item.kv.next_or_last(kv_tile));
        ptx::u64* full = announce_loads<V>(stored, smem.stored_ring, bytes());
        if constexpr (Side == KvSide::k)
          source.load(smem.stored[stored.stage].k, full, kv_tile);
        else
          source.load(smem.stored[stored.stage].v, full, kv_tile);
        stored.advance(), stored.advance();
      }
    }
  }

 private:
  static constexpr int bytes() {
    return Side == KvSide::k ? decltype(Kernel::StoredTiles::k)::bytes : decltype(Kernel::StoredTiles::v)::bytes;
  }
};

// What the warps of loaders do.
template <class Kernel>
__device__ __forceinline__ void load_stored_tiles(const FwdParams& params, typename Kernel::Smem& smem, int warp) {
  if constexpr (Kernel::stored_loaders == 2) {
    if (warp == 1) StoredLoaderOf<Kernel, KvSide::k>{params, smem}.run();
    if (warp == 2) StoredLoaderOf<Kernel, KvSide::v>{params, smem}.run();
  } else if (is_loader_thread<Kernel::variant>(1)) {
    StoredLoader<Kernel>{params, smem}.run();
  }
}

// Stored tiles -> stages of k_ring and v_ring, each warp an equal number of rows: two, or four where they are a
// warpgroup of their own (fwd_dequantises_in_four_warps).
//
// A warp takes 8 rows and 64 columns at a time: a lane has 16 values, one unit of a stored row and two of a wide one.
// The 8 lanes that shared memory serves at once have 4 units of row r and 4 of row r ^ 5. Both swizzles permute units
// by the row: units 0 to 3 of rows that differ in bit 2, and units of one parity of rows that differ in bit 0, lie in
// different banks, so neither load nor store meets another one there.
template <class Kernel>
struct Dequantiser {
  static constexpr FwdVariant V = Kernel::variant;
  using From = typename attn::Element<V.kv.dtype>::type;
  static constexpr int warps = Kernel::v_producer_warps;

  const FwdParams& params;
  typename Kernel::Smem& smem;
  int warp;  // number of this one
  typename Kernel::ItemStage items;
  typename Kernel::StoredStage stored;
  typename Kernel::KvStage at;  // in k_ring, and then in v_ring

  __device__ void run() {
    if constexpr (V.kv.token_scales)
      run_with_token_scales();
    else
      run_with_tile_scales();
    at.wait_room(smem.k_ring);  // the Consumers' last S multiplies what lies there and is not looked at
    if (lane() == 0) at.arrive_full(smem.k_ring);
  }

  __device__ __forceinline__ void run_with_tile_scales() {
    while (true) {
      const int tiles = take_tile_count<Kernel>(smem, items);
      if (tiles == 0) return;
#pragma unroll 1
      for (int t = 0; t < tiles; ++t)
        dequantise_tile([&] {
          if (warp == 0 && lane() == 0) smem.scales[at.stage] = smem.stored_scales[stored.stage];
        });
    }
  }
  __device__ __forceinline__ void run_with_token_scales() {
    while (true) {
      items.wait(smem.item_ring);
      const WorkItem item = smem.items[items.stage];
      __syncwarp();
      items.release_and_advance(smem.item_ring);
      if (item.is_end()) break;
      if (warp == 0) {
        TokenScales<V> scales(params, item, smem.row_scales);
        for (int left = item.kv.count(); left > 0; --left)
          dequantise_tile([&] { scales.put(smem.factors[at.stage], smem.scales[at.stage]); });
      } else {
        for (int left = item.kv.count(); left > 0; --left) dequantise_tile([] {});
      }
    }
    ptx::cp_async_wait<0>();  // none is left when the CTA ends
  }

  // K of a tile, whose scales put_scales() leaves next to it, and V.
  template <class PutScales>
  __device__ __forceinline__ void dequantise_tile(const PutScales& put_scales) {
    stored.wait(smem.stored_ring);
    at.wait_room(smem.k_ring);
    put_scales();
    dequantise(smem.stored[stored.stage].k, smem.k[at.stage]);
    hand_over(smem.k_ring);
    stored.wait(smem.stored_ring);
    at.wait_room(smem.v_ring);
    dequantise(smem.stored[stored.stage].v, smem.v[at.stage]);
    hand_over(smem.v_ring);
    at.advance();
  }

  // TMA writes the stored stage again and wgmma reads the wide one: both behind what this warp did there.
  __device__ void hand_over(typename Kernel::KvRing& ring) {
    ptx::fence_proxy_async_shared();
    __syncwarp();
    stored.release_and_advance(smem.stored_ring);
    if (lane() == 0) at.arrive_full(ring);
  }

  // `ahead` loads are on their way at once: they wait behind what wgmma reads, for hundreds of cycles.
  template <int Rows, int Cols>
  __device__ __forceinline__ void dequantise(tile::SharedTile<Rows, Cols, 1>& from,
                                             tile::SharedTile<Rows, Cols>& to) const {
    using From8 = tile::SharedTile<Rows, Cols, 1>;
    using To16 = tile::SharedTile<Rows, Cols>;
    constexpr int blocks_per_panel = Rows / 8 / warps, blocks = To16::panels * blocks_per_panel;
    constexpr int ahead =
        blocks < Kernel::Registers::dequantised_ahead ? blocks : Kernel::Registers::dequantised_ahead;
    const ptx::u32 unit = lane() % 4, row = lane() / 8 ^ (lane() & 4 ? 5 : 0), first = warp * (Rows / warps) + row;
    const ptx::u32 from_row[2] = {from.row(0, first) + from.unit(unit, row),
                                  from.row(0, first) + from.unit(unit + 4, row)};
    const ptx::u32 to_even = to.row(0, first) + to.unit(2 * unit, row);
    const ptx::u32 to_odd = to.row(0, first) + to.unit(2 * unit + 1, row);
    ptx::u32 x[ahead][4];
    const auto load = [&](int block) {
      const int panel = block / blocks_per_panel, down = block % blocks_per_panel * 8 * panel_row_bytes;
      ptx::ld_shared_v4(x[block % ahead], from_row[panel % 2] + panel / 2 * From8::panel_bytes + down);
    };
#pragma unroll
    for (int block = 0; block < ahead; ++block) load(block);
#pragma unroll
    for (int block = 0; block < blocks; ++block) {
      const auto& y = x[block % ahead];
      const int down = block / blocks_per_panel * To16::panel_bytes + block % blocks_per_panel * 8 * panel_row_bytes;
      dequantise_and_store(to_even + down, y[0], y[1]);
      dequantise_and_store(to_odd + down, y[2], y[3]);
      if (block + ahead < blocks) load(block + ahead);
    }
  }

  // 8 values to 16 bytes.
  static __device__ __forceinline__ void dequantise_and_store(ptx::u32 to, ptx::u32 low, ptx::u32 high) {
    const ptx::u32 wide[4] = {ptx::cvt_f16x2<From>(low, false), ptx::cvt_f16x2<From>(low, true),
                              ptx::cvt_f16x2<From>(high, false), ptx::cvt_f16x2<From>(high, true)};
    ptx::st_shared_v4(to, wide);
  }

  static __device__ __forceinline__ ptx::u32 lane() { return ptx::thread_here() % 32; }
};

}  // namespace froghopper::fwd
