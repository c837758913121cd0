// SPDX-License-Identifier: Apache-2.0
// contract: the kernel that converts 8-bit K and V to 16 bits before the forward kernel reads them
// (FwdKv::dequantised).
#pragma once
#include "contract/fields.h"
#include "contract/shared_params.h"
#include "contract/types.h"

namespace froghopper {

struct DequantiseVariant {
  Dtype dtype, to;  // of K and V in memory, and of Q
  bool operator==(const DequantiseVariant&) const = default;
};

template <class Variant, class Visit>
constexpr void visit_fields(Variant& v, Visit&& visit) requires same<const Variant, const DequantiseVariant> {
  visit("", v.dtype);
  visit("", v.to);
}

constexpr int dequantise_threads = 256, dequantise_ctas_per_sm = 4;  // as many as there are registers for
constexpr int dequantise_unit = 8;         // values that a thread converts at a time: 16 bytes of what it writes
constexpr int dequantise_smem_bytes = 16;  // unused; the compiler keeps no constant that is 0

struct DequantiseTensor {
  StridedTensor from;
  void* to;              // [batch][heads][seq][dim], dense: a head's rows lie one after the other
  long long batch, seq;  // of a packed tensor 1 and all rows
  int heads, dim;        // dim: a multiple of dequantise_unit
};
// What makes BlockScales.
struct DequantiseScales {
  BlockScales to;
  ScaleValues k, v;
  int v_columns;        // nonzero: v has one for every column, which come to O at its end
  float scale_log2;     // as in FwdParams
  RaggedParams ragged;  // of K; fixed lengths: seq_kv
  int seq_kv, sequences, heads;
};
struct DequantiseParams {
  DequantiseTensor k, v;
  const int* used;  // how many rows of each sequence count; none: all
  DequantiseScales scales;
};

constexpr const char* why_invalid(DequantiseVariant v) {
  if (!is_8_bit(v.dtype)) return "k and v that are dequantised are 8-bit";
  return v.to == Dtype::f16 || v.to == Dtype::bf16 ? nullptr : "k and v are dequantised to f16 or bf16";
}

}  // namespace froghopper
