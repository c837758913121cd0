// SPDX-License-Identifier: Apache-2.0
// device/bwd: the Consumer of backward.cuh, whose head says how the roles act together: the main loop over the Q
// tiles of one M tile of keys. Kernel is Backward of a variant. The register tiles are locals of run() and arguments of
// every step, never fields: see device/fwd/consumer.cuh.
#pragma once
#include "contract/bwd_params.h"
#include "contract/bwd_variant.h"
#include "contract/types.h"
#include "device/bwd/columns.cuh"
#include "device/bwd/dq_sum.cuh"
#include "device/bwd/epilogue.cuh"
#include "device/bwd/q_loop.cuh"
#include "device/bwd/schedule.cuh"
#include "device/bwd/score_mod.cuh"
#include "device/bwd/weights.cuh"
#include "device/ptx/launch.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/registers.cuh"
#include "device/ptx/shared_memory.cuh"
#include "device/ptx/types.cuh"
#include "device/ptx/wgmma.cuh"
#include "device/tile/accum.cuh"
#include "device/tile/mma.cuh"

namespace froghopper::bwd {

template <class Kernel, int m_tile_index>
struct Consumer {
  static constexpr BwdVariant V = Kernel::variant;
  using Policy = typename Kernel::Policy;
  using T = typename Kernel::T;
  using KTile = typename Kernel::KTile;
  using VTile = typename Kernel::VTile;
  using DsTile = typename Kernel::DsTile;
  using Scores = typename Kernel::Scores;
  using Operand = typename Kernel::Operand;
  using GradK = typename Kernel::GradK;
  using GradV = typename Kernel::GradV;
  using DqPiece = tile::Accum<panel_columns>;  // of grad_q, this Consumer's
  static constexpr bool waits_q_early = Policy::waits_q_early, has_proxy_fencer = Policy::has_proxy_fencer,
                        recomputes_descriptors = Policy::recomputes_descriptors,
                        dq_is_transposed = Kernel::dq_is_transposed;

  // Whether an iteration may have no score of this M tile. A kv tile's q tiles are those of which a row attends to a
  // key of the tile. Under a mask the first of them may attend to no key of M tile 1, and under a window the last of
  // them to none of M tile 0: both only where a q tile has no more rows than an M tile has keys. Chunks have
  // lower bounds too, and are computed as if every tile had scores. Deterministic variants do not ask: it made them 2 %
  // slower.
  static constexpr bool may_be_fully_masked = V.tiles.q == m_tile_rows && !V.deterministic &&
                                              (m_tile_index == 1 ? V.mask != Mask::none : V.mask == Mask::window);

  const BwdParams& params;
  typename Kernel::Smem& smem;
  ptx::u32 items = 0;         // taken so far: gives stage and phase of the item, K and V rings
  ptx::u32 iteration = 0;     // iterations so far: gives those of the dS ring
  ptx::u32 q_loops = 0;       // deterministic only: items with iterations so far
  int left = 0;               // iterations of this item, with this one; waits_q_early only
  typename Kernel::QStage q;  // of Q and of grad_o
  // This Consumer's share of a tile of grad_q is one piece: 64 of the columns; or, where a q tile has 128 rows, 64 of
  // the rows.
  DqSum<V, DqShare{m_tile_index * panel_columns, panel_columns}> dq_sum{params};
  // This thread's, in the first stage of dS and in a piece of grad_q.
  ptx::u32 ds_address = ptx::opaque(tile::transposed_address(smem.ds[0], 0, (m_tile_index * m_tile_rows)));
  ptx::u32 dq_offset = ptx::opaque(dq_sum.offset());

  __device__ void run() {
    Scores s, dp;
    GradK dk;
    GradV dv;
    ptx::wait_for_earlier_kernels();
    while (true) {
      smem.item_ring.wait(items);
      if (item().is_end()) return;
      dk.clear();
      dv.clear();
      smem.k_ring.wait(items);
      smem.v_ring.wait(items);
      if (!item().q.none()) q_loop(s, dp, dk, dv);
      smem.k_ring.release(items);
      smem.v_ring.release(items);
      epilogue(dk, dv);
      __syncwarp();
      smem.item_ring.release(items);
      ++items;
    }
  }

  __device__ __forceinline__ KTile& k() const { return opaque_tile(smem.k[kv_stage()]); }
  __device__ __forceinline__ VTile& v() const { return opaque_tile(smem.v[kv_stage()]); }
  // Returns the tile itself. The offset is 0 when the kernel runs, but the compiler does not know that, so it computes
  // the tile's descriptors in every iteration and does not keep them in registers (recomputes_descriptors, policy.cuh).
  template <class Tile>
  __device__ __forceinline__ Tile& opaque_tile(Tile& tile) const {
    if constexpr (!recomputes_descriptors) return tile;
    return *reinterpret_cast<Tile*>(reinterpret_cast<char*>(&tile) + (iteration & params.zero));
  }
  __device__ int kv_stage() const { return Kernel::kv_stages == 1 ? 0 : ptx::opaque(Kernel::KvRing::stage(items)); }
  __device__ const WorkItem& item() const { return smem.items[smem.item_ring.stage(items)]; }
  __device__ int first_key() const { return Kernel::first_key(item()) + m_tile_index * m_tile_rows; }

  __device__ __forceinline__ void q_loop(Scores& s, Scores& dp, GradK& dk, GradV& dv) {
    QLoop q_loop(params, item(), m_tile_index);
    if constexpr (waits_q_early) {
      left = q_loop.all_q_iterations();
      q.wait(smem.q_ring);
    }
    masked_q_iteration</*First=*/true>(q_loop.large, s, dp, dk, dv);
    q_loop.count_first();
    do {
      for (; q_loop.masked > 0; --q_loop.masked) masked_q_iteration</*First=*/false>(q_loop.large, s, dp, dk, dv);
      for (; q_loop.unmasked > 0; --q_loop.unmasked)
        q_iteration</*Masked=*/false, /*First=*/false>(q_loop.large, s, dp, dk, dv);
    } while (q_loop.next());
    last_dq();
  }

  template <bool First>
  __device__ __forceinline__ void masked_q_iteration(bool large, Scores& s, Scores& dp, GradK& dk, GradV& dv) {
    if constexpr (may_be_fully_masked) {
      q.wait(smem.q_ring);
      if (key_mask().is_fully_masked(smem.q_iterations[q.stage].q_tile, first_key()))
        return fully_masked_q_iteration<First>();
    }
    q_iteration</*Masked=*/true, First>(large, s, dp, dk, dv);
  }

  // No row attends to a key of this M tile: its dS is zero, and the gradients of its keys get nothing.
  template <bool First>
  __device__ __forceinline__ void fully_masked_q_iteration() {
    DqPiece dq;
    Operand ds;
    ds.clear();
    smem.ds_ring.wait_room(iteration);
    store_ds(ds);
    if constexpr (!First) multiply_dq(dq, iteration - 1);
    publish_ds();
    q.wait(smem.grad_o_ring);
    q.release(smem.grad_o_ring);
    if constexpr (!First) {
      ptx::wgmma_wait<0>();
      smem.ds_ring.release(iteration - 1);
      add_dq(dq);
    }
    dq_sum.remember(smem.q_iterations[q.stage]);
    __syncwarp();
    q.release_and_advance(smem.q_ring);
    ++iteration;
  }

  template <bool Masked, bool First>
  __device__ __forceinline__ void q_iteration(bool large, Scores& s, Scores& dp, GradK& dk, GradV& dv) {
    DqPiece dq;
    Operand p, ds;
    const int stage = q.stage;

    if constexpr (!waits_q_early) q.wait(smem.q_ring);
    const typename Kernel::LseValues lse(smem.rows[stage].lse());
    tile::mma_abt<T>(s, k(), m_tile_index * m_tile_rows, smem.q[stage]);  // S^T
    q.wait(smem.grad_o_ring);
    tile::mma_abt<T>(dp, v(), m_tile_index * m_tile_rows, smem.grad_o[stage]);  // dP^T
    // Here what it reads comes while S is computed; before the products are issued there is no register for it.
    const ScoreMod<V> score_mod = key_mask().score_mod(key(), smem.q_iterations[stage]);
    ptx::wgmma_wait<1>();  // S is ready, dP is not
    const typename Kernel::DeltaValues delta(smem.rows[stage].delta());
    if constexpr (Masked)
      Weigh<V, true>{params, score_mod, large, key_mask().masked_out(key(), smem.q_iterations[stage].q_tile)}
          .template run<T>(s, p, lse);
    else
      Weigh<V, false>{params, score_mod}.template run<T>(s, p, lse);
    tile::mma_ab_add<T>(dv, p, smem.grad_o[stage]);
    ptx::wgmma_wait<1>();  // dP is ready, grad_v in flight
    to_ds(s, dp, delta);
    tile::round_to<T>(ds, s);
    smem.ds_ring.wait_room(iteration);
    store_ds(ds);
    if constexpr (!First) multiply_dq(dq, iteration - 1);
    tile::mma_ab_add<T>(dk, ds, smem.q[stage]);
    publish_ds();
    ptx::wgmma_wait<1>();  // grad_v and grad_q are ready, grad_k in flight
    q.release(smem.grad_o_ring);
    if constexpr (!First) smem.ds_ring.release(iteration - 1);
    if constexpr (waits_q_early) await_next_q();
    if constexpr (!First) add_dq(dq);
    dq_sum.remember(smem.q_iterations[stage]);
    ptx::wgmma_wait<0>();  // grad_k has read Q
    __syncwarp();
    q.release_and_advance(smem.q_ring);
    ++iteration;
  }

  __device__ __forceinline__ void await_next_q() {
    if (--left == 0) return;
    typename Kernel::QStage next = q;
    next.advance();
    next.wait(smem.q_ring);
  }

  __device__ __forceinline__ void last_dq() {
    DqPiece dq;
    multiply_dq(dq, iteration - 1);
    ptx::wgmma_wait<0>();
    smem.ds_ring.release(iteration - 1);
    add_dq(dq);
    if constexpr (V.deterministic) {
      __syncwarp();
      if (threadIdx.x % 32 == 0) smem.item_adds_issued.announce(q_loops);
      ++q_loops;
    }
  }

  __device__ __forceinline__ KeyMask<V> key_mask() const { return KeyMask<V>(params, item().lengths); }
  __device__ __forceinline__ int key() const { return first_key() + tile::thread_row(); }  // of the top values

  __device__ __forceinline__ void store_ds(const Operand& ds) {
    const int stage = smem.ds_ring.stage(iteration);
    if constexpr (recomputes_descriptors)
      tile::store_transposed_at<DsTile>(ds_address + stage * DsTile::bytes, ds);
    else
      tile::store_transposed(smem.ds[stage], 0, m_tile_index * m_tile_rows, ds);
    if constexpr (has_proxy_fencer) {
      __syncwarp();
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&smem.ds_stored[stage]);
    }
  }

  // This warp's rows of dS are in place, for wgmma too.
  __device__ __forceinline__ void publish_ds() {
    if constexpr (!has_proxy_fencer) {
      ptx::fence_proxy_async_shared();
      __syncwarp();
      if (threadIdx.x % 32 == 0) smem.ds_ring.arrive_full(iteration);
    }
  }

  __device__ __forceinline__ void multiply_dq(DqPiece& dq, ptx::u32 of) {
    DsTile& ds = smem.ds[smem.ds_ring.stage(of)];
    smem.ds_ring.wait(of);
    if constexpr (dq_is_transposed)
      tile::mma_atbt<T>(dq, k(), m_tile_index * panel_columns, ds, 0);
    else
      tile::mma_ab<T>(dq, ds, m_tile_index * m_tile_rows, k(), 0);
  }

  // Of the iteration before.
  __device__ __forceinline__ void add_dq(const DqPiece& dq) {
    // At head dim 96 this warp may have none.
    if (!dq_is_transposed || m_tile_index * m_tile_rows + threadIdx.x / 32 % 4 * 16 < V.dims.qk)
      dq_sum.add(dq, recomputes_descriptors ? dq_offset : dq_sum.offset());
  }

  __device__ void epilogue(GradK& dk, GradV& dv) {
    dk.scale_rows(params.scale, params.scale);
    const RowsOfKeys rows(params, item(), first_key(), V.ragged);
    rows.template store<T>(params.grad_v, dv);
    rows.template store<T>(params.grad_k, dk);
  }
};

}  // namespace froghopper::bwd
