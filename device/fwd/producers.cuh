// SPDX-License-Identifier: Apache-2.0
// device/fwd: the roles of the forward kernel that move data. The head of forward.cuh says how they act together.
// Kernel is Forward of a variant.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "contract/split.h"
#include "contract/types.h"
#include "device/attn/tickets.cuh"
#include "device/attn/tma_rows.cuh"
#include "device/fwd/kv_source.cuh"
#include "device/fwd/schedule.cuh"
#include "device/fwd/work_item.cuh"
#include "device/ptx/launch.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/shared_memory.cuh"
#include "device/ptx/tma.cuh"
#include "device/ptx/types.cuh"
#include "device/tile/shared_tile.cuh"

namespace froghopper::fwd {

// Not o_map: no thread waits for the stores that it is for.
__device__ inline void prefetch_maps(const FwdParams& params) {
  if (threadIdx.x == 0) ptx::prefetch_map(&params.q);
  if (threadIdx.x == 32) ptx::prefetch_map(&params.k);
  if (threadIdx.x == 64) ptx::prefetch_map(&params.v);
}

// Whether the fetch of the next item is deferred until it is needed: after a long item. A short one is over before a
// ticket has come from memory: there the fetch is eager, while Q loads.
template <FwdVariant V>
__device__ bool defers_fetch(const FwdParams& params, const WorkItem& item) {
  return !fwd_splits_evenly(V) && item.kv.count() >= params.order.deferred_tiles;
}

// A deferred fetch happens when the loads of so many K tiles of the item are still to be issued: late, so that the next
// item does not wait here while another CTA idles; and early enough for these tiles, and what is being loaded into the
// ring, to hide the fetch, which takes a read from memory, and the load of Q.
constexpr int fetch_at_loads_left = 3;

// PackGQA: no load fills the rows of a Q tile that are padding, but they are multiplied. So they are 0 from the start.
template <int Threads, class Tile, int Stages>
__device__ void clear_padding_rows(Tile (&q)[Stages]) {
  uint4* const all = reinterpret_cast<uint4*>(q);
  for (int i = threadIdx.x; i < Stages * Tile::bytes / 16; i += Threads) all[i] = {0, 0, 0, 0};
  ptx::fence_proxy_async_shared();
}

template <class Kernel>
struct Dispatcher {
  static constexpr FwdVariant V = Kernel::variant;
  using QTile = tile::SharedTile<V.tiles.q, V.dims.qk, size_of(V.dtype)>;  // as in memory

  const FwdParams& params;
  typename Kernel::Smem& smem;
  typename Kernel::ItemStage items;
  typename Kernel::QStage q;
  ptx::u32 fetch_next_phase = 0;

  // All lanes find, the first one does the rest.
  __device__ void run() {
    if constexpr (fwd_splits_evenly(V))
      run_evenly();
    else
      run_by_tickets();
    if (V.ragged && params.overlaps_another)
      ptx::wait_for_earlier_kernels();  // so that whoever waits for this launch waits for both
  }

 private:
  __device__ void run_by_tickets() {
    auto schedule = [&] {
      if constexpr (V.ragged)
        return RaggedSchedule<V>(params);
      else
        return UniformSchedule<V>{params};
    }();
    const attn::Tickets tickets{params.queue};
    int number = blockIdx.x;
    WorkItem item = schedule.find(number);
    if constexpr (!V.ragged) ptx::wait_for_earlier_kernels();
    if constexpr (fwd_splits(V)) {
      ptx::let_next_kernel_start();  // combine, if there is one. Not before: it reads lengths at once
      item = skip_empty_parts(schedule, tickets, number, item);
    }
    if (!tickets.in_use()) return run_single_item(item);
    while (!item.is_end()) {
      if (first_lane()) {
        publish(item);
        number = gridDim.x + load_q_and_fetch(tickets, item);
      }
      number = __shfl_sync(~0u, number, 0);
      item = schedule.find(number);
      if constexpr (fwd_splits(V)) item = skip_empty_parts(schedule, tickets, number, item);
    }
    let_next_kernel_start();
    if (first_lane()) {
      publish(item);
      q.begin_fill(smem.q_ring, 0);
      // Every item fetched one ticket, so this one was the last.
      if (number == schedule.items() + int(gridDim.x) - 1) tickets.forget();
    }
  }

  // No other CTA has these items: no ticket is fetched.
  __device__ void run_evenly() {
    EvenSchedule<V> schedule(params);
    ptx::let_next_kernel_start();  // combine, which reads nothing before it has waited
    for (WorkItem item = schedule.next(); !item.is_end(); item = schedule.next())
      if (first_lane()) {
        publish(item);
        load_q(item);
      }
    if (!first_lane()) return;
    publish({});
    q.begin_fill(smem.q_ring, 0);
  }

  // Every CTA has one item or none, so no ticket is fetched, and the end marker can be published immediately. That
  // pays: Consumers run the epilogue of an item only after they have taken the next one, and a launch's first ticket
  // takes two or three dependent accesses to global memory (the counter has to be reset), some 2 us, which the epilogue
  // of a short item would wait for. The loader of K may arrive at fetch_next all the same; no warp waits there.
  __device__ void run_single_item(const WorkItem& item) {
    let_next_kernel_start();
    if (!first_lane()) return;
    if (!item.is_end()) {
      publish(item);
      load_q(item);
    }
    publish({});
    q.begin_fill(smem.q_ring, 0);
  }

  // When nothing is left to fetch: a CTA of the next kernel comes to an SM when the one here ends. Split-KV variants
  // have let it start already.
  __device__ void let_next_kernel_start() const {
    if constexpr (!fwd_splits(V)) ptx::let_next_kernel_start();
  }

  // Parts without keys are fetched, and are not published.
  template <class Schedule>
  __device__ WorkItem skip_empty_parts(Schedule& schedule, const attn::Tickets& tickets, int& number, WorkItem item) {
    while (item.has_no_keys()) {
      if (!tickets.in_use()) return {};
      if (first_lane()) number = gridDim.x + tickets.read(tickets.fetch());
      number = __shfl_sync(~0u, number, 0);
      item = schedule.find(number);
    }
    return item;
  }

  __device__ bool first_lane() const { return threadIdx.x == 0; }

  __device__ void publish(const WorkItem& item) {
    items.wait_room(smem.item_ring);
    smem.items[items.stage] = item;
    items.expect_bytes(smem.item_ring, 0);
    items.advance();
  }

  __device__ int load_q_and_fetch(const attn::Tickets& tickets, const WorkItem& item) {
    const bool late = defers_fetch<V>(params, item);
    auto fetched = late ? 0 : tickets.fetch();
    load_q(item);
    if (late) {
      ptx::mbarrier_wait(&smem.fetch_next, fetch_next_phase);
      fetch_next_phase ^= 1;
      fetched = tickets.fetch();
    }
    return tickets.read(fetched);
  }

  __device__ void load_q(const WorkItem& item) {
    const PackGqaParams& pack = params.pack_gqa;
    const int bytes = V.pack_gqa ? QTile::panels * QTile::panel_row_bytes * pack.rows * pack.heads : QTile::bytes;
    ptx::u64* full = q.begin_fill(smem.q_ring, bytes);
    const int head = V.pack_gqa ? item.head * pack.heads : item.head;
    const attn::TmaRows<V.ragged> rows(head, item.sequence, params.ragged.cu_q, item.lengths.q_first,
                                       item.lengths.seq_q, params.ragged.q);
    rows.load(reinterpret_cast<QTile&>(smem.q[q.stage]), params.q, full, item.q_tile * rows_of_tile<V>(params));
    q.advance();
  }
};

// The next item, released at once: the threads of a loader, which keep the copy.
template <class Kernel>
__device__ __forceinline__ WorkItem take_item_copy(typename Kernel::Smem& smem, typename Kernel::ItemStage& items) {
  items.wait(smem.item_ring);
  const WorkItem item = smem.items[items.stage];
  if constexpr (Kernel::variant.kv.layout != KvLayout::contiguous) __syncwarp();  // every lane has its copy
  if (is_leading_thread<Kernel::variant>()) items.arrive_empty(smem.item_ring);
  items.advance();
  return item;
}

// How many kv tiles the next item has, which is released at once: the warps that transpose or dequantise, which need
// no more of it. 0: no item is left.
template <class Kernel>
__device__ __forceinline__ int take_tile_count(typename Kernel::Smem& smem, typename Kernel::ItemStage& items) {
  items.wait(smem.item_ring);
  const int tiles = smem.items[items.stage].kv.count();
  __syncwarp();
  items.release_and_advance(smem.item_ring);
  return tiles;
}

// The kv tile at which the deferred fetch of the next item happens.
__device__ inline int fetch_at(const WorkItem& item) { return item.kv.with_left(fetch_at_loads_left - 1); }

// Loads K, or V: one thread, or a warp where K and V are paged.
template <class Kernel, KvSide Side>
struct Loader {
  static constexpr FwdVariant V = Kernel::variant;

  const FwdParams& params;
  typename Kernel::Smem& smem;
  ptx::u64* fetch_next;  // where the Loader of K arrives; null for that of V
  typename Kernel::ItemStage items;
  typename Kernel::KvStage at;

  template <class Tile>
  __device__ void run(Tile (&stages)[V.tiles.stages], typename Kernel::KvRing& ring) {
    while (true) {
      const WorkItem item = take_item_copy<Kernel>(smem, items);
      if (item.is_end()) break;
      KvSource<V, Side> source(params, item);
      const int fetch_tile = fetch_next && defers_fetch<V>(params, item) ? fetch_at(item) : -1;
      for (const int kv_tile : item.kv.in_order()) {
        if (kv_tile == fetch_tile && is_leading_thread<V>()) ptx::mbarrier_arrive(fetch_next);
        at.wait_room(ring);
        ptx::u64* full = announce_loads<V>(at, ring, Tile::bytes);
        source.load(stages[at.stage], full, kv_tile);
        at.advance();
      }
    }
    // K: the Consumers' last S multiplies what lies there, and the result is not read. V: no Consumer takes this stage.
    announce_nothing<V>(at, ring);
  }
};

}  // namespace froghopper::fwd
