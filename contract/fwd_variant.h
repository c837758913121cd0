// SPDX-License-Identifier: Apache-2.0
// contract: the compile-time half of the agreement between planner (host) and forward kernel (device).
// Two variants are equal if and only if they compile to the same machine code.
#pragma once
#include "contract/fields.h"
#include "contract/kv_path.h"
#include "contract/split.h"
#include "contract/types.h"

namespace froghopper {

struct FwdVariant {
  Dtype dtype;    // of Q; picks the wgmma type. O has the same, or where scales are (fwd_scaled), that or a wider one
  FwdKv kv;       // how K and V lie in memory: contract/kv_path.h
  Dims dims;      // columns of the tiles: they size the register tiles and shared memory
  Tiles tiles;    // rows of the tiles, likewise; q in 64 a consumer warpgroup
  Mask mask;      // picks the loops: a loop without a mask has no compare
  bool ragged;    // sequences have lengths of their own (varlen, seqused), read on the device
  bool softcap;   // scores pass through tanh
  bool pack_gqa;  // a tile has rows of several query heads: contract/split.h
  bool split_kv;  // a work item may be a part of a tile's keys: contract/split.h
  bool alibi;     // scores fall with the distance of the keys: device/fwd/score_mod.cuh
  bool merges_lse;  // O and lse become those over the keys of earlier calls too, which they hold; O is f32
  // Every tile takes the exact step, so a row's bits depend on no other: device/fwd/batch_invariant.cuh
  bool batch_invariant;
  bool max_logit;  // the largest score is looked for, in a loop that has no need of it: device/fwd/max_logit.cuh

  bool operator==(const FwdVariant&) const = default;
};

// Every field once, in the order of a name: visit(word, field), or visit(word, field, usual) for one that is not
// spelled where it is as usual. Name, parser and kernel source (src/plan/kernel.hpp) follow from this list alone.
template <class Variant, class Visit>
constexpr void visit_fields(Variant& v, Visit&& visit) requires same<const Variant, const FwdVariant> {
  visit("", v.dtype);
  visit("", v.kv.dtype, v.dtype);
  visit("d", v.dims.qk);
  visit("dv", v.dims.v, v.dims.qk);
  visit("q", v.tiles.q);
  visit("kv", v.tiles.kv);
  visit("s", v.tiles.stages);
  visit("", v.mask);
  visit("ragged", v.ragged);
  visit("softcap", v.softcap);
  visit("packed", v.pack_gqa);
  visit("split", v.split_kv);
  visit("alibi", v.alibi);
  visit("acc", v.merges_lse);
  visit("exact", v.batch_invariant);
  visit("smooth", v.kv.smooth);
  visit("maxlogit", v.max_logit);
  visit("widened", v.kv.dequantised);
  visit("blocks", v.kv.blocks);
  visit("", v.kv.in);
}

// What the kernel does with K and V, and what follows from that.
constexpr KvPath fwd_kv_path(FwdVariant v) { return kv_path(v.dtype, v.kv, v.pack_gqa); }
constexpr bool fwd_has_scales(FwdVariant v) { return has_scales(fwd_kv_path(v)); }
constexpr bool fwd_has_item_scale(FwdVariant v) { return has_item_scale(fwd_kv_path(v)); }
constexpr bool fwd_scaled(FwdVariant v) { return reads_8_bit(fwd_kv_path(v)); }
constexpr bool fwd_fp8_mma(FwdVariant v) { return fwd_kv_path(v) == KvPath::fp8_mma; }
constexpr bool fwd_dequantises(FwdVariant v) { return fwd_kv_path(v) == KvPath::dequantises; }
constexpr bool fwd_dequantised(FwdVariant v) { return is_dequantised(fwd_kv_path(v)); }
constexpr bool fwd_block_scales(FwdVariant v) { return fwd_kv_path(v) == KvPath::dequantised_blocks; }
// Q becomes f16 as K and V do where it is not: device/fwd/queries_in_f16.cuh.
constexpr bool fwd_converts_q(FwdVariant v) { return fwd_dequantises(v) && v.dtype != Dtype::f16; }
constexpr int fwd_element_bytes(FwdVariant v) { return element_bytes(fwd_kv_path(v)); }

// Head dims above 256 of O do not fit the registers of one Consumer. Then two share an M tile: each computes all of S,
// and has a half of O's columns. docs/3-forward.md, "Head dims above 256".
constexpr int fwd_sharers(FwdVariant v) { return v.dims.v > 256 ? 2 : 1; }
constexpr int fwd_columns(FwdVariant v) { return v.dims.v / fwd_sharers(v); }  // of O, that each has
constexpr int fwd_consumers(FwdVariant v) { return v.tiles.q / m_tile_rows * fwd_sharers(v); }

// S, P and O of 8-bit types with 96 and 128 columns are more than each of three Consumers has registers for. So none
// has S and P together: it multiplies weights as soon as they are rounded, and products of the others run beside its
// softmax.
constexpr bool fwd_immediate_pv(FwdVariant v) { return fwd_fp8_mma(v) && fwd_consumers(v) == 3 && v.dims.v > 64; }

// wgmma adds up FP8 products to 14 bits, so after this many kv tiles of scale_block keys O is added to a sum in fp32
// and begins anew; of larger tiles after as many as have no more keys.
constexpr int promotion_tiles = 16;
constexpr int fwd_promotion_tiles(FwdVariant v) {
  return v.tiles.kv > scale_block ? promotion_tiles * scale_block / v.tiles.kv : promotion_tiles;
}
// 256 columns are more than L2 takes in at once without being waited for, so a part of them goes every fourth tile.
// Measured: docs/experiments/0026.
constexpr int promotion_parts(int dim_v, bool masked) { return dim_v > 192 && !masked ? 4 : 1; }
constexpr int fwd_promotion_parts(FwdVariant v) { return promotion_parts(v.dims.v, v.mask != Mask::none); }
// fp32 numbers of one consumer's sum: for each thread what counts for its two rows, 4 for each part, and its part of O.
constexpr int fwd_sums_heads(FwdVariant v) { return fwd_fp8_mma(v) ? fwd_promotion_parts(v) : 1; }
constexpr int fwd_sums_floats(FwdVariant v) { return warpgroup * (4 * fwd_sums_heads(v) + fwd_columns(v) / 2); }
// Whether a row with so many keys has such a sum.
constexpr bool fwd_promotes(FwdVariant v, long long keys) {
  return fwd_fp8_mma(v) && (keys - 1) / v.tiles.kv > fwd_promotion_tiles(v);
}

// The same of batch-invariant variants: parts of keys that one item has are joined in a sum.
constexpr bool fwd_joins(FwdVariant v) { return v.batch_invariant && !v.split_kv; }

// Shared memory in bytes.
constexpr int fwd_tile_bytes(FwdVariant v, int rows, int dim) {
  return rows * panels(dim, fwd_element_bytes(v)) * panel_row_bytes;
}
constexpr int fwd_barrier_bytes =
    1024;  // work items and barriers after the tiles, rounded up to the tiles' alignment
constexpr int fwd_q_bytes(FwdVariant v) { return fwd_tile_bytes(v, v.tiles.q, v.dims.qk); }
// Of K and V in the form that wgmma reads. 8-bit V has keys along its rows there, as it is not in memory.
constexpr int fwd_stages_bytes(FwdVariant v) {
  const int k = fwd_tile_bytes(v, v.tiles.kv, v.dims.qk), values = fwd_tile_bytes(v, v.tiles.kv, v.dims.v);
  return v.tiles.stages * (k + (fwd_fp8_mma(v) ? fwd_tile_bytes(v, v.dims.v, v.tiles.kv) : values));
}
// A tile as it is in memory, which waits to be transposed (V) or dequantised (K and V take turns).
constexpr int fwd_stored_bytes(FwdVariant v) {
  const int dim = fwd_dequantises(v) && v.dims.qk > v.dims.v ? v.dims.qk : v.dims.v;
  return v.tiles.kv * panels(dim, size_of(v.kv.dtype)) * panel_row_bytes;
}
constexpr int fwd_scales_bytes = 1024;  // and the ring of such tiles, rounded up as fwd_barrier_bytes
// How many of them. Where they are dequantised, what lies there is what is on its way from memory: as many as fit, up
// to two iterations of both; PackGQA variants, which wait for nothing else, up to four, and two CTAs share an SM where
// they can.
constexpr int fwd_stored_stages(FwdVariant v) {
  if (!fwd_dequantises(v)) return 2;
  const int others = fwd_q_bytes(v) + fwd_stages_bytes(v) + fwd_scales_bytes + fwd_barrier_bytes;
  const bool halves = v.pack_gqa && others + 2 * fwd_stored_bytes(v) <= smem_bytes_of_half;
  const int fit = ((halves ? smem_bytes_of_half : smem_bytes_per_cta) - others) / fwd_stored_bytes(v);
  const int most = v.pack_gqa ? 8 : 4;
  return fit >= most ? most : fit >= 3 ? fit : 2;
}
constexpr int fwd_ring_bytes(FwdVariant v) {
  return fwd_stages_bytes(v) + (fwd_scaled(v) ? fwd_stored_stages(v) * fwd_stored_bytes(v) + fwd_scales_bytes : 0);
}
// PackGQA variants have one M tile, and where one consumer has it, half of an SM's registers. Where they take half of
// its shared memory too, two CTAs share an SM; and the CTAs that combine parts find room beside one.
constexpr bool fwd_halves_fit(FwdVariant v, int q_stages) {
  return v.pack_gqa && fwd_sharers(v) == 1 &&
         q_stages * fwd_q_bytes(v) + fwd_ring_bytes(v) + fwd_barrier_bytes <= smem_bytes_of_half;
}
constexpr int fwd_ctas_per_sm(FwdVariant v) { return fwd_halves_fit(v, 1) ? 2 : 1; }
// Whether two warps that dequantise are too few and there are registers for four, a warpgroup of their own. Beside
// products of 256 columns the compiler wants more than a thread of 512 can have.
constexpr bool fwd_dequantises_in_four_warps(FwdVariant v) {
  if (!fwd_dequantises(v)) return false;
  return v.pack_gqa ? fwd_ctas_per_sm(v) == 1 : fwd_consumers(v) <= 2 && v.dims.v <= 192;
}
constexpr int fwd_producer_groups(FwdVariant v) { return fwd_dequantises_in_four_warps(v) ? 2 : 1; }
constexpr int fwd_threads(FwdVariant v) { return warpgroup * (fwd_producer_groups(v) + fwd_consumers(v)); }
// Of an SM's registers. The compiler wants more than half of them for products of 256 columns; all that a thread can
// have is enough then.
constexpr int fwd_register_shares(FwdVariant v) {
  return v.pack_gqa && v.dims.v <= 192 && !fwd_dequantises_in_four_warps(v) ? 2 : 1;
}
// Q is double-buffered where that fits.
constexpr int fwd_q_stages(FwdVariant v) {
  if (fwd_halves_fit(v, 1)) return fwd_halves_fit(v, 2) ? 2 : 1;
  return 2 * fwd_q_bytes(v) + fwd_ring_bytes(v) + fwd_barrier_bytes <= smem_bytes_per_cta ? 2 : 1;
}

// How O leaves its Consumer.
//   from_registers   each thread stores what it has
//   through_q        a warp rounds its rows into the place of Q, and the copy engine takes them from there. The next
//                    item's Q has the other stage, so nobody waits
//   through_own_smem  where Q has one stage: into a place of O's own, so many columns at a time
// Four Consumers have no register left for it: spilled, they had 0.93 of the speed.
enum class OStore { from_registers, through_q, through_own_smem };
constexpr int o_box_rows = 16, o_own_columns = 128;
constexpr int fwd_bytes_but_o(FwdVariant v) {
  return fwd_q_stages(v) * fwd_q_bytes(v) + fwd_ring_bytes(v) + fwd_barrier_bytes;
}
constexpr OStore fwd_o_store(FwdVariant v) {
  const bool is_plain = !v.pack_gqa && !v.split_kv && !v.merges_lse && !v.batch_invariant && !fwd_scaled(v);
  if (!is_plain || fwd_sharers(v) > 1 || fwd_consumers(v) > 3) return OStore::from_registers;
  if (fwd_q_stages(v) == 2) return v.dims.v <= v.dims.qk ? OStore::through_q : OStore::from_registers;
  const bool fits = fwd_bytes_but_o(v) + fwd_tile_bytes(v, v.tiles.q, o_own_columns) <= smem_bytes_per_cta;
  return fits && v.dims.v % o_own_columns == 0 ? OStore::through_own_smem : OStore::from_registers;
}
constexpr int fwd_smem_bytes(FwdVariant v) {
  const bool has_own = fwd_o_store(v) == OStore::through_own_smem;
  return fwd_bytes_but_o(v) + (has_own ? fwd_tile_bytes(v, v.tiles.q, o_own_columns) : 0);
}

// One truth, two judges: the planner turns the text into an error, the kernel static_asserts that there is none.
// Sizes are bounded one by one first, so that no product of them overflows.
constexpr const char* why_invalid(FwdVariant v) {
  if (v.dtype == Dtype::f32) return "wgmma takes f16, bf16, e4m3 and e5m2 here, not f32";
  if (v.kv.dtype != v.dtype && (is_8_bit(v.dtype) || !is_8_bit(v.kv.dtype)))
    return "k and v have the type of q, or 8 bits beside f16 and bf16";
  const bool one_scale = fwd_fp8_mma(v) && v.tiles.kv == 192;  // of a sequence; the planner sees to that
  if (fwd_scaled(v) && v.tiles.kv != scale_block / 2 && v.tiles.kv != scale_block && !one_scale)
    return "tiles of 8-bit k and v have 64 or 128 rows, which share a scale, or beside 8-bit q 192";
  if (v.dims.qk % 32 != 0 || v.dims.qk < 64 || v.dims.qk > 512) return "dim_qk of the tile must be 64, 96, ... 512";
  if (v.dims.v % 32 != 0 || v.dims.v < 64 || v.dims.v > 512 || (fwd_sharers(v) > 1 && v.dims.v % 128 != 0))
    return "dim_v of the tile must be 64, 96, ... 256, 384 or 512";
  if (fwd_scaled(v) && (v.dims.qk > 256 || v.dims.v > 256)) return "tiles of 8-bit k and v have up to 256 columns";
  if (fwd_sharers(v) > 1 && v.tiles.q != m_tile_rows)
    return "tiles of q have 64 rows beside more than 256 columns of v, whose halves take two consumers";
  if (is_8_bit(v.dtype) && v.split_kv && !v.pack_gqa) return "tiles of 8-bit q are split where they are packed";
  if ((v.mask == Mask::chunk || v.alibi || v.merges_lse) && (v.pack_gqa || v.split_kv))
    return "tiles with chunks, alibi or acc are neither packed nor split";
  if (v.alibi && fwd_scaled(v)) return "there is no alibi on top of scores of 8-bit k";
  if (v.pack_gqa && v.tiles.q != m_tile_rows) return "packed tiles of q have 64 rows";
  if (v.pack_gqa && !v.split_kv) return "there is no kernel with packed tiles that may not be split";
  if (v.kv.smooth && (!fwd_scaled(v) || v.softcap))
    return "means are of 8-bit k and v, and of scores without a softcap";
  const bool plain =
      !v.pack_gqa && !v.split_kv && !v.batch_invariant && !v.softcap && !v.alibi && !v.merges_lse && !v.kv.smooth;
  if (v.kv.dequantised && (v.kv.dtype == v.dtype || v.max_logit || !plain))
    return "an earlier launch widens 8-bit k and v for plain tiles of 16-bit q";
  const bool in_block = v.tiles.kv == scale_block || v.tiles.kv == scale_block / 2;
  if (v.kv.blocks && (!v.kv.dequantised || v.dtype != Dtype::bf16 || !in_block))
    return "weights times scales of v are in the range of bf16 alone, and a tile has 64 or 128 keys, which share a "
           "scale";
  if (v.kv.in != KvIn::rows && (!v.ragged || v.kv.dequantised))
    return "a kernel for pages is ragged and reads k and v as they are in memory";
  if (v.batch_invariant && is_8_bit(v.dtype)) return "8-bit q, k and v have no exact kernel";
  if (v.batch_invariant && v.tiles.kv != batch_invariant_tile_kv) return "exact kernels have tiles of 64 keys";
  if (v.tiles.q % m_tile_rows != 0 || v.tiles.q < m_tile_rows || v.tiles.q > 4 * m_tile_rows)
    return "tiles of q have 64 rows x (1 to 4 consumers)";
  if (v.tiles.kv % 16 != 0 || v.tiles.kv < 32 || v.tiles.kv > 256)
    return "tiles of k and v have a multiple of 16 rows, 32 to 256";
  if (v.tiles.stages < 2 || v.tiles.stages > 16) return "the K and V rings have 2 to 16 stages";
  if (fwd_smem_bytes(v) > smem_bytes_per_cta) return "the tiles do not fit the shared memory of one CTA";
  return nullptr;
}

// The kernel that adds up the parts of rows.
struct CombineVariant {
  Dtype dtype;           // of O; f32 with 8-bit k and v
  int dim_v;             // columns of a row, rounded up to 64, 128, 256 or 512
  int parts;             // that are on their way from memory at once: their columns take registers
  bool batch_invariant;  // of a batch-invariant kernel: joined from the last to the first, as it joins them itself
  bool operator==(const CombineVariant&) const = default;
};

template <class Variant, class Visit>
constexpr void visit_fields(Variant& v, Visit&& visit) requires same<const Variant, const CombineVariant> {
  visit("", v.dtype);
  visit("dv", v.dim_v);
  visit("p", v.parts);
  visit("exact", v.batch_invariant);
}

constexpr int combine_threads = 128;
// So many lanes have a row. Many parts are weighed by a warp, one by each lane; few by every lane, and what a row takes
// besides, places and divisions, is shared with the other rows of a warp. A lane holds 4 parts of 8 or 16 columns then.
constexpr int combine_lanes(CombineVariant v) {
  if (v.batch_invariant || v.parts > 4) return 32;
  return v.dim_v <= 128 ? 8 : v.dim_v == 256 ? 16 : 32;
}
constexpr int combine_rows(CombineVariant v) { return combine_threads / combine_lanes(v); }  // of a CTA
constexpr int combine_smem_bytes = 16;  // unused; the compiler keeps no constant that is 0

constexpr int combine_parts_most(int dim_v) { return dim_v > 256 ? 8 : 16; }  // on their way at once

constexpr const char* why_invalid(CombineVariant v) {
  if (is_8_bit(v.dtype)) return "rows are f16, bf16 or f32 here";
  if (v.dim_v != 64 && v.dim_v != 128 && v.dim_v != 256 && v.dim_v != 512)
    return "a row has 64, 128, 256 or 512 columns";
  if (v.parts != 4 && v.parts != combine_parts_most(v.dim_v))
    return "4 or 16 parts are on their way at once, of 512 columns 4 or 8";
  return nullptr;
}

}  // namespace froghopper
