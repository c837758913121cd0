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
  // Of Q; picks the wgmma type. O has the same type; where the kernel reads 8-bit K and V (fwd_reads_8_bit), f32 or a
  // 16-bit type, which is a parameter (EightBitParams::dtype_o).
  Dtype dtype;
  FwdKv kv;     // how K and V lie in memory, and what was done to them before: contract/kv_path.h
  Dims dims;    // head dims of the tiles: they size the register tiles and shared memory
  Tiles tiles;  // rows of the tiles, likewise; q in 64 a consumer warpgroup
  Mask mask;    // picks the loops: a loop without a mask has no compare
  bool ragged;  // sequences have lengths of their own (varlen, seqused), read on the device
  ScoreMods score_mods;
  bool pack_gqa;     // a tile has rows of several query heads: contract/split.h
  SplitKv split_kv;  // a work item may be a part of a tile's keys: contract/split.h
  bool merges_lse;   // O and lse become those over the keys of earlier calls too, which they hold; O is f32
  // Every tile takes the exact step, so a row's bits depend on no other: device/fwd/batch_invariant.cuh
  bool batch_invariant;
  bool max_logit;  // the largest score is looked for, in a loop that has no need of it: device/fwd/max_logit.cuh
  bool gated;      // O is multiplied by the sigmoid of a tensor, which the epilogue reads: device/fwd/gate.cuh

  bool operator==(const FwdVariant&) const = default;
};

// Every field once, in the order of a name: visit(word, field), or visit(word, field, usual) for one that is not
// spelled where it is as usual. Name, parser and kernel source (src/plan/kernel.hpp) follow only from this list.
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
  visit("softcap", v.score_mods.softcap);
  visit("packgqa", v.pack_gqa);
  visit("", v.split_kv);
  visit("alibi", v.score_mods.alibi);
  visit("merges", v.merges_lse);
  visit("invariant", v.batch_invariant);
  visit("smooth", v.kv.smooth);
  visit("maxlogit", v.max_logit);
  visit("dequantised", v.kv.dequantised);
  visit("blocks", v.kv.blocks);
  visit("", v.kv.layout);
  visit("tokenscales", v.kv.token_scales);
  visit("gate", v.gated);
}

constexpr bool fwd_splits(FwdVariant v) { return v.split_kv != SplitKv::none; }
constexpr bool fwd_splits_evenly(FwdVariant v) { return v.split_kv == SplitKv::even; }

// What the kernel does with K and V, and what follows from that.
constexpr KvPath fwd_kv_path(FwdVariant v) { return kv_path(v.dtype, v.kv, v.pack_gqa); }
constexpr bool fwd_has_scales(FwdVariant v) { return has_scales(fwd_kv_path(v)); }
constexpr bool fwd_has_item_scale(FwdVariant v) { return has_item_scale(fwd_kv_path(v)); }
constexpr bool fwd_reads_8_bit(FwdVariant v) { return reads_8_bit(fwd_kv_path(v)); }
constexpr bool fwd_fp8_mma(FwdVariant v) { return fwd_kv_path(v) == KvPath::fp8_mma; }
constexpr bool fwd_dequantises_on_load(FwdVariant v) { return fwd_kv_path(v) == KvPath::dequantises_on_load; }
constexpr bool fwd_dequantised_by_earlier_launch(FwdVariant v) {
  return is_dequantised_by_earlier_launch(fwd_kv_path(v));
}
constexpr bool fwd_block_scales(FwdVariant v) { return fwd_kv_path(v) == KvPath::dequantised_blocks; }
// Q becomes f16 as K and V do where it is not: device/fwd/queries_in_f16.cuh.
constexpr bool fwd_converts_q(FwdVariant v) { return fwd_dequantises_on_load(v) && v.dtype != Dtype::f16; }
constexpr int fwd_element_bytes(FwdVariant v) { return element_bytes(fwd_kv_path(v)); }

// Head dims above 256 of O do not fit the registers of one Consumer. Then two share an M tile: each computes all of S,
// and has a half of O's columns. docs/3-forward.md, "Head dims above 256".
constexpr int fwd_consumers_per_m_tile(FwdVariant v) { return v.dims.v > 256 ? 2 : 1; }
constexpr int fwd_columns(FwdVariant v) { return v.dims.v / fwd_consumers_per_m_tile(v); }  // of O, that each has
constexpr int fwd_consumers(FwdVariant v) { return v.tiles.q / m_tile_rows * fwd_consumers_per_m_tile(v); }

// Above head dim 64 S, P and O of FP8 MMAs are more than each of three Consumers has registers for. So none has S and P
// together: it multiplies weights as soon as they are rounded, and products of the others overlap with its softmax.
constexpr bool fwd_immediate_pv(FwdVariant v) { return fwd_fp8_mma(v) && fwd_consumers(v) == 3 && v.dims.v > 64; }

// wgmma sums FP8 products in 14 bits, so O is added to a sum in fp32, and begins anew, every 16 kv tiles; where tiles
// have more than scale_block keys, after as many tiles as have no more than 16 x scale_block keys.
constexpr int promotion_tiles = 16;
constexpr int fwd_promotion_tiles(FwdVariant v) {
  return v.tiles.kv > scale_block ? promotion_tiles * scale_block / v.tiles.kv : promotion_tiles;
}
// At head dim 256 an add of all columns after one tile would wait for L2, so O is cut into four slices, and one of them
// is added every fourth tile. Measured: docs/experiments/0026.
constexpr int promotion_slices(int dim_v, bool masked) { return dim_v > 192 && !masked ? 4 : 1; }
constexpr int fwd_promotion_slices(FwdVariant v) { return promotion_slices(v.dims.v, v.mask != Mask::none); }
// fp32 values of one consumer's sum: for each thread what counts for its two rows, a header of 4 for each slice of O,
// and its values of O.
constexpr int fwd_sums_headers(FwdVariant v) { return fwd_fp8_mma(v) ? fwd_promotion_slices(v) : 1; }
constexpr int fwd_sums_floats(FwdVariant v) { return warpgroup * (4 * fwd_sums_headers(v) + fwd_columns(v) / 2); }
// Whether a row that attends to `keys` keys has such a sum.
constexpr bool fwd_promotes(FwdVariant v, long long keys) {
  return fwd_fp8_mma(v) && (keys - 1) / v.tiles.kv > fwd_promotion_tiles(v);
}

// The same of batch-invariant variants: parts of keys that one item has are merged.
constexpr bool fwd_merges_parts(FwdVariant v) { return v.batch_invariant && !fwd_splits(v); }

}  // namespace froghopper
