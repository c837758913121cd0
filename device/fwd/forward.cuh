// SPDX-License-Identifier: Apache-2.0
// Forward attention on Hopper: O = softmax(scale Q K^T + mask) V.
//
// Work      one (sequence, query head, q tile); one Consumer = one 64-row strip of that tile. The grid is persistent:
//           every CTA takes works until none is left. Their order, and how a CTA gets one: schedule.cuh. A strip skips
//           the last kv tiles of a work where only lower strips see them.
// Roles     Dispatcher warp 0; takes works, publishes them, loads Q.         warpgroup 0: 40, 40, 32, 32 registers
//           Loader     warps 1 and 2, one thread each; loads K, loads V.
//           Sweeper    warp 3, ragged variants only; clears rows of no sequence.
//           Consumer   warpgroups 1..n, n = tile_q / 64; wgmma, softmax, store.    232, 232, 160, 112 registers
// Order     kv tiles run from last to first: tiles cut by the upper bound of a mask come first (exact online softmax),
//           the steady loop carries no mask (guarded softmax), tiles cut by a window's lower bound come last (exact).
// Overlap   S = Q K^T of the next tile and O += P V of this one are in flight together; the softmax of the next tile
//           runs while P V finishes. Over the seam between two works it goes on: the last P V of one and the first S
//           of the next are in flight together, O is stored behind that S.
// Barriers  work_ring       full: the Dispatcher has written it; empty: one arrival per Loader and, before its
//                           epilogue, per Consumer warp
//           q_ring          full: by bytes; empty: one arrival per Consumer warp, after its last S
//           k_ring, v_ring  full: by bytes; empty: one arrival per Consumer warp. K is held until the guard has
//                           passed: a warp whose weights left the range of fp32 computes its S again. Consumers never
//                           wait for each other.
// Shared    q[1 or 2] | k[stages] | v[stages] | works[2] | rings;  O goes from registers to global memory
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "device/fwd/mask.cuh"
#include "device/fwd/place.cuh"
#include "device/fwd/schedule.cuh"
#include "device/fwd/softmax.cuh"
#include "device/fwd/sweep.cuh"
#include "device/ptx/registers.cuh"
#include "device/tile/mma.cuh"
#include "device/tile/ring.cuh"

namespace froghopper::fwd {

template <Dtype>
struct Element;
template <>
struct Element<Dtype::bf16> {
  using type = ptx::bf16;
};
template <>
struct Element<Dtype::f16> {
  using type = ptx::f16;
};

template <FwdVariant V>
struct Forward {
  static_assert(why_invalid(V) == nullptr);

  using T = typename Element<V.dtype>::type;
  using QTile = tile::SharedTile<V.tile_q, V.dim_qk>;
  using KTile = tile::SharedTile<V.tile_kv, V.dim_qk>;
  using VTile = tile::SharedTile<V.tile_kv, V.dim_v>;
  using Scores = tile::Accum<V.tile_kv>;      // S: 64 query rows x one kv tile, then P in place
  using Weights = tile::OperandA<V.tile_kv>;  // P rounded to T
  using Output = tile::Accum<V.dim_v>;        // O, unnormalised until the epilogue
  using Softmax = OnlineSoftmax<V.dtype>;

  // Registers: a CTA starts with 65536 / threads each, rounded down to 8 (168, 128, 96 at 2, 3, 4 consumers);
  // setmaxnreg shares the same sum out again.
  static constexpr int consumers = fwd_consumers(V);
  static constexpr int threads = 128 * (1 + consumers);
  static constexpr int producer_registers = consumers <= 2 ? 40 : 32;
  static constexpr int consumer_registers = consumers <= 2 ? 232 : consumers == 3 ? 160 : 112;

  static constexpr int q_stages = fwd_q_stages(V);
  using KvRing = tile::Ring<V.stages>;
  using KvStage = tile::Cursor<V.stages>;
  using QRing = tile::Ring<q_stages>;
  using QStage = tile::Cursor<q_stages>;
  using WorkRing = tile::Ring<2>;
  using WorkStage = tile::Cursor<2>;

  struct Smem {
    QTile q[q_stages];
    KTile k[V.stages];
    VTile v[V.stages];
    Work works[2];
    WorkRing work_ring;
    QRing q_ring;
    KvRing k_ring, v_ring;
  };
  static constexpr int smem_bytes = fwd_smem_bytes(V);
  static_assert(sizeof(Smem) == smem_bytes);

  static __device__ void run(const FwdParams& params) {
    extern __shared__ __align__(1024) char smem_memory[];
    Smem& smem = *reinterpret_cast<Smem*>(smem_memory);
    init_barriers(smem);

    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp < 4) {
      ptx::setmaxnreg_dec<producer_registers>();
      if (warp == 0) Dispatcher{params, smem}.run();
      if (threadIdx.x == 32) Loader<KTile>{params, smem, params.k}.run(smem.k, smem.k_ring);
      if (threadIdx.x == 64) Loader<VTile>{params, smem, params.v}.run(smem.v, smem.v_ring);
      if (V.ragged && warp == 3) Sweeper{params, params.pairs / params.heads_q}.run();
    } else {
      ptx::setmaxnreg_inc<consumer_registers>();
      Consumer{params, smem, warp / 4 - 1}.run();
    }
  }

  // ---- Producers ----

  struct Dispatcher {
    const FwdParams& params;
    Smem& smem;
    WorkStage w;
    QStage q;

    // The whole warp finds, its first thread speaks.
    __device__ void run() {
      auto schedule = [&] {
        if constexpr (V.ragged)
          return RaggedSchedule<V>{params, params.pairs / params.heads_q};
        else
          return FixedSchedule<V>{params};
      }();
      const Tickets tickets{params.counter, params.ticket_tag};
      int number = blockIdx.x;
      Work work = schedule.find(number);
      while (!work.none()) {
        if (speaker()) {
          publish(work);
          const auto drawn = tickets.draw();
          load_q(work);
          number = gridDim.x + tickets.read(drawn);
        }
        number = __shfl_sync(~0u, number, 0);
        work = schedule.find(number);
      }
      if (speaker()) {
        publish(work);
        q.fill(smem.q_ring, 0);
        // Every work drew one ticket, so this was the last: leave the counter to nobody.
        if (number == schedule.works() + int(gridDim.x) - 1) tickets.forget();
      }
    }

    __device__ bool speaker() const { return threadIdx.x == 0; }

    __device__ void publish(const Work& work) {
      w.wait_room(smem.work_ring);
      smem.works[w.stage] = work;
      w.announce(smem.work_ring, 0);
      w.advance();
    }

    __device__ void load_q(const Work& work) {
      ptx::u64* full = q.fill(smem.q_ring, QTile::bytes);
      const Place<V> place = {work.head, work.sequence,
                              params.cu_q ? work.q_first * params.unit_q : work.sequence * params.row_step_q,
                              params.unit_q, work.seq_q};
      place.load(smem.q[q.stage], params.q, full, work.q_tile * V.tile_q);
      q.advance();
    }
  };

  template <class Tile>
  struct Loader {  // of K or of V
    const FwdParams& params;
    Smem& smem;
    const TmaMap& map;
    WorkStage w;
    KvStage at;

    __device__ void run(Tile (&stages)[V.stages], KvRing& ring) {
      while (true) {
        w.wait(smem.work_ring);
        const Work work = smem.works[w.stage];
        ptx::mbarrier_arrive(&smem.work_ring.empty[w.stage]);
        w.advance();
        if (work.none()) break;
        const Place<V> place = {work.head / params.heads_per_kv, work.sequence,
                                params.cu_kv ? work.kv_first * params.unit_kv : work.sequence * params.row_step_kv,
                                params.unit_kv, work.seq_kv};
        for (int kv_tile = work.kv_end - 1; kv_tile >= work.kv_begin; --kv_tile) {
          ptx::u64* full = at.fill(ring, Tile::bytes);
          place.load(stages[at.stage], map, full, kv_tile * V.tile_kv);
          at.advance();
        }
      }
      at.fill(ring, 0);  // the Consumers' last S multiplies what lies there and is not looked at
    }
  };

  // ---- Consumer ----
  //
  // The three register tiles are locals of run() and arguments of every step, never fields: as fields, the compiler
  // duplicates them across the loop and ptxas serialises wgmma (C7511).

  struct Consumer {
    const FwdParams& params;
    Smem& smem;
    int strip;
    WorkStage w;
    QStage q;
    KvStage k, v;

    __device__ void run() {
      Scores s;
      Weights p;
      Output o;
      Work work = take_work();
      qk(s);
      ptx::wgmma_wait<0>();

      while (!work.none()) {
        Softmax softmax{params.scale_log2};
        int kv_tile = last_tile(work);
        first_turn(work, kv_tile--, softmax, s, p);
        skip(v, smem.v_ring, work);
        o.clear();
        walk(work, kv_tile, softmax, s, p, o);
        q.advance();

        pv(o, p);  // the last of this work
        const Work finished = give_back_work();
        work = take_work();
        qk(s);                 // the first of the next
        ptx::wgmma_wait<1>();  // O is ready, S is not
        v.release(smem.v_ring);
        epilogue(finished, softmax, o);
        ptx::wgmma_wait<0>();  // S is ready
      }
    }

    __device__ __forceinline__ void walk(const Work& work, int kv_tile, Softmax& softmax, Scores& s, Weights& p,
                                         Output& o) {
      if constexpr (V.mask != Mask::none) {
        const int cut_above = max(work.kv_begin, sight(work).lowest_cut_above(first_row(work)));
        for (; kv_tile >= cut_above; --kv_tile) turn</*Cut=*/true>(work, kv_tile, softmax, s, p, o);
      }
      int uncut = work.kv_begin;
      if constexpr (V.mask == Mask::window) uncut = max(uncut, sight(work).lowest_uncut_below(first_row(work) + 63));
      for (; kv_tile >= uncut; --kv_tile) turn</*Cut=*/false>(work, kv_tile, softmax, s, p, o);
      if constexpr (V.mask == Mask::window)
        for (; kv_tile >= work.kv_begin; --kv_tile) turn</*Cut=*/true>(work, kv_tile, softmax, s, p, o);
    }

    // The shuffles tell the compiler that the values are the same for the whole warp.
    __device__ Work take_work() {
      w.wait(smem.work_ring);
      Work work = smem.works[w.stage];
      work.q_tile = __shfl_sync(~0u, work.q_tile, 0);
      work.kv_begin = __shfl_sync(~0u, work.kv_begin, 0);
      work.kv_end = __shfl_sync(~0u, work.kv_end, 0);
      skip(k, smem.k_ring, work);
      q.wait(smem.q_ring);
      return work;
    }

    // Read from shared memory once more, so that what only the epilogue needs spends no registers in the loop.
    __device__ Work give_back_work() {
      const Work work = smem.works[w.stage];
      __syncwarp();
      w.release(smem.work_ring);
      return work;
    }

    __device__ void first_turn(const Work& work, int kv_tile, Softmax& softmax, Scores& s, Weights& p) {
      release_k(work, kv_tile);
      if constexpr (V.softcap) cap(s, params.cap_scale);
      if (V.mask != Mask::none || (kv_tile + 1) * V.tile_kv > seq_kv(work)) hide(s, work, kv_tile);
      softmax.step(s);
      tile::round_to<T>(p, s);
    }

    // One kv tile in steady state. Between the two products and their waits lies the softmax: it hides P V, and the
    // products of the other strips hide it.
    template <bool Cut>
    __device__ __forceinline__ void turn(const Work& work, int kv_tile, Softmax& softmax, Scores& s, Weights& p,
                                         Output& o) {
      qk(s);                 // S of this tile
      pv(o, p);              // O += P V of the tile before
      ptx::wgmma_wait<1>();  // S is ready, P V is not
      if constexpr (V.softcap) cap(s, params.cap_scale);
      RowPair age;
      bool grew = true;
      if constexpr (Cut) {
        release_k(work, kv_tile);
        hide(s, work, kv_tile);
        age = softmax.step(s);
      } else {
        grew = !softmax.later(s);
        if (grew) {
          tile::mma_abt_alone<T>(s, smem.q[q.stage], strip * 64, smem.k[k.stage]);
          if constexpr (V.softcap) cap(s, params.cap_scale);
          age = softmax.step(s);
        }
        release_k(work, kv_tile);  // not before: K may be needed again
      }
      ptx::wgmma_wait<0>();  // O is ready
      v.release(smem.v_ring);
      tile::round_to<T>(p, s);
      if (grew) o.scale_rows(age.top, age.bottom);
    }

    __device__ __forceinline__ void qk(Scores& s) {
      k.wait(smem.k_ring);
      tile::mma_abt<T>(s, smem.q[q.stage], strip * 64, smem.k[k.stage]);
    }

    __device__ __forceinline__ void pv(Output& o, const Weights& p) {
      v.wait(smem.v_ring);
      tile::mma_ab<T>(o, p, smem.v[v.stage]);
    }

    __device__ __forceinline__ void release_k(const Work& work, int kv_tile) {
      k.release(smem.k_ring);
      if (kv_tile == work.kv_begin) q.give_back(smem.q_ring);  // that was the last S of this work
    }

    __device__ void skip(KvStage& at, KvRing& ring, const Work& work) {
#pragma unroll 1
      for (int i = last_tile(work) + 1; i < work.kv_end; ++i) {
        at.wait(ring);
        at.release(ring);
      }
    }

    __device__ __forceinline__ void hide(Scores& s, const Work& work, int kv_tile) {
      sight(work).hide(s, first_row(work) + tile::thread_row(), kv_tile);
    }

    __device__ void epilogue(const Work& work, const Softmax& softmax, Output& o) {
      const float sink_log2 = params.sink ? params.sink[work.head] * tile::log2e : -tile::inf;
      const auto top = softmax.finish_top(sink_log2), bottom = softmax.finish_bottom(sink_log2);
      o.scale_rows(top.inverse, bottom.inverse);

      const int row = first_row(work) + tile::thread_row();
      const bool has_top = row < seq_q(work), has_bottom = row + 8 < seq_q(work);
      const long long batch = V.ragged && params.cu_q ? 0 : work.sequence;
      const long long at_row = (V.ragged ? work.q_first : 0) + row;
      char* at =
          static_cast<char*>(params.o) + batch * params.o_batch + work.head * params.o_head + at_row * params.o_row;
      tile::store_rows<T>({at, at + 8 * params.o_row, has_top, has_bottom}, params.dim_v, o);
      if (params.lse && threadIdx.x % 4 == 0) {
        float* lse = params.lse + batch * params.lse_batch + work.head * params.lse_head + at_row;
        if (has_top) lse[0] = top.lse;
        if (has_bottom) lse[8] = bottom.lse;
      }
    }

    __device__ int seq_q(const Work& work) const { return V.ragged ? work.seq_q : params.seq_q; }
    __device__ int seq_kv(const Work& work) const { return V.ragged ? work.seq_kv : params.seq_kv; }
    __device__ Sight<V> sight(const Work& work) const { return Sight<V>(params, seq_q(work), seq_kv(work)); }
    __device__ int first_row(const Work& work) const { return work.q_tile * V.tile_q + strip * 64; }

    // Where this strip starts: the last kv tile it sees, or the first of the work where it has no rows. It skips
    // fewer tiles than a ring has stages: it skips K tiles while it still holds one V stage, and a strip that needs
    // those K tiles gets at most stages - 1 V tiles meanwhile.
    __device__ int last_tile(const Work& work) const {
      int seen = work.kv_end - 1;
      if constexpr (V.mask != Mask::none)
        seen = min(seen, max(0, sight(work).end(first_row(work) + 63) - 1) / V.tile_kv);
      if (first_row(work) >= seq_q(work)) seen = 0;
      return max(max(seen, work.kv_begin), work.kv_end - V.stages);
    }
  };

  // ---- Before the roles part ----

  static __device__ void init_barriers(Smem& smem) {
    if (threadIdx.x == 0) {
      smem.work_ring.init(4 * consumers + 2);
      smem.q_ring.init(4 * consumers);
      smem.k_ring.init(4 * consumers);
      smem.v_ring.init(4 * consumers);
      ptx::fence_mbarrier_init();
    }
    __syncthreads();
  }
};

}  // namespace froghopper::fwd
