// SPDX-License-Identifier: Apache-2.0
// device/fwd: the roles that move 8-bit K and V of variants with FP8 MMAs. forward.cuh says how the roles act together.
// Kernel is Forward of a variant.
//
// wgmma reads 8-bit operands only along their inner dimension, and that of P V are the keys: V^T must lie in shared
// memory. Keys within a row of V^T are in the order of tile::OperandA8.
//
// Why stored_ring cannot hang. The Fp8Loader loads K of a tile before its V, which a Consumer needs an iteration later.
// When it waits for room for V of tile t, K of t is already on its way. So the Consumers can reach P V of t - 1, they
// release the stages of V before, and then the Transposers release theirs of stored_ring.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "device/fwd/kv_source.cuh"
#include "device/fwd/producers.cuh"
#include "device/fwd/scales.cuh"
#include "device/fwd/work_item.cuh"
#include "device/ptx/matrix.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/registers.cuh"
#include "device/ptx/shared_memory.cuh"
#include "device/ptx/types.cuh"

namespace froghopper::fwd {

// Loads K with the scales of a tile, and V as it is in memory: one thread, or a warp where K and V are paged. The order
// is that of need, K of a tile before its V: a Consumer multiplies K of tile t while it waits for V of t - 1.
template <class Kernel>
struct Fp8Loader {
  static constexpr FwdVariant V = Kernel::variant;

  const FwdParams& params;
  typename Kernel::Smem& smem;
  typename Kernel::ItemStage items;
  typename Kernel::KvStage k;
  typename Kernel::StoredStage stored;

  __device__ void run() {
    while (true) {
      const WorkItem item = take_item_copy<Kernel>(smem, items);
      if (item.is_end()) break;
      load(item);
    }
    announce_nothing<V>(k, smem.k_ring);  // the Consumers' last S multiplies what lies there and is not looked at
  }

  __device__ void load(const WorkItem& item) {
    KvSource<V, KvSide::k> keys(params, item);
    KvSource<V, KvSide::v> values(params, item);
    const int fetch_tile = defers_fetch<V>(params, item) ? fetch_at(item) : -1;
    ScalesAhead<V> scales(params, item, item.kv.first());
    for (const int kv_tile : item.kv.in_order()) {
      if (kv_tile == fetch_tile && is_leading_thread<V>()) ptx::mbarrier_arrive(&smem.fetch_next);
      k.wait_room(smem.k_ring);
      if (is_leading_thread<V>()) smem.scales[k.stage] = scales.of_tile();
      scales.read(params, item, item.kv.next_or_last(kv_tile));
      ptx::u64* k_full = announce_loads<V>(k, smem.k_ring, Kernel::KTile::bytes);
      keys.load(smem.k[k.stage], k_full, kv_tile);
      k.advance();
      stored.wait_room(smem.stored_ring);
      ptx::u64* v_full = announce_loads<V>(stored, smem.stored_ring, Kernel::StoredTile::bytes);
      values.load(smem.stored[stored.stage], v_full, kv_tile);
      stored.advance();
    }
  }
};

// V -> V^T, by two warps, each every other 32 keys. 32 keys and 16 columns at a time go through registers: of such a
// block ldmatrix gives a lane two keys of two columns four times; a byte permutation makes of them four keys of one
// column; stmatrix writes rows of 16 keys. Both touch every bank once.
template <class Kernel>
struct Transposer {
  static constexpr FwdVariant V = Kernel::variant;
  static constexpr int warps = Kernel::v_producer_warps, keys = V.tiles.kv / warps;  // of one warp
  // Blocks of 32 keys and 16 columns, and how many are on their way at once. Loads wait behind what wgmma reads, for
  // hundreds of cycles, so the next one is asked for as soon as one is stored.
  static constexpr int column_blocks = V.dims.v / 16, blocks = keys / 32 * column_blocks;
  static constexpr int most = Kernel::Registers::transposed_ahead, ahead = blocks < most ? blocks : most;

  const FwdParams& params;
  typename Kernel::Smem& smem;
  int warp;  // number of this one
  typename Kernel::ItemStage items;
  typename Kernel::StoredStage stored;
  typename Kernel::KvStage v;

  __device__ void run() {
    while (true) {
      const int tiles = take_tile_count<Kernel>(smem, items);
      if (tiles == 0) return;
#pragma unroll 1
      for (int t = 0; t < tiles; ++t) {
        stored.wait(smem.stored_ring);
        v.wait_room(smem.v_ring);
        transpose(smem.stored[stored.stage], smem.v[v.stage]);
        ptx::fence_proxy_async_shared();
        __syncwarp();
        stored.release_and_advance(smem.stored_ring);
        if (threadIdx.x % 32 == 0) v.arrive_full(smem.v_ring);
        v.advance();
      }
    }
  }

  __device__ __forceinline__ void transpose(typename Kernel::StoredTile& from, typename Kernel::VTile& to) const {
    const ptx::u32 lane = ptx::thread_here() % 32, row = lane % 8, matrix = lane / 8;
    // Lanes of matrix columns 0 to 3 keep the even column of a pair for the first matrix that is stored, the others the
    // odd one, so that its 8 smem rows differ modulo 8.
    const bool high = lane >= 16;
    const ptx::u32 pick = high ? 0x7531 : 0x6420;
    const ptx::u32 smem_row = 2 * row + (matrix % 2 ^ (row >= 4));
    const ptx::u32 from_row = from.row(0, warp * 32 + lane) + from.unit(0, row);
    const ptx::u32 to_row = to.row(0, smem_row) + to.unit(warp * 2 + matrix / 2, smem_row % 8);
    // Rows begin at 128 bytes, so to move by units within one is an exclusive or of the offset: unit() does no more.
    // Addresses are computed where they are used: where registers are few, they would be spilled.
    ptx::u32 x[ahead][4];
    const auto load = [&](int block) {
      const int key = block / column_blocks * 64, col = block % column_blocks * 16;
      const int panel = col / from.panel_columns * from.panel_bytes, offset = col % from.panel_columns;
      ptx::ldmatrix_x4_trans(x[block % ahead],
                             (ptx::opaque(from_row) ^ offset) + (panel + key * from.panel_row_bytes));
    };
#pragma unroll
    for (int block = 0; block < ahead; ++block) load(block);
#pragma unroll
    for (int block = 0; block < blocks; ++block) {
      const auto& loaded = x[block % ahead];
      ptx::u32 y[4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        y[2 * half] = __byte_perm(loaded[2 * half], loaded[2 * half + 1], pick);
        y[2 * half + 1] = __byte_perm(loaded[2 * half], loaded[2 * half + 1], ptx::opaque(pick) ^ 0x1111);
      }
      const int key = block / column_blocks * 64, col = block % column_blocks * 16;
      const int panel = key / to.panel_columns * to.panel_bytes, offset = key % to.panel_columns;
      ptx::stmatrix_x4((ptx::opaque(to_row) ^ offset) + (panel + col * to.panel_row_bytes), y);
      if (block + ahead < blocks) load(block + ahead);
    }
  }
};

}  // namespace froghopper::fwd
