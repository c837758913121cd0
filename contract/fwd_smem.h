// SPDX-License-Identifier: Apache-2.0
// contract: what a CTA of the forward kernel has: shared memory in bytes, the stages that follow from it, threads, its
// part of an SM's registers, and the way by which O leaves.
#pragma once
#include "contract/fwd_variant.h"
#include "contract/types.h"

namespace froghopper {

constexpr int fwd_tile_bytes(FwdVariant v, int rows, int dim) {
  return rows * panels(dim, fwd_element_bytes(v)) * panel_row_bytes;
}
// Work items and barriers after the tiles, rounded up to the tiles' alignment. The kernel asserts that sizeof(Smem) is
// fwd_smem_bytes().
constexpr int fwd_barrier_bytes = 1024;
constexpr int fwd_q_bytes(FwdVariant v) { return fwd_tile_bytes(v, v.tiles.q, v.dims.qk); }
// Of K and V in the form that wgmma reads. There, unlike in memory, the keys of 8-bit V run along its rows.
constexpr int fwd_stages_bytes(FwdVariant v) {
  const int k = fwd_tile_bytes(v, v.tiles.kv, v.dims.qk), values = fwd_tile_bytes(v, v.tiles.kv, v.dims.v);
  return v.tiles.stages * (k + (fwd_fp8_mma(v) ? fwd_tile_bytes(v, v.dims.v, v.tiles.kv) : values));
}
// A tile as it is in memory, which waits to be transposed (V) or dequantised (K and V alternate).
constexpr int fwd_stored_bytes(FwdVariant v) {
  const int dim = fwd_dequantises_on_load(v) && v.dims.qk > v.dims.v ? v.dims.qk : v.dims.v;
  return v.tiles.kv * panels(dim, size_of(v.kv.dtype)) * panel_row_bytes;
}
// Tiles whose rows' scales are on their way: a tile of 64 keys takes about as long as a load from memory. Above head
// dim 256 a tile takes longer, and there is no room for more.
constexpr int fwd_token_scales_ahead(FwdVariant v) { return v.dims.qk > 256 || v.dims.v > 256 ? 1 : 3; }
// The scales and stored_ring, rounded up as fwd_barrier_bytes; then TokenFactors of each stage and the scales of rows
// that are on their way, likewise.
constexpr int fwd_scales_bytes(FwdVariant v) {
  const int of_stage = 2 * v.tiles.kv + 2, ahead = 2 * v.tiles.kv * fwd_token_scales_ahead(v);
  const int of_tokens = v.kv.token_scales ? 4 * (of_stage * v.tiles.stages + ahead) : 0;
  return 1024 + (of_tokens + 1023) / 1024 * 1024;
}
// Stages of stored tiles. Where tiles are dequantised, these stages are all that is on its way from memory, so there
// are as many as fit: up to 4, which is K and V of two iterations. PackGQA variants, which wait for nothing but
// memory, have up to 8. Where two of their CTAs can share an SM they do, and the stages fit in half of its shared
// memory.
constexpr int fwd_stored_stages(FwdVariant v) {
  if (!fwd_dequantises_on_load(v)) return 2;
  const int others = fwd_q_bytes(v) + fwd_stages_bytes(v) + fwd_scales_bytes(v) + fwd_barrier_bytes;
  const bool halves = v.pack_gqa && others + 2 * fwd_stored_bytes(v) <= smem_bytes_of_half;
  const int fit = ((halves ? smem_bytes_of_half : smem_bytes_per_cta) - others) / fwd_stored_bytes(v);
  const int most = v.pack_gqa ? 8 : 4;
  return fit >= most ? most : fit >= 3 ? fit : 2;
}
constexpr int fwd_ring_bytes(FwdVariant v) {
  return fwd_stages_bytes(v) +
         (fwd_reads_8_bit(v) ? fwd_stored_stages(v) * fwd_stored_bytes(v) + fwd_scales_bytes(v) : 0);
}
// PackGQA variants have one M tile, and where one consumer has it, half of an SM's registers. Where they take half of
// its shared memory too, two CTAs share an SM; and the CTAs that combine parts find room next to one.
constexpr bool fwd_halves_fit(FwdVariant v, int q_stages) {
  return v.pack_gqa && fwd_consumers_per_m_tile(v) == 1 &&
         q_stages * fwd_q_bytes(v) + fwd_ring_bytes(v) + fwd_barrier_bytes <= smem_bytes_of_half;
}
constexpr int fwd_ctas_per_sm(FwdVariant v) { return fwd_halves_fit(v, 1) ? 2 : 1; }
// Whether two warps that dequantise are too few and there are registers for four, a warpgroup of their own. With
// products of 256 columns the compiler wants more than a thread of 512 can have.
constexpr bool fwd_dequantises_in_four_warps(FwdVariant v) {
  if (!fwd_dequantises_on_load(v)) return false;
  return v.pack_gqa ? fwd_ctas_per_sm(v) == 1 : fwd_consumers(v) <= 2 && v.dims.v <= 192;
}
constexpr int fwd_producer_warpgroups(FwdVariant v) { return fwd_dequantises_in_four_warps(v) ? 2 : 1; }
constexpr int fwd_threads(FwdVariant v) { return warpgroup * (fwd_producer_warpgroups(v) + fwd_consumers(v)); }
// CTAs among which an SM's registers are divided: the bound of the kernel's registers. For products of 256 columns the
// compiler wants more than half of an SM's registers, so one CTA may have all of them.
constexpr int fwd_ctas_by_registers(FwdVariant v) {
  return v.pack_gqa && v.dims.v <= 192 && !fwd_dequantises_in_four_warps(v) ? 2 : 1;
}
// Q is double-buffered where that fits.
constexpr int fwd_q_stages(FwdVariant v) {
  if (fwd_halves_fit(v, 1)) return fwd_halves_fit(v, 2) ? 2 : 1;
  return 2 * fwd_q_bytes(v) + fwd_ring_bytes(v) + fwd_barrier_bytes <= smem_bytes_per_cta ? 2 : 1;
}

// How the epilogue writes O. Four Consumers have no register left for TMA: spilled, they had 0.93 of the speed.
//   from_registers    Each thread stores its accumulators.
//   through_q         Each warp rounds its 16 rows of O into the Q stage of the finished item, and TMA stores them from
//                     there. Q of the next item is in the other stage, so the next item does not wait.
//   through_own_smem  Where Q has one stage: likewise through a buffer that is only for O, o_own_columns at a time.
enum class OStore { from_registers, through_q, through_own_smem };
constexpr int o_box_rows = 16, o_own_columns = 128;
constexpr int fwd_bytes_but_o(FwdVariant v) {
  return fwd_q_stages(v) * fwd_q_bytes(v) + fwd_ring_bytes(v) + fwd_barrier_bytes;
}
constexpr OStore fwd_o_store(FwdVariant v) {
  const bool is_plain = !v.pack_gqa && !fwd_splits(v) && !v.merges_lse && !v.batch_invariant && !fwd_reads_8_bit(v);
  if (!is_plain || fwd_consumers_per_m_tile(v) > 1 || fwd_consumers(v) > 3) return OStore::from_registers;
  if (fwd_q_stages(v) == 2) return v.dims.v <= v.dims.qk ? OStore::through_q : OStore::from_registers;
  const bool fits = fwd_bytes_but_o(v) + fwd_tile_bytes(v, v.tiles.q, o_own_columns) <= smem_bytes_per_cta;
  return fits && v.dims.v % o_own_columns == 0 ? OStore::through_own_smem : OStore::from_registers;
}
constexpr int fwd_smem_bytes(FwdVariant v) {
  const bool has_own = fwd_o_store(v) == OStore::through_own_smem;
  return fwd_bytes_but_o(v) + (has_own ? fwd_tile_bytes(v, v.tiles.q, o_own_columns) : 0);
}

}  // namespace froghopper
