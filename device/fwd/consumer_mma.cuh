// SPDX-License-Identifier: Apache-2.0
// device/fwd: the two products of a Consumer, S = Q K^T and O += P V, and the stages of K and V that they read. It
// waits for those and releases them, and no other code does; for Q, consumer_q.cuh does. Kernel is Forward of a
// variant; the head of forward.cuh has the barriers.
#pragma once
#include "contract/fwd_variant.h"
#include "contract/tile_sequence.h"
#include "contract/types.h"
#include "device/attn/tile_scales.cuh"
#include "device/fwd/kv_source.cuh"
#include "device/fwd/mma_order.cuh"
#include "device/fwd/output_columns.cuh"
#include "device/ptx/registers.cuh"
#include "device/tile/mma.cuh"

namespace froghopper::fwd {

template <class Kernel>
struct ConsumerMma {
  static constexpr FwdVariant V = Kernel::variant;
  using T = typename Kernel::T;
  using QTile = typename Kernel::QTile;
  using Scores = typename Kernel::Scores;
  using Operand = typename Kernel::Operand;
  using Output = typename Kernel::Output;

  // ptxas gives an instruction no more registers than each of all threads has at launch (C7602): of 512 threads not
  // enough for one of 256 columns.
  static constexpr bool splits_pv_by_n = fwd_columns(V) > 192 && Kernel::threads > 3 * warpgroup;
  // Else the compiler keeps the descriptors of 32 products in registers from outside of the loop, and spills others.
  static constexpr bool recomputes_q_descriptors = Kernel::reads_8_bit && V.dims.qk > 256;

  typename Kernel::Smem& smem;
  int half;  // of O's columns, where two Consumers share an M tile
  typename Kernel::MmaOrderIfAny order;
  typename Kernel::KvStage k, v;

  // S of a tile, issued. m_tile_index: of the M tile in q. read_scales() comes before the product: a load behind
  // products waits until they have read their operands.
  // immediate_pv: K of this tile came long ago, so it is awaited before the turn is taken. Elsewhere K is awaited
  // within the turn; why nothing hangs then: mma_order.cuh.
  template <class ReadScales>
  __device__ __forceinline__ void qk(Scores& s, QTile& q, int m_tile_index, const ReadScales& read_scales) {
    if (Kernel::immediate_pv) k.wait(smem.k_ring);
    order.wait_turn();
    if (!Kernel::immediate_pv) k.wait(smem.k_ring);
    fence_for_wgmma<V>();
    read_scales();
    const int row = m_tile_index * m_tile_rows;
    tile::mma_abt<T>(s, q, recomputes_q_descriptors ? ptx::opaque(row) : row, smem.k[k.stage]);
  }
  // Once, before the first product: lets the first Consumer issue.
  __device__ __forceinline__ void begin() const { order.begin(); }
  // Passes the turn to the next Consumer. Called when S has completed; between two items, when the last P V of the
  // finished item has completed and S of the next item is issued.
  __device__ __forceinline__ void pass_turn() const { order.pass_turn(); }
  // S once more, of the tile whose K is still held.
  __device__ __forceinline__ void qk_again(Scores& s, QTile& q, int m_tile_index) const {
    tile::mma_abt_by_warp<T>(s, q, m_tile_index * m_tile_rows, smem.k[k.stage]);
  }

  // O += P V, issued.
  __device__ __forceinline__ void pv(Output& o, const Operand& p) {
    wait_v();
    fence_for_wgmma<V>();
    if constexpr (Kernel::fp8_mma)
      tile::mma_abt<T>(o, p, smem.v[v.stage], /*accumulate=*/true);
    else if constexpr (splits_pv_by_n)
      tile::mma_ab_add_in_halves<T>(o, p, smem.v[v.stage], first_column<V>(half));
    else
      tile::mma_ab_add<T>(o, p, smem.v[v.stage], first_column<V>(half));
  }
  // The same of FP8 products, whose V is there. accumulate: else O = P V.
  __device__ __forceinline__ void pv_of_fp8(Output& o, const Operand& p, bool accumulate) const {
    tile::mma_abt<T>(o, p, smem.v[v.stage], accumulate);
  }
  __device__ __forceinline__ void wait_v() { v.wait(smem.v_ring); }
  __device__ __forceinline__ void release_v() { v.release_and_advance(smem.v_ring); }

  __device__ __forceinline__ void release_k() {
    if constexpr (Kernel::reads_8_bit) __syncwarp();  // every lane has read the scales
    k.release_and_advance(smem.k_ring);
  }

  // Tiles of the item that this M tile does not attend to.
  __device__ void skip_k(TileSequence<int> tiles) { skip(k, smem.k_ring, tiles, order); }
  __device__ void skip_v(TileSequence<int> tiles) { skip(v, smem.v_ring, tiles); }

  __device__ __forceinline__ attn::TileScales scales() const { return smem.scales[k.stage]; }
  __device__ __forceinline__ const auto& token_factors() const { return smem.factors[k.stage]; }
};

}  // namespace froghopper::fwd
