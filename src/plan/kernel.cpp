// SPDX-License-Identifier: Apache-2.0
// plan: the families of kernels, one row each. A new family is a row here, its contract/ headers and its device/ room.
#include "src/plan/kernel.hpp"

#include <charconv>
#include <sstream>

#include "contract/bwd_params.h"
#include "contract/fwd_legality.h"
#include "contract/fwd_params.h"
#include "contract/fwd_smem.h"
#include "contract/quantise_params.h"

namespace froghopper {
namespace {

constexpr const char *fill = "fill", *forward = "fwd", *combine = "combine", *delta = "delta", *backward = "bwd",
                     *grad_q = "gradq", *quantise = "quantise", *average = "average", *dequantise = "dequantise",
                     *append = "append", *elementwise = "elementwise";

// kernel: the class template in device/, params: its argument. Class, params and variant are in namespace froghopper.
std::string source_of(const char* header, const char* kernel, const char* params, const std::string& variant,
                      int cluster = 1, int ctas_per_sm = 1) {
  return text(
      "#include \"{}\"\n"
      "using namespace froghopper;\n"
      "using Kernel = {}<{}>;\n"
      "extern \"C\" __global__ void {}__launch_bounds__(Kernel::threads, {})\n"
      "fh_kernel(const __grid_constant__ {} p) {{ Kernel::run(p); }}\n"
      "extern \"C\" __device__ const int fh_smem_bytes = Kernel::smem_bytes;\n"
      "extern \"C\" __device__ const int fh_params_bytes = sizeof({});\n",
      header, kernel, variant, cluster > 1 ? text("__cluster_dims__({}) ", cluster) : "", ctas_per_sm, params,
      params);
}

}  // namespace

KernelSpec kernel_of(const FillVariant& v) {
  return {.name = variant_name(fill, v),
          .source = source_of("device/fwd/fill.cuh", "fwd::Fill", "FillParams", spelled("FillVariant", v)),
          .threads = fill_threads,
          .smem_bytes = fill_smem_bytes,
          .params_bytes = sizeof(FillParams)};
}

KernelSpec kernel_of(const FwdVariant& v) {
  return {.name = variant_name(forward, v),
          .source = source_of("device/fwd/forward.cuh", "fwd::Forward", "FwdParams", spelled("FwdVariant", v),
                              /*cluster=*/1, fwd_ctas_by_registers(v)),
          .threads = fwd_threads(v),
          .smem_bytes = fwd_smem_bytes(v),
          .params_bytes = sizeof(FwdParams)};
}

KernelSpec kernel_of(const CombineVariant& v) {
  return {
      .name = variant_name(combine, v),
      .source = source_of("device/fwd/combine.cuh", "fwd::Combine", "CombineParams", spelled("CombineVariant", v)),
      .threads = combine_threads,
      .smem_bytes = combine_smem_bytes,
      .params_bytes = sizeof(CombineParams)};
}

KernelSpec kernel_of(const DeltaVariant& v) {
  return {.name = variant_name(delta, v),
          .source = source_of("device/bwd/delta.cuh", "bwd::Delta", "DeltaParams", spelled("DeltaVariant", v)),
          .threads = delta_threads,
          .smem_bytes = delta_smem_bytes,
          .params_bytes = sizeof(DeltaParams)};
}

KernelSpec kernel_of(const BwdVariant& v) {
  const auto source = [&](const char* header, const char* kernel) {
    return source_of(header, kernel, "BwdParams", spelled("BwdVariant", v), bwd_ctas(v));
  };
  return {.name = variant_name(backward, v),
          .source = bwd_by_columns(v)     ? source("device/bwd/by_columns.cuh", "bwd::ByColumns")
                    : bwd_has_two_ctas(v) ? source("device/bwd/by_keys.cuh", "bwd::ByKeys")
                                          : source("device/bwd/backward.cuh", "bwd::Backward"),
          .threads = bwd_threads,
          .smem_bytes = bwd_smem_bytes(v),
          .params_bytes = sizeof(BwdParams)};
}

KernelSpec kernel_of(const GradQVariant& v) {
  return {.name = variant_name(grad_q, v),
          .source = source_of("device/bwd/grad_q.cuh", "bwd::GradQ", "GradQParams", spelled("GradQVariant", v)),
          .threads = grad_q_threads,
          .smem_bytes = grad_q_smem_bytes(v),
          .params_bytes = sizeof(GradQParams)};
}

KernelSpec kernel_of(const QuantiseVariant& v) {
  return {.name = variant_name(quantise, v),
          .source = source_of("device/quantise/quantise.cuh", "quantise::Quantise", "QuantiseParams",
                              spelled("QuantiseVariant", v), /*cluster=*/1, quantise_ctas_per_sm(v)),
          .threads = quantise_threads,
          .smem_bytes = quantise_smem_bytes(v),
          .params_bytes = sizeof(QuantiseParams)};
}

KernelSpec kernel_of(const AverageVariant& v) {
  return {.name = variant_name(average, v),
          .source = source_of("device/quantise/average.cuh", "quantise::Average", "AverageParams",
                              spelled("AverageVariant", v)),
          .threads = average_threads,
          .smem_bytes = average_smem_bytes(v),
          .params_bytes = sizeof(AverageParams)};
}

KernelSpec kernel_of(const DequantiseVariant& v) {
  return {.name = variant_name(dequantise, v),
          .source = source_of("device/fwd/dequantise.cuh", "fwd::Dequantise", "DequantiseParams",
                              spelled("DequantiseVariant", v),
                              /*cluster=*/1, dequantise_ctas_per_sm),
          .threads = dequantise_threads,
          .smem_bytes = dequantise_smem_bytes,
          .params_bytes = sizeof(DequantiseParams)};
}

KernelSpec kernel_of(const AppendVariant& v) {
  return {.name = variant_name(append, v),
          .source = source_of("device/append/append.cuh", "append::Append", "AppendParams",
                              spelled("AppendVariant", v), /*cluster=*/1, append_ctas_per_sm(v)),
          .threads = append_threads,
          .smem_bytes = append_smem_bytes,
          .params_bytes = sizeof(AppendParams)};
}

KernelSpec kernel_of(const ElementwiseVariant& v) {
  return {.name = variant_name(elementwise, v),
          .source = source_of("device/elementwise/elementwise.cuh", "elementwise::Elementwise", "ElementwiseParams",
                              spelled("ElementwiseVariant", v)),
          .threads = elementwise_threads,
          .smem_bytes = elementwise_smem_bytes,
          .params_bytes = sizeof(ElementwiseParams)};
}

namespace {

template <class Variant>
Result<KernelSpec> kernel_of_family(const char* family, const std::string& name) {
  const auto variant = parse_variant<Variant>(family, name);
  if (!variant) return variant.failure();
  if (const char* why = why_invalid(*variant))
    return Failure{FH_INVALID_PROBLEM, text("there is no kernel {}: {}. Name other tiles.", name, why)};
  return kernel_of(*variant);
}

}  // namespace

Result<KernelSpec> kernel_named(const std::string& name) {
  const std::string family = name.substr(0, name.find('.'));
  if (family == fill) return kernel_of_family<FillVariant>(fill, name);
  if (family == forward) return kernel_of_family<FwdVariant>(forward, name);
  if (family == combine) return kernel_of_family<CombineVariant>(combine, name);
  if (family == delta) return kernel_of_family<DeltaVariant>(delta, name);
  if (family == backward) return kernel_of_family<BwdVariant>(backward, name);
  if (family == grad_q) return kernel_of_family<GradQVariant>(grad_q, name);
  if (family == quantise) return kernel_of_family<QuantiseVariant>(quantise, name);
  if (family == average) return kernel_of_family<AverageVariant>(average, name);
  if (family == dequantise) return kernel_of_family<DequantiseVariant>(dequantise, name);
  if (family == append) return kernel_of_family<AppendVariant>(append, name);
  if (family == elementwise) return kernel_of_family<ElementwiseVariant>(elementwise, name);
  return Failure{
      FH_INVALID_PROBLEM,
      text("'{}' names no kernel; a name begins with its family, {}, {}, {}, {}, {}, {}, {}, {}, {}, {} or {}.", name,
           fill, forward, combine, delta, backward, grad_q, quantise, average, dequantise, append, elementwise)};
}

std::vector<std::string> split(const std::string& line, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(line);
  for (std::string part; std::getline(in, part, separator);)
    if (!part.empty()) parts.push_back(part);
  return parts;
}

bool number_after(std::string_view token, std::string_view word, int& value) {
  if (!token.starts_with(word)) return false;
  const char *begin = token.data() + word.size(), *end = token.data() + token.size();
  int number = 0;
  const auto read = std::from_chars(begin, end, number);
  if (read.ec != std::errc() || read.ptr != end) return false;
  value = number;
  return true;
}

}  // namespace froghopper
