// SPDX-License-Identifier: Apache-2.0
// contract: the kernel that combines the parts of rows, contract/split.h.
#pragma once
#include "contract/fields.h"
#include "contract/types.h"

namespace froghopper {

struct CombineVariant {
  Dtype dtype;           // of O; f32 with 8-bit k and v
  int dim_v;             // head dim, rounded up to 64, 128, 256 or 512
  int parts;             // that are loaded at the same time: their columns take registers
  bool batch_invariant;  // of a batch-invariant kernel: merged in descending key order, as it merges them itself
  bool gated;            // O is multiplied by the sigmoid of a tensor
  bool even;             // of a kernel that splits evenly
  bool operator==(const CombineVariant&) const = default;
};

template <class Variant, class Visit>
constexpr void visit_fields(Variant& v, Visit&& visit) requires same<const Variant, const CombineVariant> {
  visit("", v.dtype);
  visit("dv", v.dim_v);
  visit("p", v.parts);
  visit("invariant", v.batch_invariant);
  visit("gate", v.gated);
  visit("even", v.even);
}

constexpr int combine_threads = 128;
// Lanes that share a row. Many parts are weighed by a warp, one by each lane. Few parts are weighed by every lane,
// and a warp has several rows: they share the instructions that find rows and divide. A lane then holds 8 or 16
// columns of 4 parts.
constexpr int combine_lanes(CombineVariant v) {
  if (v.batch_invariant || v.parts > 4) return 32;
  return v.dim_v <= 128 ? 8 : v.dim_v == 256 ? 16 : 32;
}
constexpr int combine_rows(CombineVariant v) { return combine_threads / combine_lanes(v); }  // of a CTA
constexpr int combine_smem_bytes = 16;  // unused; the compiler keeps no constant that is 0

// Even splits: the CTAs that combine the rows of a tile; each takes several rows, one after the other.
constexpr int combine_ctas_of_tile = 8;

constexpr int combine_parts_most(int dim_v) { return dim_v > 256 ? 8 : 16; }  // on their way at once: registers

constexpr const char* why_invalid(CombineVariant v) {
  if (is_8_bit(v.dtype)) return "rows are f16, bf16 or f32 here";
  if (v.dim_v != 64 && v.dim_v != 128 && v.dim_v != 256 && v.dim_v != 512)
    return "the head dim is 64, 128, 256 or 512";
  if (v.parts != 4 && v.parts != combine_parts_most(v.dim_v))
    return "4 or 16 parts are on their way at a time, at head dim 512 4 or 8";
  if (v.even && (v.batch_invariant || v.parts == 4))
    return "even splits have up to a part for each CTA, so they are merged in groups, in one order";
  return nullptr;
}

}  // namespace froghopper
