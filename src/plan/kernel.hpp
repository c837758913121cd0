// SPDX-License-Identifier: Apache-2.0
// plan: what a kernel is to everybody who only compiles, stores or launches it, and how a variant of any family becomes
// one. Name, parser and source follow from the variant's list of fields (visit_fields in contract/*_variant.h).
#pragma once
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "contract/append.h"
#include "contract/average.h"
#include "contract/bwd_variant.h"
#include "contract/combine_variant.h"
#include "contract/dequantise.h"
#include "contract/elementwise.h"
#include "contract/fill.h"
#include "contract/fwd_variant.h"
#include "contract/quantise_variant.h"
#include "src/base/result.hpp"
#include "src/base/text.hpp"

namespace froghopper {

struct KernelSpec {
  std::string name;    // "fwd.bf16.d128.q128.kv128.s2.causal": in presets, logs, caches, tables; two kernels are the
                       // same if their names are
  std::string source;  // the few lines that NVRTC compiles
  int threads = 0, smem_bytes = 0, params_bytes = 0;  // of a CTA, of a CTA, of a launch
};

// The kernel of this name, of any family; a Failure says what is wrong with the name, or with the variant it names.
Result<KernelSpec> kernel_named(const std::string& name);

KernelSpec kernel_of(const FillVariant&);
KernelSpec kernel_of(const FwdVariant&);
KernelSpec kernel_of(const CombineVariant&);
KernelSpec kernel_of(const DeltaVariant&);
KernelSpec kernel_of(const BwdVariant&);
KernelSpec kernel_of(const GradQVariant&);
KernelSpec kernel_of(const QuantiseVariant&);
KernelSpec kernel_of(const AverageVariant&);
KernelSpec kernel_of(const DequantiseVariant&);
KernelSpec kernel_of(const AppendVariant&);
KernelSpec kernel_of(const ElementwiseVariant&);

// ---- Names of variants ----

std::vector<std::string> split(const std::string& line, char separator);

// "kv128" after "kv" is 128; false where it is not that.
bool number_after(std::string_view token, std::string_view word, int& value);

// Of the enums that fields of a variant have: all values, and the type as C++ names it.
constexpr std::span<const Dtype> values_of(Dtype) { return dtypes; }
constexpr std::span<const Mask> values_of(Mask) { return masks; }
constexpr std::span<const KvLayout> values_of(KvLayout) { return kv_layouts; }
constexpr std::span<const SplitKv> values_of(SplitKv) { return splits; }
constexpr std::span<const ElementwiseOp> values_of(ElementwiseOp) { return elementwise_ops; }
constexpr const char* type_of(Dtype) { return "Dtype"; }
constexpr const char* type_of(Mask) { return "Mask"; }
constexpr const char* type_of(KvLayout) { return "KvLayout"; }
constexpr const char* type_of(SplitKv) { return "SplitKv"; }
constexpr const char* type_of(ElementwiseOp) { return "ElementwiseOp"; }

template <class Variant>
std::string variant_name(const char* family, const Variant& variant) {
  std::string name = family;
  const auto add = [&](const std::string& token) { name += "." + token; };
  visit_fields(variant, [&]<class T>(const char* word, const T& field, auto... usual) {
    if constexpr (std::is_enum_v<T>) {
      if (*name_of(field) && !((field == usual) || ...)) add(name_of(field));
    } else if constexpr (std::is_same_v<T, bool>) {
      if (field) add(word);
    } else if (!((field == usual) || ...)) {
      add(text("{}{}", word, field));
    }
  });
  return name;
}

// Every part once and in order; nothing but what variant_name writes.
template <class Variant>
Result<Variant> parse_variant(const char* family, const std::string& name) {
  const std::vector<std::string> tokens = split(name, '.');
  size_t at = 0;
  const auto next = [&]() -> std::string_view { return at < tokens.size() ? tokens[at] : std::string_view(); };
  Variant variant{};
  at += next() == family;
  visit_fields(variant, [&]<class T>(const char* word, T& field, auto... usual) {
    if constexpr (std::is_enum_v<T>) {
      ((field = usual), ...);
      for (const T value : values_of(field))
        if (*name_of(value) && next() == name_of(value)) return field = value, void(++at);
    } else if constexpr (std::is_same_v<T, bool>) {
      field = next() == word;
      at += field;
    } else {
      ((field = usual), ...);
      at += number_after(next(), word, field);
    }
  });
  if (variant_name(family, variant) == name) return variant;
  return Failure{FH_INVALID_PROBLEM,
                 text("'{}' names no {} kernel; the nearest is {}. Every part comes once and in order.", name, family,
                      variant_name(family, variant))};
}

// The variant as C++ spells it: all values in a row, since braces may be left out around nested structs. They stand in
// the order of the struct, which is that of their addresses, and not in that of the name.
template <class Variant>
std::string spelled(const char* type, const Variant& variant) {
  std::map<const void*, std::string> by_address;
  visit_fields(variant, [&]<class T>(const char*, const T& field, auto...) {
    if constexpr (std::is_enum_v<T>)
      by_address[&field] = text("{}({})", type_of(field), static_cast<int>(field));
    else
      by_address[&field] = text("{}", field);
  });
  std::string values;
  for (const auto& [address, number] : by_address) values += (values.empty() ? "" : ", ") + number;
  return text("{}{{{}}}", type, values);
}

// A field that visit_fields forgets would make two kernels one.
template <class Variant>
constexpr int fields_visited() {
  int count = 0;
  Variant variant{};
  visit_fields(variant, [&](auto&&...) { ++count; });
  return count;
}
template <class Variant>
constexpr bool all_fields_visited = fields_visited<Variant>() == scalars_in<Variant>();
static_assert(all_fields_visited<FillVariant>, "visit_fields lacks a field of FillVariant");
static_assert(all_fields_visited<FwdVariant>, "visit_fields lacks a field of FwdVariant");
static_assert(all_fields_visited<CombineVariant>, "visit_fields lacks a field of CombineVariant");
static_assert(all_fields_visited<DeltaVariant>, "visit_fields lacks a field of DeltaVariant");
static_assert(all_fields_visited<BwdVariant>, "visit_fields lacks a field of BwdVariant");
static_assert(all_fields_visited<GradQVariant>, "visit_fields lacks a field of GradQVariant");
static_assert(all_fields_visited<QuantiseVariant>, "visit_fields lacks a field of QuantiseVariant");
static_assert(all_fields_visited<AverageVariant>, "visit_fields lacks a field of AverageVariant");
static_assert(all_fields_visited<DequantiseVariant>, "visit_fields lacks a field of DequantiseVariant");
static_assert(all_fields_visited<AppendVariant>, "visit_fields lacks a field of AppendVariant");
static_assert(all_fields_visited<ElementwiseVariant>, "visit_fields lacks a field of ElementwiseVariant");

// How many fields a variant has; a nested struct is one. CONTRIBUTING.md says how many it may have.
struct AnyField {
  template <class T>
  constexpr operator T() const;
};
template <class Variant, class... Before>
constexpr int fields_in() {
  if constexpr (requires { Variant{Before{}..., AnyField{}}; })
    return fields_in<Variant, Before..., AnyField>();
  else
    return sizeof...(Before);
}
static_assert(fields_in<CombineVariant>() == 6, "fields_in does not count");
static_assert(fields_in<FwdVariant>() <= 14, "FwdVariant has too many fields; group some that belong together");
static_assert(fields_in<BwdVariant>() <= 14, "BwdVariant has too many fields; group some that belong together");

}  // namespace froghopper
