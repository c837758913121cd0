// SPDX-License-Identifier: Apache-2.0
// device/bwd: the roles of the backward kernels that move data. The heads of their files say how they act together.
// Kernel is Backward, ByKeys or ByColumns of a variant.
#pragma once
#include "contract/bwd_params.h"
#include "contract/bwd_variant.h"
#include "contract/shared_params.h"
#include "device/attn/alibi.cuh"
#include "device/attn/tickets.cuh"
#include "device/attn/tma_rows.cuh"
#include "device/bwd/columns.cuh"
#include "device/bwd/dq_sum.cuh"
#include "device/bwd/schedule.cuh"
#include "device/ptx/cluster.cuh"
#include "device/ptx/launch.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/reduce.cuh"
#include "device/ptx/shared_memory.cuh"
#include "device/ptx/tma.cuh"
#include "device/ptx/types.cuh"

namespace froghopper::bwd {

// Takes work items, publishes them, loads K and V.
template <class Kernel>
struct Dispatcher {
  static constexpr BwdVariant V = Kernel::variant;

  const BwdParams& params;
  typename Kernel::Smem& smem;
  typename Kernel::ItemStage items;
  typename Kernel::KvStage kv;
  ptx::u32 fetch_next_phase = 0, number_phase = 0;

  // All lanes find, the first one does the rest.
  __device__ void run() {
    auto schedule = [&] {
      if constexpr (V.ragged)
        return RaggedSchedule<V>(params);
      else
        return UniformSchedule<V>{params};
    }();
    const attn::Tickets tickets{params.queue};
    int number = first_number(tickets);
    WorkItem item = schedule.find(number);
    while (!item.is_end()) {
      if (first_lane()) {
        publish(item);
        load(item);
        number = next_number(tickets);
      }
      number = __shfl_sync(~0u, number, 0);
      item = schedule.find(number);
    }
    if (first_lane()) {
      publish(item);
      // The number of the last ticket. Every item fetched one: items tickets, whose numbers begin at clusters. In
      // deterministic variants every cluster (of one CTA or two) fetched one more, for its first item: items + clusters
      // tickets, whose numbers begin at 0.
      if (is_fetching_cta() && number == schedule.items() + clusters() - 1) tickets.forget();
    }
  }

  __device__ bool first_lane() const { return threadIdx.x == 0; }

  // The number of a CTA's, or cluster's, first item is its own number, without a ticket. Not so in deterministic
  // variants, where an item waits for those before it, and none of these may belong to a CTA that does not run yet:
  // there all items are fetched. So whoever has an item runs, and of the items that are not done the first one waits
  // for no other.
  __device__ int first_number(const attn::Tickets& tickets) {
    if constexpr (!V.deterministic) return blockIdx.x / Kernel::ctas;
    return __shfl_sync(~0u, first_lane() ? fetch(tickets) : 0, 0);
  }
  __device__ int next_number(const attn::Tickets& tickets) {
    if (is_fetching_cta()) items.wait_in_producer_warp(&smem.fetch_next, fetch_next_phase);
    fetch_next_phase ^= 1;
    return fetch(tickets);
  }
  // Of the CTAs of a cluster, which have the same items, the first one fetches and tells the other.
  __device__ int fetch(const attn::Tickets& tickets) {
    if constexpr (Kernel::ctas == 1) {
      return fetched(tickets);
    } else {
      if (is_fetching_cta()) {
        const int number = fetched(tickets);
        ptx::st_async(&smem.number, &smem.number_full, 1, number);
        return number;
      }
      ptx::mbarrier_arrive_expect_tx(&smem.number_full, sizeof smem.number);
      items.wait_in_producer_warp(&smem.number_full, number_phase);
      number_phase ^= 1;
      return static_cast<int>(smem.number);
    }
  }
  __device__ int fetched(const attn::Tickets& tickets) const {
    return (V.deterministic ? 0 : clusters()) + tickets.read(tickets.fetch());
  }
  static __device__ bool is_fetching_cta() { return Kernel::ctas == 1 || ptx::cta_in_cluster() == 0; }
  static __device__ int clusters() { return gridDim.x / Kernel::ctas; }

  __device__ void publish(const WorkItem& item) {
    items.wait_room(smem.item_ring);
    smem.items[items.stage] = item;
    items.expect_bytes(smem.item_ring, 0);
    items.advance();
  }

  __device__ void load(const WorkItem& item) {
    const auto rows = [&](const MapGranules& granules) {
      return attn::TmaRows<V.ragged>(item.head_kv, item.sequence, params.ragged.cu_kv, item.lengths.kv_first,
                                     item.lengths.seq_kv, granules);
    };
    const int row = Kernel::first_key(item);
    const auto k = rows(params.ragged.k);
    ptx::u64* full = kv.begin_fill(smem.k_ring, Kernel::k_bytes);
    k.load(smem.k[kv.stage], params.k, full, row, column_of_cta<V>(bwd_dims_of_cta(V).qk));
    if constexpr (bwd_peer_bytes(V) > 0) Kernel::load_peer_k(smem.peer_k[kv.stage], k, params.k, full, item);
    rows(params.ragged.v)
        .load(smem.v[kv.stage], params.v, kv.begin_fill(smem.v_ring, Kernel::VTile::bytes), row,
              column_of_cta<V>(bwd_dims_of_cta(V).v));
    kv.advance();
  }
};

// The next item is fetched when the loads of so many iterations of this one are still to be issued: late, so that it
// does not wait here while another CTA idles; and early enough for its first tiles to be there in time. The forward's
// deferred tile fetch is the same, device/fwd/producers.cuh.
constexpr int fetch_at_loads_left = 3;

// The iterations of every item, in their order: load(item, head, q_tile, iterations left with this one) for each,
// fetch() where the next item is to be fetched.
template <class Kernel, class Load, class Fetch>
__device__ void each_q_iteration(typename Kernel::Smem& smem, int heads_per_kv, Load load, Fetch fetch) {
  typename Kernel::ItemStage at;
  while (true) {
    at.wait_full_in_producer_warp(smem.item_ring);
    const WorkItem item = smem.items[at.stage];
    at.arrive_empty(smem.item_ring);
    at.advance();
    if (item.is_end()) return;
    const int q_iterations = item.q.count() * heads_per_kv;
    if (q_iterations == 0) fetch();
    int left = q_iterations;
    item.q.visit<Kernel::variant.deterministic>(item.head_kv * heads_per_kv, heads_per_kv, [&](int head, int q_tile) {
      if (left == min(q_iterations, fetch_at_loads_left)) fetch();
      load(item, head, q_tile, left);
      --left;
    });
  }
}

template <class Kernel>
__device__ attn::TmaRows<Kernel::variant.ragged> rows_of_q(const BwdParams& params, const WorkItem& item, int head,
                                                           const MapGranules& granules) {
  return {head, item.sequence, params.ragged.cu_q, item.lengths.q_first, item.lengths.seq_q, granules};
}

// One thread.
template <class Kernel>
struct GradOLoader {
  static constexpr BwdVariant V = Kernel::variant;

  const BwdParams& params;
  typename Kernel::Smem& smem;
  typename Kernel::GradOStage at;

  __device__ void run() {
    each_q_iteration<Kernel>(
        smem, params.heads_per_kv, [&](const WorkItem& item, int head, int q_tile, int) { load(item, head, q_tile); },
        [] {});
  }

  __device__ void load(const WorkItem& item, int head, int q_tile) {
    constexpr int columns = bwd_dims_of_cta(V).v;
    const auto rows = rows_of_q<Kernel>(params, item, head, params.grad_o_granules);
    for (int slice = 0; slice < bwd_grad_o_slices(V); ++slice) {
      ptx::u64* full = at.begin_fill(smem.grad_o_ring, Kernel::GradOTile::bytes);
      rows.load(smem.grad_o[at.stage], params.grad_o, full, q_tile * V.tiles.q,
                column_of_cta<V>(columns) + slice * (columns / bwd_grad_o_slices(V)));
      at.advance();
    }
  }
};

// Q, and lse and delta of its rows, which the kernel before this one has made; and which iteration it is. One thread.
// In deterministic variants the DqOrderSignaller has the GradOLoader's warp, and the QLoader loads grad_o too.
template <class Kernel>
struct QLoader {
  static constexpr BwdVariant V = Kernel::variant;

  const BwdParams& params;
  typename Kernel::Smem& smem;
  typename Kernel::QStage q;
  GradOLoader<Kernel> grad_o{params, smem};
  bool earlier_ended = false;

  __device__ void run() {
    each_q_iteration<Kernel>(
        smem, params.heads_per_kv,
        [&](const WorkItem& item, int head, int q_tile, int) {
          load(item, head, q_tile);
          if constexpr (V.deterministic) grad_o.load(item, head, q_tile);
        },
        [&] {
          if constexpr (Kernel::ctas == 2)
            ptx::mbarrier_arrive_at(&smem.fetch_next, 0);
          else
            ptx::mbarrier_arrive(&smem.fetch_next);
        });
  }

  __device__ void load(const WorkItem& item, int head, int q_tile) {
    float slope = 0.f;
    if constexpr (V.score_mods.alibi)
      slope = attn::slope_of(params.slopes, item.sequence, head);  // early: it comes from memory
    q.wait_room(smem.q_ring);
    if (!earlier_ended) ptx::wait_for_earlier_kernels();
    earlier_ended = true;
    const int tile = dq_tile<V>(params, item, head, q_tile);
    const bool adds_first = V.deterministic && !params.in_phases && rank_of_tile<V>(params, item, q_tile) == 0;
    const QIteration q_iteration = {q_tile, marked_tile(tile, adds_first)};
    if constexpr (V.score_mods.alibi)
      smem.q_iterations[q.stage] = {q_iteration, slope};
    else
      smem.q_iterations[q.stage] = q_iteration;
    ptx::u64* full = q.expect_bytes(smem.q_ring, Kernel::QTile::bytes + sizeof smem.rows[0].values);
    rows_of_q<Kernel>(params, item, head, params.ragged.q)
        .load(smem.q[q.stage], params.q, full, q_tile * V.tiles.q, column_of_cta<V>(bwd_dims_of_cta(V).qk));
    ptx::tma_load_2d(smem.rows[q.stage].values, &params.rows, full, 0, tile);
    q.advance();
  }
};

// What the Consumers have stored of dS is there for wgmma once a thread that knows of it has passed a proxy fence. The
// ProxyFencer, which adds nothing to grad_q, does so for all of them, while an iteration goes by. When that pays:
// PolicyOf::has_proxy_fencer, policy.cuh.
template <class Kernel>
struct ProxyFencer {
  static __device__ void run(const BwdParams& params, typename Kernel::Smem& smem) {
    ptx::u32 iteration = 0;
    each_q_iteration<Kernel>(
        smem, params.heads_per_kv,
        [&](const WorkItem&, int, int, int) {
          const int stage = smem.ds_ring.stage(iteration);
          Kernel::QStage::wait_in_producer_warp(&smem.ds_stored[stage], smem.ds_ring.phase(iteration));
          ptx::fence_proxy_async_shared();
          smem.ds_ring.arrive_full(iteration++);
        },
        [] {});
  }
};

// Deterministic grad_q. dq_semaphore has a counter for each tile of grad_q in the workspace: how many CTAs have added
// to it. The CTAs of a kv tile may add to it when those of all lower ranks (rank_of_tile) have. Two threads see to it:
//
//   The DqOrderWaiter spins for every iteration with ld.acquire until the counter is high enough, and then arrives at
//   the iteration's full barrier of ds_ring. The Consumers wait for that barrier anyway, before they multiply and add
//   grad_q, so the order costs them no barrier of its own: one cost 2 to 4 % (docs/experiments/0011), though they
//   hardly waited there.
//   The DqOrderSignaller increments the counter by red.release.gpu once this CTA's adds of the iteration are issued;
//   the release waits until they are performed. That the adds of iteration n are issued it knows from the release of Q
//   of n + 1 (q_ring, empty), which the Consumers do after these adds, and for an item's last iteration from
//   item_adds_issued.
//
// A barrier must not complete two phases while a thread waits for one of them, or the parity would be ambiguous. So the
// DqOrderWaiter lets iteration n pass only when the DqOrderSignaller has seen the adds of n - 2 (adds_seen),
// and item_adds_issued has two stages.
template <class Kernel>
struct DqOrderWaiter {
  static __device__ void run(const BwdParams& params, typename Kernel::Smem& smem) {
    constexpr BwdVariant V = Kernel::variant;
    ptx::u32 iteration = 0;
    ptx::wait_for_earlier_kernels();
    each_q_iteration<Kernel>(
        smem, params.heads_per_kv,
        [&](const WorkItem& item, int head, int q_tile, int) {
          const ptx::u32* added = params.dq_semaphore + dq_tile<V>(params, item, head, q_tile);
          const ptx::u32 before = Kernel::ctas * rank_of_tile<V>(params, item, q_tile);
          while (ptx::ld_acquire(added) < before) {}
          smem.adds_seen.wait_two_before(iteration);
          smem.ds_ring.wait_room(iteration);
          smem.ds_ring.arrive_full(iteration++);
        },
        [] {});
  }
};

template <class Kernel>
struct DqOrderSignaller {
  static __device__ void run(const BwdParams& params, typename Kernel::Smem& smem) {
    constexpr BwdVariant V = Kernel::variant;
    ptx::u32 iteration = 0, q_loops = 0;
    each_q_iteration<Kernel>(
        smem, params.heads_per_kv,
        [&](const WorkItem& item, int head, int q_tile, int left) {
          // Of calls in phases each begins with counters of 0. Found before the wait, as others wait for the counter.
          const ptx::u32 last = params.in_phases ? Kernel::ctas * tiles_in_order<V>(params, item, q_tile) - 1 : ~0u;
          ptx::u32* const counter = params.dq_semaphore + dq_tile<V>(params, item, head, q_tile);
          if (left > 1)
            smem.q_ring.wait_released(iteration + 1);
          else
            smem.item_adds_issued.wait(q_loops++);
          smem.adds_seen.announce(iteration++);
          ptx::red_release_inc(counter, last);
        },
        [] {});
  }
};

// The barriers that the kernels have in common.
template <class Kernel>
__device__ __forceinline__ void init_rings(typename Kernel::Smem& smem, int consumer_warps) {
  smem.item_ring.init(1, consumer_warps + (Kernel::variant.deterministic || Kernel::has_proxy_fencer ? 3 : 2));
  smem.k_ring.init(1, consumer_warps);
  smem.v_ring.init(1, consumer_warps);
  smem.q_ring.init(1, consumer_warps);
  smem.grad_o_ring.init(1, consumer_warps);
  smem.adds_seen.init();
  smem.item_adds_issued.init(consumer_warps);
  ptx::mbarrier_init(&smem.fetch_next, Kernel::ctas);
}

// The producer warpgroup, by warps.
template <class Kernel>
__device__ __forceinline__ void run_producers(const BwdParams& params, typename Kernel::Smem& smem, int warp) {
  if (warp == 0) Dispatcher<Kernel>{params, smem}.run();
  if (threadIdx.x == 32) QLoader<Kernel>{params, smem}.run();
  if constexpr (Kernel::variant.deterministic) {
    if (threadIdx.x == 64) DqOrderSignaller<Kernel>::run(params, smem);
    if (threadIdx.x == 96) DqOrderWaiter<Kernel>::run(params, smem);
  } else {
    if (threadIdx.x == 64) GradOLoader<Kernel>{params, smem}.run();
    if constexpr (Kernel::has_proxy_fencer)
      if (threadIdx.x == 96) ProxyFencer<Kernel>::run(params, smem);
  }
}

}  // namespace froghopper::bwd
