// SPDX-License-Identifier: Apache-2.0
// plan: whether K and V of 8 bits get q's type in a launch before the one that multiplies them. docs/10-fp8.md,
// "16-bit q with 8-bit k and v".
#include "contract/fwd_legality.h"
#include "src/plan/forward.hpp"
#include "src/plan/time.hpp"

namespace froghopper {
namespace {

// Of the workspace. A cache of more is dequantised tile by tile.
constexpr double dequantised_most = 1 << 30;

double dequantised_bytes(const Problem& p, bool blocks) {
  return size_of(p.dtype) * numbers_of_keys(p) +
         (blocks ? block_scale_bytes * static_cast<double>(block_scales(p)) : 0);
}

// The keys of a tile share a scale.
Tiles within_blocks(Tiles tiles) {
  const int keys = tiles.kv >= scale_block ? scale_block : scale_block / 2;
  return {.q = tiles.q, .kv = keys, .stages = tiles.stages * tiles.kv / keys};
}

}  // namespace

// Packed sequences may be far shorter than their bound, which counts here.
int64_t block_scales(const Problem& p) { return p.batch * p.heads_kv * block_scales_of_head(p.seq_kv); }

// The kernel of a problem whose k and v have q's type from the start, except for their scales. Nothing where there is
// none.
std::optional<FwdVariant> dequantised_variant(const Problem& p, const FwdVariant& otherwise, const Device& device) {
  FwdVariant v = otherwise;
  v.split_kv = false, v.kv.dequantised = true;
  v.kv.blocks = p.scale_rows > 0 || p.scale_v_columns;
  if (p.dtype_o != p.dtype || p.rows_kv() == 0 || p.rows_q() == 0 || p.paged()) return {};
  if (fwd_block_scales(v) && block_scales(p) > items_max) return {};
  Problem wide = p;
  wide.dtype_kv = p.dtype;
  v.tiles = tuned_tiles(wide, v.dims, device);
  if (fwd_block_scales(v)) v.tiles = within_blocks(v.tiles);
  if (why_invalid(v) != nullptr) return {};
  return v;
}

bool pays_to_dequantise_first(const Problem& p, const FwdVariant& dequantised, const FwdVariant& otherwise,
                              int64_t parts, const Device& device) {
  if (dequantised_bytes(p, fwd_block_scales(dequantised)) > dequantised_most) return false;
  // A short window's kernels wait for memory too, which kernel_us leaves out: 255 keys of 256 columns 0.95 and 0.99 of
  // the speed on an H100.
  constexpr int64_t short_window = 1024;
  if (bounded_below(otherwise.mask) && keys_attended(p) < short_window) return false;
  const double own_us = kernel_us(p, otherwise, parts, device) + (parts > 1 ? combine_us(p, parts) : 0);
  return kernel_us(p, dequantised, 1, device) + dequantise_us(p, device) < own_us;
}

}  // namespace froghopper
