// SPDX-License-Identifier: Apache-2.0
// device/bwd: the roles of the backward kernels that move data. Their banners say how they act together. Kernel is
// Backward or Wide of a variant.
#pragma once
#include "device/attn/place.cuh"
#include "device/attn/tickets.cuh"
#include "device/bwd/dq_sum.cuh"
#include "device/ptx/launch.cuh"

namespace froghopper::bwd {

// Takes work items, publishes them, loads K and V.
template <class Kernel>
struct Dispatcher {
  static constexpr BwdVariant V = Kernel::variant;

  const BwdParams& params;
  typename Kernel::Smem& smem;
  typename Kernel::ItemStage i;
  typename Kernel::KvStage kv;
  ptx::u32 wanted_phase = 0;

  // All lanes find, the first one does the rest.
  __device__ void run() {
    auto schedule = [&] {
      if constexpr (V.ragged)
        return RaggedSchedule<V>(params);
      else
        return FixedSchedule<V>{params};
    }();
    const attn::Tickets tickets{params.queue};
    int number = first_number(tickets);
    WorkItem item = schedule.find(number);
    while (!item.none()) {
      if (first_lane()) {
        publish(item);
        load(item);
        ptx::mbarrier_wait(&smem.next_wanted, wanted_phase);
        wanted_phase ^= 1;
        number = draw(tickets);
      }
      number = __shfl_sync(~0u, number, 0);
      item = schedule.find(number);
    }
    if (first_lane()) {
      publish(item);
      // Every item, or every item and every CTA, drew one ticket, so this one was the last.
      if (number == schedule.items() + int(gridDim.x) - 1) tickets.forget();
    }
  }

  __device__ bool first_lane() const { return threadIdx.x == 0; }

  // Every CTA has its first item without asking. Where an item waits for those before it, a CTA that is not there yet
  // must not hold one of them: then all items are drawn, so that who draws an item runs, and of all that are not done
  // the first waits for none.
  __device__ int first_number(const attn::Tickets& tickets) const {
    if constexpr (!V.ordered) return blockIdx.x;
    return __shfl_sync(~0u, first_lane() ? draw(tickets) : 0, 0);
  }
  __device__ int draw(const attn::Tickets& tickets) const {
    return (V.ordered ? 0 : gridDim.x) + tickets.read(tickets.draw());
  }

  __device__ void publish(const WorkItem& item) {
    i.wait_room(smem.item_ring);
    smem.items[i.stage] = item;
    i.announce(smem.item_ring, 0);
    i.advance();
  }

  __device__ void load(const WorkItem& item) {
    const auto place = [&](const MapUnits& units) {
      return attn::Place<V.ragged>(item.head_kv, item.sequence, params.ragged.cu_kv, item.rows.kv_first,
                                   item.rows.seq_kv, units);
    };
    const int row = item.kv_tile * V.tiles.kv;
    place(params.ragged.k).load(smem.k, params.k, kv.fill(smem.k_ring, Kernel::KTile::bytes), row);
    place(params.ragged.v).load(smem.v, params.v, kv.fill(smem.v_ring, Kernel::VTile::bytes), row);
    kv.advance();
  }
};

// The next item is asked for when all but this many turns of an item and one are issued: it is drawn late, so that it
// does not wait here while another CTA idles, and early enough for its first tiles to be there in time.
constexpr int lead = 2;

// Walks the q tiles of every item: begin(item) once, load(item, head, q_tile, turn) for each, ask() where the next item
// is wanted.
template <class Kernel, class Begin, class Load, class Ask>
__device__ void each_turn(typename Kernel::Smem& smem, int heads_per_kv, Begin begin, Load load, Ask ask) {
  typename Kernel::ItemStage i;
  while (true) {
    i.wait(smem.item_ring);
    const WorkItem item = smem.items[i.stage];
    ptx::mbarrier_arrive(&smem.item_ring.empty[i.stage]);
    i.advance();
    if (item.none()) return;
    const int turns = (item.q_end - item.q_begin) * heads_per_kv;
    if (turns == 0) ask();
    begin(item);
    int left = turns;
    for (int head = item.head_kv * heads_per_kv; head < (item.head_kv + 1) * heads_per_kv; ++head)
      for (int q_tile = item.q_begin; q_tile < item.q_end; ++q_tile) {
        if (left == min(turns, 1 + lead)) ask();
        load(item, head, q_tile, turns - left);
        --left;
      }
  }
}

template <class Kernel>
__device__ attn::Place<Kernel::variant.ragged> place_of_q(const BwdParams& params, const WorkItem& item, int head,
                                                          const MapUnits& units) {
  return {head, item.sequence, params.ragged.cu_q, item.rows.q_first, item.rows.seq_q, units};
}

// Q, and lse and delta of its rows, which the kernel before this one has made; and what the turn is. One thread.
template <class Kernel>
struct QLoader {
  static constexpr BwdVariant V = Kernel::variant;

  const BwdParams& params;
  typename Kernel::Smem& smem;
  typename Kernel::QStage q;
  bool earlier_ended = false, far = false;
  Range<int> uncut[V.tiles.kv / strip];  // q tiles without a mask, for each strip of keys

  __device__ void run() {
    each_turn<Kernel>(
        smem, params.heads_per_kv, [&](const WorkItem& item) { begin(item); },
        [&](const WorkItem& item, int head, int q_tile, int turn) { load(item, head, q_tile, turn); },
        [&] { ptx::mbarrier_arrive(&smem.next_wanted); });
  }

  __device__ void begin(const WorkItem& item) {
    const Sight<V> sight(params.mask, item.rows);
    for (int i = 0; i < V.tiles.kv / strip; ++i)
      uncut[i] = sight.uncut(item.kv_tile * V.tiles.kv + i * strip, strip, item.rows);
  }

  __device__ void load(const WorkItem& item, int head, int q_tile, int turn) {
    q.wait_room(smem.q_ring);
    if (!earlier_ended) {
      ptx::wait_for_earlier_kernels();
      earlier_ended = true;
      far = *params.far == params.queue.tag;
    }
    const int tile = dq_tile<V>(params, item, head, q_tile);
    const int rank = V.ordered ? rank_of_tile<V>(params, item, q_tile) : 0;
    smem.turns[q.stage] = {q_tile, tile, kind(item, head, q_tile, turn), rank};
    ptx::u64* full = q.announce(smem.q_ring, Kernel::QTile::bytes + sizeof smem.rows[0].numbers);
    place_of_q<Kernel>(params, item, head, params.ragged.q).load(smem.q[q.stage], params.q, full, q_tile * V.tiles.q);
    ptx::tma_load_2d(smem.rows[q.stage].numbers, &params.rows, full, 0, tile);
    q.advance();
  }

  __device__ int kind(const WorkItem& item, int head, int q_tile, int turn) const {
    const bool last = q_tile == item.q_end - 1 && head == (item.head_kv + 1) * params.heads_per_kv - 1;
    int kind = (turn == 0 ? Turn::first : 0) | (last ? Turn::last : 0) | (far ? Turn::far : 0);
    for (int i = 0; i < V.tiles.kv / strip; ++i)
      if (far || q_tile < uncut[i].begin || q_tile >= uncut[i].end) kind |= Turn::masked << i;
    return kind;
  }
};

// One thread.
template <class Kernel>
__device__ void load_grad_o(const BwdParams& params, typename Kernel::Smem& smem) {
  constexpr BwdVariant V = Kernel::variant;
  typename Kernel::QStage at;
  each_turn<Kernel>(
      smem, params.heads_per_kv, [](const WorkItem&) {},
      [&](const WorkItem& item, int head, int q_tile, int) {
        ptx::u64* full = at.fill(smem.do_ring, Kernel::DoTile::bytes);
        place_of_q<Kernel>(params, item, head, params.grad_o_units)
            .load(smem.grad_o[at.stage], params.grad_o, full, q_tile * V.tiles.q);
        at.advance();
      },
      [] {});
}

}  // namespace froghopper::bwd
