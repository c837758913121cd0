// SPDX-License-Identifier: Apache-2.0
// contract: which forward variants are kernels, and why others are not.
#pragma once
#include "contract/fwd_smem.h"
#include "contract/fwd_variant.h"
#include "contract/split.h"
#include "contract/types.h"

namespace froghopper {

// Null, or why this variant is no kernel. The planner turns the text into an error; the kernel static_asserts that
// there is none. Sizes are bounded one by one first, so that no product of them overflows.
constexpr const char* why_invalid(FwdVariant v) {
  if (v.dtype == Dtype::f32) return "wgmma takes f16, bf16, e4m3 and e5m2 here, not f32";
  if (v.kv.dtype != v.dtype && (is_8_bit(v.dtype) || !is_8_bit(v.kv.dtype)))
    return "k and v have the type of q, or an 8-bit type where q is f16 or bf16";
  const bool one_scale = fwd_fp8_mma(v) && v.tiles.kv == 192;  // of a sequence; the planner sees to that
  const bool above_256 = v.dims.qk > 256 || v.dims.v > 256;
  if (fwd_reads_8_bit(v) && !in_scale_block(v.tiles.kv) && !one_scale)
    return "tiles of 8-bit k and v have 32, 64 or 128 rows, which share a scale, or with 8-bit q 192";
  if (fwd_reads_8_bit(v) && v.tiles.kv < scale_block / 2 && !above_256 && !v.kv.token_scales)
    return "tiles of 8-bit k and v have 64 rows or more up to head dim 256";
  if (v.dims.qk % 32 != 0 || v.dims.qk < 64 || v.dims.qk > 512) return "dim_qk of the tile must be 64, 96, ... 512";
  if (v.dims.v % 32 != 0 || v.dims.v < 64 || v.dims.v > 512 ||
      (fwd_consumers_per_m_tile(v) > 1 && v.dims.v % 128 != 0))
    return "dim_v of the tile must be 64, 96, ... 256, 384 or 512";
  if (is_8_bit(v.dtype) && above_256) return "tiles of 8-bit q have head dims up to 256";
  if (fwd_consumers_per_m_tile(v) > 1 && v.tiles.q != m_tile_rows)
    return "tiles of q have 64 rows where v has a head dim above 256, which takes two consumers";
  if (is_8_bit(v.dtype) && fwd_splits(v) && !v.pack_gqa) return "tiles of 8-bit q have split-KV only with PackGQA";
  if ((v.mask == Mask::chunk || v.score_mods.alibi) && (v.pack_gqa || fwd_splits(v)))
    return "tiles with chunks or alibi have neither PackGQA nor split-KV";
  if (v.gated && v.merges_lse) return "O that is merged has no gate";
  if (v.pack_gqa && v.tiles.q != m_tile_rows) return "PackGQA tiles of q have 64 rows";
  if (v.pack_gqa && !fwd_splits(v)) return "there is no kernel with PackGQA that has no split-KV";
  if (fwd_splits_evenly(v) && (!v.ragged || !v.pack_gqa || v.batch_invariant))
    return "the keys of PackGQA tiles are split evenly where sequences have lengths of their own";
  if (v.kv.smooth && (!fwd_reads_8_bit(v) || v.score_mods.softcap))
    return "means are of 8-bit k and v, and of scores without a softcap";
  if (v.kv.token_scales &&
      (!fwd_dequantises_on_load(v) || is_8_bit(v.dtype) || v.kv.smooth || v.tiles.kv > scale_block / 2))
    return "rows of 8-bit k and v have scales with 16-bit q, without smooth, and with tiles of up to 64 keys";
  const bool plain = !v.pack_gqa && !fwd_splits(v) && !v.batch_invariant && !v.score_mods.softcap &&
                     !v.score_mods.alibi && !v.kv.smooth;
  if (v.kv.dequantised && (v.kv.dtype == v.dtype || v.max_logit || !plain))
    return "an earlier launch dequantises 8-bit k and v for plain tiles of 16-bit q";
  if (v.kv.blocks && v.merges_lse) return "weights that are merged have no scales of v in them";
  if (v.kv.blocks && (!v.kv.dequantised || v.dtype != Dtype::bf16 || !in_scale_block(v.tiles.kv)))
    return "weights times scales of v are only in the range of bf16, and 32, 64 or 128 keys of a tile share a scale";
  if (v.kv.layout != KvLayout::contiguous && (!v.ragged || v.kv.dequantised))
    return "a kernel for pages is ragged and reads k and v as they are in memory";
  if (v.batch_invariant && (is_8_bit(v.dtype) || is_8_bit(v.kv.dtype)))
    return "8-bit q, k and v have no batch-invariant kernel";
  if (v.batch_invariant && v.tiles.kv != batch_invariant_tile_kv)
    return "batch-invariant kernels have tiles of 64 keys";
  if (v.tiles.q % m_tile_rows != 0 || v.tiles.q < m_tile_rows || v.tiles.q > 4 * m_tile_rows)
    return "tiles of q have 64 rows x (1 to 4 consumers)";
  if (v.tiles.kv % 16 != 0 || v.tiles.kv < 32 || v.tiles.kv > 256)
    return "tiles of k and v have a multiple of 16 rows, 32 to 256";
  if (v.tiles.stages < 2 || v.tiles.stages > 16) return "the K and V rings have 2 to 16 stages";
  if (fwd_smem_bytes(v) > smem_bytes_per_cta) return "the tiles do not fit the shared memory of one CTA";
  return nullptr;
}

}  // namespace froghopper
