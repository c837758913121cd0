// SPDX-License-Identifier: Apache-2.0
// device/fwd: where the rows of a tile of K or V are, and the loads that bring them into shared memory. All loaders
// of K and V of the forward kernel ask here; the host's half is KvRows in src/problem/tensors.hpp. The scales of rows
// have a way of their own: a new source needs its addresses in token_scales.cuh too, or why_invalid() forbids the two
// together. There are three sources (KvLayout); the last two are called paged:
//
//   contiguous  The rows of a sequence lie one after the other. One thread issues a TMA box for each panel of a
//               tile (128 bytes of its columns), with all rows of the tile.
//   pages       The rows of a sequence lie in pages of a pool, and a block table names the pages (PagedAttention, Kwon
//               et al. 2023). A box has PageParams::box rows, which divides both the page and the tile, so that no box
//               leaves its page. A warp loads a tile; a box of rows is a lane's, which issues one load for each swizzle
//               panel of it. The lanes' loads are issued one after the other, some 80 cycles each. A box may begin at
//               any row of the tile in shared memory: TMA swizzles by the shared address.
//   page_rows   Pages of which less than 8 rows follow each other, down to single rows. A warp copies the rows by
//               cp.async, 16 bytes a lane, and swizzles them itself (as PagedKVNonTMA in FlashAttention-3). Whoever
//               multiplies them needs a proxy fence first: fence_for_wgmma().
//
// Of paged K and V, lanes read the table for 32 boxes or rows at a time, well before these are loaded. Rows after
// the end of a sequence arrive as zeros (the maps end there, src/runtime/tensor_map.cpp), and their entries in the
// table are never read.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "contract/shared_params.h"
#include "contract/types.h"
#include "device/attn/tma_rows.cuh"
#include "device/fwd/work_item.cuh"
#include "device/ptx/async_copy.cuh"
#include "device/ptx/shared_memory.cuh"
#include "device/ptx/tma.cuh"
#include "device/ptx/types.cuh"

namespace froghopper::fwd {

// Whether this thread of a loader does what one thread does: it takes items, announces bytes, has the next item
// fetched. Only threads of a loader may ask. With KvLayout::contiguous a loader is one thread, so the answer is yes.
template <FwdVariant V>
__device__ __forceinline__ bool is_leading_thread() {
  return V.kv.layout == KvLayout::contiguous || threadIdx.x % 32 == 0;
}

// Whether this thread is of the loader in this warp, which is its first thread, or all of it.
template <FwdVariant V>
__device__ __forceinline__ bool is_loader_thread(int warp) {
  return V.kv.layout == KvLayout::contiguous ? threadIdx.x == 32 * warp : threadIdx.x / 32 == warp;
}

// Arrivals at the barrier of a stage that a loader fills: one by the leading thread; with KvLayout::page_rows each lane
// arrives too, by cp.async.mbarrier.arrive.noinc.
template <FwdVariant V>
constexpr int loader_arrivals = V.kv.layout == KvLayout::page_rows ? 1 + 32 : 1;

// Before the loads of a stage for which there is room. What the leading thread stored in shared memory before this call
// is visible to whoever has waited for the stage.
template <FwdVariant V, class Cursor, class Ring>
__device__ __forceinline__ ptx::u64* announce_loads(Cursor& at, Ring& ring, ptx::u32 bytes) {
  if (is_leading_thread<V>()) {
    if constexpr (V.kv.layout == KvLayout::page_rows)
      at.arrive_full(ring);
    else
      at.expect_bytes(ring, bytes);
  }
  return &ring.full[at.stage];
}

// A last stage with nothing in it.
template <FwdVariant V, class Cursor, class Ring>
__device__ __forceinline__ void announce_nothing(Cursor& at, Ring& ring) {
  if (V.kv.layout != KvLayout::page_rows && !is_leading_thread<V>()) return;
  at.wait_room(ring);
  announce_loads<V>(at, ring, 0);
  if constexpr (V.kv.layout == KvLayout::page_rows) at.arrive_full(ring);
}

// Called after the wait for a stage, before the wgmma that reads it. Only page_rows needs it: cp.async writes through
// the generic proxy and completes asynchronously, so the thread that issues it cannot execute the proxy fence. The
// threads that read do, after the wait for the mbarrier has made the writes visible to them. (For stages that
// Transposers or Dequantisers fill it is redundant: these have fenced.)
template <FwdVariant V>
__device__ __forceinline__ void fence_for_wgmma() {
  if constexpr (V.kv.layout == KvLayout::page_rows) ptx::fence_proxy_async_shared();
}

enum class KvSide { k, v };

// Of an item's K or V. load() is called for the item's tiles in descending key order.
template <FwdVariant V, KvSide Side, KvLayout Layout = V.kv.layout>
struct KvSource {
  static_assert(Layout == KvLayout::contiguous, "a layout has a source of its own");
  const TmaMap& map;
  attn::TmaRows<V.ragged> rows;

  __device__ KvSource(const FwdParams& params, const WorkItem& item)
      : map(Side == KvSide::k ? params.k : params.v),
        rows(kv_head<V>(params, item), item.sequence, params.ragged.cu_kv, item.lengths.kv_first, item.lengths.seq_kv,
             Side == KvSide::k ? params.ragged.k : params.ragged.v) {}

  template <class Tile>
  __device__ void load(Tile& tile, ptx::u64* full, int kv_tile) const {
    rows.load(tile, map, full, kv_tile * V.tiles.kv);
  }
};

// The entry of the table for a row. Entries are read ahead, so also those of keys before a window: these must name a
// page, though its rows are not loaded. Entries beyond the end of the sequence are not read.
struct PageOfRow {
  const PageParams& pages;
  const int* table;  // of the sequence
  int rows;          // valid ones: of the sequence

  __device__ PageOfRow(const FwdParams& params, const WorkItem& item)
      : pages(params.pages),
        table(params.pages.table + item.sequence * params.pages.sequence_stride),
        rows(item.lengths.seq_kv) {}
  __device__ bool is_valid(int row) const { return static_cast<unsigned>(row) < static_cast<unsigned>(rows); }
  __device__ int operator()(int row) const {
    return is_valid(row) ? __ldg(table + row / pages.size * pages.page_stride) : 0;
  }
};

// The boxes are visited in descending key order, 32 at a time: lane l has box l of the present 32, and has read the
// table for box l of the next 32, which have the keys before them.
template <FwdVariant V, KvSide Side>
struct KvSource<V, Side, KvLayout::pages> {
  const FwdParams& params;
  PageOfRow page_of;
  int head;
  int first;  // row of lane 0's box
  // Of this lane's box: how many of its rows are valid, and the index of the granule at which the row after them
  // begins. load() names that row's granule and a TMA row so far below it that the end of the box is out of bounds.
  int rows_here, granule_after;
  int next_page;  // of this lane's box among the next 32

  __device__ KvSource(const FwdParams& params, const WorkItem& item)
      : params(params), page_of(params, item), head(kv_head<V>(params, item)) {
    const int highest_box = (item.kv.first() + 1) * (V.tiles.kv / params.pages.box) - 1;
    first = highest_box / 32 * 32 * params.pages.box;
    hold(page_of(first + lane() * params.pages.box));
  }

  template <class Tile>
  __device__ void load(Tile& tile, ptx::u64* full, int kv_tile) {
    __syncwarp();
    const int begin = kv_tile * V.tiles.kv;
    for (;;) {
      const int row = first + lane() * params.pages.box - begin;
      if (static_cast<unsigned>(row) < V.tiles.kv)
#pragma unroll
        for (int i = 0; i < Tile::panels; ++i)
          ptx::tma_load_5d(tile.panel(i) + row * panel_row_bytes, map(), full, i * Tile::panel_columns,
                           map_rows - rows_here, head, granule_after, map_rows);
      if (first <= begin) return;
      first -= 32 * params.pages.box;
      hold(next_page);
    }
  }

 private:
  // This lane's box, which ends where its page or the sequence does. load() gives TMA row map_rows - rows_here of a
  // dimension of map_rows rows, so that only rows_here of the box lie in bounds (attn::TmaRows).
  __device__ void hold(int page) {
    const PageParams& pages = params.pages;
    const MapGranules& granules = Side == KvSide::k ? params.ragged.k : params.ragged.v;
    const int row = first + lane() * pages.box;
    rows_here = max(0, min(page_of.rows - row, pages.box));
    granule_after = page * granules.batch + (row % pages.size + rows_here) * granules.row;
    next_page = page_of(row - 32 * pages.box);
  }
  __device__ const TmaMap* map() const { return Side == KvSide::k ? &params.k : &params.v; }
  static __device__ int lane() { return threadIdx.x % 32; }
};

// Lane l looks up the pages of the rows l, l + 32, ... of a tile, and has read the table for those of the next tile,
// which has the keys before it. To copy, each lane always has the same columns, 16 bytes wide; where a row has fewer
// than 32 such pieces, the warp copies several rows at once. So 32 copies take one shuffle (the row's granule, from the
// lane that has looked it up), one multiplication (its address) and little more. With more, the rate at which this one
// warp issues copies would be the limit instead of memory. docs/experiments/0051-even-splits.md.
template <FwdVariant V, KvSide Side>
struct KvSource<V, Side, KvLayout::page_rows> {
  static constexpr int rows_of_lane = (V.tiles.kv + 31) / 32;  // in a tile
  static constexpr int units = panels(Side == KvSide::k ? V.dims.qk : V.dims.v, size_of(V.kv.dtype)) * 8;  // of a row
  static constexpr int together = units < 32 ? 32 / units : 1;                                             // rows
  static constexpr int copies = (units + 31) / 32;  // of a lane, of a row
  static_assert(8 % together == 0, "the swizzle repeats after 8 rows");

  const FwdParams& params;
  PageOfRow page_of;
  const char* columns;           // this lane's, in row 0 of page 0 of the item's head
  int next_pages[rows_of_lane];  // of this lane's rows of the tile that load() is called for next

  __device__ KvSource(const FwdParams& params, const WorkItem& item)
      : params(params),
        page_of(params, item),
        columns(static_cast<const char*>(of().data) + kv_head<V>(params, item) * of().head + unit() * 16) {
#pragma unroll
    for (int i = 0; i < rows_of_lane; ++i) next_pages[i] = page_of(row_of(item.kv.first(), i));
  }

  template <class Tile>
  __device__ void load(Tile& tile, ptx::u64* full, int kv_tile) {
    static_assert(Tile::panels * 8 == units);
    const ptx::u32 to = tile.row(unit() / 8, row_of_lane());
#pragma unroll
    for (int i = 0; i < rows_of_lane; ++i) {
      const int my_row = row_of(kv_tile, i);
      const bool valid = page_of.is_valid(my_row);
      const MapGranules& step = Side == KvSide::k ? params.ragged.k : params.ragged.v;
      const int my_granule =
          next_pages[i] * step.batch + my_row % params.pages.size * step.row;  // in granules of the map
      const unsigned rows = __ballot_sync(~0u, valid) >> row_of_lane();
      next_pages[i] = page_of(my_row - V.tiles.kv);
#pragma unroll
      for (int j = 0; j < 32 && 32 * i + j < V.tiles.kv; j += together) {
        const int granule = __shfl_sync(~0u, my_granule, j + row_of_lane());
        const char* const from = columns + granule * static_cast<long long>(granule_bytes());
        const ptx::u32 row = to + (32 * i + j) * panel_row_bytes + Tile::unit(unit() % 8 ^ row_of_lane(), j % 8);
#pragma unroll
        for (int copy = 0; copy < copies; ++copy) {
          if (together * units % 32 != 0 && unit() + 32 * copy >= units) break;  // no column is left for this lane
          const bool zeros = !(rows >> j & 1) || (unit() + 32 * copy) * 16 >= bytes();
          ptx::cp_async_16(row + 4 * copy * Tile::panel_bytes, from + 512 * copy, zeros);
        }
      }
    }
    ptx::cp_async_arrive(full);
  }

 private:
  static __device__ int lane() { return threadIdx.x % 32; }
  static __device__ int unit() { return together > 1 ? lane() % units : lane(); }
  // Of the rows that are copied at once.
  static __device__ int row_of_lane() { return together > 1 ? lane() / units : 0; }
  __device__ int row_of(int kv_tile, int i) const { return kv_tile * V.tiles.kv + 32 * i + lane(); }
  __device__ const StridedTensor& of() const { return Side == KvSide::k ? params.pages.k : params.pages.v; }
  __device__ int granule_bytes() const {
    return Side == KvSide::k ? params.pages.k_granule_bytes : params.pages.v_granule_bytes;
  }
  __device__ int bytes() const { return Side == KvSide::k ? params.pages.k_bytes : params.pages.v_bytes; }
};

}  // namespace froghopper::fwd
