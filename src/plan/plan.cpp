// SPDX-License-Identifier: Apache-2.0
// plan: a plan and its launches as text, and the workspace they share.
#include "src/plan/plan.hpp"

#include "contract/mask.h"
#include "src/base/text.hpp"
#include "src/plan/append.hpp"
#include "src/plan/backward.hpp"
#include "src/plan/forward.hpp"
#include "src/plan/quantise.hpp"
#include "src/problem/nothing.hpp"

namespace froghopper {
namespace {

// Only what is not as usual: items in sections, and tile fetches that are not deferred for every item.
std::string order_words(const Order& order) {
  std::string words;
  if (order.section < order.pairs || order.tail > 0) words = text(" section {} tail {}", order.section, order.tail);
  if (order.in_sections < order.pairs) words += text(" last {}", order.pairs - order.in_sections);
  if (order.deferred_tiles == no_bound<int>) return words + " eager";
  return order.deferred_tiles > 0 ? words + text(" deferred {}", order.deferred_tiles) : words;
}
std::string words_of(const ForwardStep& step) {
  std::string words = order_words(step.order);
  if (step.variant.pack_gqa) words += text(" packgqa {}x{}", step.pack_gqa.heads, step.pack_gqa.rows);
  if (step.parts.most > 1 && !fwd_splits_evenly(step.variant))
    words += text(" parts {} of {}", step.parts.most, step.parts.tiles);
  if (step.rows.least > 0) words += text(" rows {}..", step.rows.least);
  if (step.second) words += text(" rows ..{}", step.rows.most);
  return words;
}
std::string words_of(const FillStep&) { return {}; }
std::string words_of(const DequantiseStep&) { return {}; }
std::string words_of(const CombineStep&) { return {}; }
std::string words_of(const BackwardStep& step) {
  return order_words(step.order) + (step.pairs_light_first > 0 ? text(" light {}", step.pairs_light_first) : "");
}
std::string words_of(const DeltaStep&) { return {}; }
std::string words_of(const GradQStep&) { return {}; }
std::string words_of(const QuantiseStep& step) {
  switch (step.scaling) {
    case Scaling::own: return {};
    case Scaling::look: return " look";
    case Scaling::shared: return " shared";
  }
  return {};
}
std::string words_of(const AppendStep&) { return {}; }
std::string words_of(const AverageStep& step) { return step.what == Averaging::sum ? " sums" : " means"; }

}  // namespace

Result<Plan> make_gpu_plan(const Problem& p, const Device& device, const Hints& hints) {
  if (p.appends()) return plan_append(p, device, hints);
  if (p.quantises()) return plan_quantise(p, device, hints);
  return p.backward() ? plan_backward(p, device, hints) : plan_forward(p, device, hints);
}

Slice Workspace::take(size_t size) {
  const Slice slice{(bytes + slice_alignment - 1) / slice_alignment * slice_alignment, size};
  bytes = slice.offset + slice.bytes;
  return slice;
}

std::string Launch::line() const {
  const std::string words = std::visit([](const auto& what) { return words_of(what); }, step);
  return text("{} grid {}{}{} smem {}KiB", kernel.name, grid, one_cta_an_sm ? " one_cta_an_sm" : "", words,
              kernel.smem_bytes / 1024);
}

std::string Plan::line() const {
  std::string line = problem.line() + " -> ";
  if (launches.empty()) return line + text("nothing to compute, as {}", why_nothing(problem));
  for (const Launch& launch : launches) line += (&launch == &launches.front() ? "" : "; ") + launch.line();
  return line + text(" ws {}", workspace.bytes);
}

}  // namespace froghopper
