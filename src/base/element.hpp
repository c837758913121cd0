// SPDX-License-Identifier: Apache-2.0
// base: what one number of a tensor in memory or in a file may be.
#pragma once
#include <optional>

#include "contract/types.h"

namespace froghopper {

// The types of Dtype, and integers: lengths and places have them.
enum class Element : unsigned char { f16, bf16, f32, e4m3, e5m2, i32, i64 };

// No `default` in the switches: a new type does not compile until each of them has an answer.
constexpr int size_of(Element e) {
  switch (e) {
    case Element::f16:
    case Element::bf16: return 2;
    case Element::f32:
    case Element::i32: return 4;
    case Element::i64: return 8;
    case Element::e4m3:
    case Element::e5m2: return 1;
  }
  return 0;
}

constexpr const char* name_of(Element e) {  // as messages and files have it
  switch (e) {
    case Element::f16: return "fp16";
    case Element::bf16: return "bf16";
    case Element::f32: return "fp32";
    case Element::e4m3: return "e4m3";
    case Element::e5m2: return "e5m2";
    case Element::i32: return "int32";
    case Element::i64: return "int64";
  }
  return "";
}

constexpr Element element_of(Dtype t) {
  switch (t) {
    case Dtype::f16: return Element::f16;
    case Dtype::bf16: return Element::bf16;
    case Dtype::f32: return Element::f32;
    case Dtype::e4m3: return Element::e4m3;
    case Dtype::e5m2: return Element::e5m2;
  }
  return Element::f32;
}

constexpr std::optional<Dtype> dtype_of(Element e) {
  for (const Dtype t : dtypes)
    if (element_of(t) == e) return t;
  return std::nullopt;  // an integer
}

}  // namespace froghopper
