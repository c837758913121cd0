// SPDX-License-Identifier: Apache-2.0
// contract: the compile-time half of the agreement between planner (host) and the kernel that quantises (device). Two
// variants are equal if and only if they compile to the same machine code.
#pragma once
#include "contract/fields.h"
#include "contract/quantise.h"
#include "contract/types.h"

namespace froghopper {

struct QuantiseVariant {
  Dtype from;   // of q, k and v
  Dtype to;     // of what is written; picks the conversion
  int dim;      // head dim of the tiles: it sizes a thread's registers and shared memory
  bool smooth;  // the means of k and v are taken out of their rows

  bool operator==(const QuantiseVariant&) const = default;
};

template <class Variant, class Visit>
constexpr void visit_fields(Variant& v, Visit&& visit) requires same<const Variant, const QuantiseVariant> {
  visit("", v.from);
  visit("", v.to);
  visit("d", v.dim);
  visit("smooth", v.smooth);
}

constexpr int quantise_threads = quantise_rows / 16 * 32;  // a warp has 16 rows, as mma takes them

// A thread's quarter of two rows is dim / 2 values in registers: 3, 2 or 1 CTAs of an SM. Together they have as many
// tiles on their way from memory that its bandwidth is used while they compute.
constexpr int quantise_ctas_per_sm(QuantiseVariant v) { return v.dim <= 64 ? 3 : v.dim <= 128 ? 2 : 1; }
constexpr int quantise_stages(QuantiseVariant v) { return v.dim <= 64 ? 4 : 3; }
constexpr int quantise_known_tiles =
    8;  // tiles whose addresses are in shared memory (Tile, device/quantise/tiles.cuh)

// Bytes of shared memory: tiles on their way, the rotation's matrices, one value for each warp, addresses of tiles.
constexpr int quantise_tile_bytes(QuantiseVariant v) { return quantise_rows * v.dim * size_of(v.from); }
constexpr int quantise_matrix_bytes(QuantiseVariant v) { return v.dim / 16 * 32 * 16; }
constexpr int quantise_known_bytes = quantise_known_tiles * 80 + 48;  // as many of Tile, and Walk
constexpr int quantise_smem_bytes(QuantiseVariant v) {
  return quantise_stages(v) * quantise_tile_bytes(v) + quantise_matrix_bytes(v) +
         2 * quantise_threads / 32 * static_cast<int>(sizeof(float)) + quantise_known_bytes;
}

constexpr const char* why_invalid(QuantiseVariant v) {
  if (v.from != Dtype::f16 && v.from != Dtype::bf16) return "q, k and v are f16 or bf16 here";
  if (v.to != Dtype::e4m3 && v.to != Dtype::e5m2) return "what is written is e4m3 or e5m2";
  if (v.dim != 64 && v.dim != 128 && v.dim != 192 && v.dim != 256)
    return "the head dim of the tile is 64, 128, 192 or 256";
  return nullptr;
}

}  // namespace froghopper
