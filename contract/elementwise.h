// SPDX-License-Identifier: Apache-2.0
// contract: the kernels for sums over ranks and copies of rows, which context parallelism needs in addition to
// attention: fh_cp_memory of include/froghopper/cp.h.
#pragma once
#include "contract/fields.h"
#include "contract/types.h"

namespace froghopper {

enum class ElementwiseOp : unsigned char {
  add,        // to[i] += from[i]
  convert,    // to[i] = from[i], rounded to nearest even
  broadcast,  // to[i] = from[i / columns]
  copy        // to[i] = from[i], rows of `columns` with a pitch each; 4 floats stand for any 16 bytes
};

constexpr ElementwiseOp elementwise_ops[] = {ElementwiseOp::add, ElementwiseOp::convert, ElementwiseOp::broadcast,
                                             ElementwiseOp::copy};

constexpr const char* name_of(ElementwiseOp op) {
  switch (op) {
    case ElementwiseOp::add: return "add";
    case ElementwiseOp::convert: return "convert";
    case ElementwiseOp::broadcast: return "broadcast";
    case ElementwiseOp::copy: return "copy";
  }
  return "";
}

struct ElementwiseVariant {
  ElementwiseOp op;
  Dtype dtype;  // of what is written; what is read is f32
  bool operator==(const ElementwiseVariant&) const = default;
};

template <class Variant, class Visit>
constexpr void visit_fields(Variant& v, Visit&& visit) requires same<const Variant, const ElementwiseVariant> {
  visit("", v.op);
  visit("", v.dtype);
}

constexpr int elementwise_threads = 256;
constexpr int elementwise_smem_bytes = 16;  // unused; the compiler keeps no constant that is 0
// Elements that a thread takes at once: 16 bytes of f32, the widest load.
constexpr int elementwise_width = 4;

struct ElementwiseParams {
  void* to;
  const float* from;
  long long count;                 // elements that are written
  long long columns;               // broadcast, copy; else 1
  long long to_pitch, from_pitch;  // copy: bytes from one row to the next
};

constexpr const char* why_invalid(ElementwiseVariant v) {
  const bool has_16_bits = v.dtype == Dtype::f16 || v.dtype == Dtype::bf16;
  if (v.op == ElementwiseOp::convert) return has_16_bits ? nullptr : "f32 is converted to f16 or bf16";
  return v.dtype == Dtype::f32 ? nullptr : "sums are in f32";
}

}  // namespace froghopper
