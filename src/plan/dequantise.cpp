// SPDX-License-Identifier: Apache-2.0
// plan: whether 8-bit K and V get q's type in a launch before the one that multiplies them. docs/10-fp8.md,
// "16-bit q with 8-bit k and v".
#include "contract/fwd_legality.h"
#include "src/plan/forward.hpp"
#include "src/plan/time.hpp"
#include "src/plan/tuning.hpp"

namespace froghopper {
namespace {

double dequantised_bytes(const Problem& p, bool blocks) {
  return size_of(p.dtype) * values_of_keys(p) +
         (blocks ? block_scale_bytes * static_cast<double>(block_scales(p)) : 0);
}

// The keys of a tile share a scale.
Tiles within_blocks(Tiles tiles) {
  int keys = scale_block;
  while (keys > tiles.kv) keys /= 2;
  return {.q = tiles.q, .kv = keys, .stages = tiles.stages * tiles.kv / keys};
}

}  // namespace

// Packed sequences may be far shorter than their bound, which counts here.
int64_t block_scales(const Problem& p) { return p.batch * p.heads_kv * block_scales_of_head(p.seq_kv); }

// The kernel of a problem whose k and v have q's type from the start, except for their scales. Nothing where there is
// none.
std::optional<FwdVariant> dequantised_variant(const Problem& p, const FwdVariant& otherwise, const Device& device) {
  FwdVariant v = otherwise;
  v.split_kv = SplitKv::none, v.kv.dequantised = true;
  v.kv.blocks = p.scale_rows > 0 || p.scale_v_columns;
  const bool rounds = p.dtype_o == p.dtype || p.accumulate;  // else o is f32, or of the other 16-bit type
  if (!rounds || p.rows_kv() == 0 || p.rows_q() == 0 || p.paged()) return {};
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
  if (dequantised_bytes(p, fwd_block_scales(dequantised)) > tuning::dequantised_bytes_most) return false;
  if (bounded_below(otherwise.mask) && keys_attended(p) < tuning::short_window_of_dequantised) return false;
  const Candidate candidates[] = {{.variant = otherwise, .parts = parts}, {.variant = dequantised}};
  return quickest(p, candidates, device).variant == dequantised;
}

}  // namespace froghopper
