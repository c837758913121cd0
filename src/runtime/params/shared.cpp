// SPDX-License-Identifier: Apache-2.0
// runtime/params: what the arguments of several kinds of kernels are made of.
#include "src/runtime/params/shared.hpp"

#include <algorithm>
#include <atomic>
#include <limits>
#include <numbers>
#include <random>

#include "contract/mask.h"

namespace froghopper::runtime {

namespace {

int at_most_no_bound(int64_t keys) { return static_cast<int>(std::min<int64_t>(keys, no_bound<int>)); }
int window_bound(int64_t keys) { return keys == all_keys ? no_bound<int> : at_most_no_bound(keys); }

}  // namespace

unsigned int next_tag() {
  static std::atomic<unsigned int> tag{std::random_device{}()};
  unsigned int mine = 0;
  while (mine == 0) mine = tag.fetch_add(1, std::memory_order_relaxed);
  return mine;
}

MaskParams mask_of(const Problem& problem) {
  return {.left = window_bound(problem.window_left),
          .right = window_bound(problem.window_right),
          .top_left = problem.align == FH_TOP_LEFT ? 1 : 0};
}

int chunk_of(const Problem& problem) { return at_most_no_bound(problem.attention_chunk); }

// A scale of zero is the least float instead: with any q.k a score is below 2^-20 then, but that of a masked key, -inf,
// stays -inf. Of a tiny softcap every tanh is -1, 0 or 1 in either case, but 0 times infinity would be none of them.
ScaleParams scale_of(const Problem& problem) {
  constexpr double least = std::numeric_limits<float>::denorm_min(), largest_cap_scale = 0x1p100;
  const double log2e = std::numbers::log2e, scale = problem.scale, cap = problem.softcap;
  const double in_base_2 = std::max((cap > 0 ? cap : scale) * log2e, least);
  const double cap_scale = cap > 0 ? std::min(2 * log2e * scale / cap, largest_cap_scale) : 0;
  return {static_cast<float>(in_base_2), static_cast<float>(cap_scale), softcap_params(cap > 0 ? scale / cap : 0)};
}

RaggedParams lengths_of(const Problem& problem, const Views& views) {
  RaggedParams ragged{};
  ragged.cu_q = views.cu_seqlens_q.as<int>();
  ragged.cu_kv = views.cu_seqlens_kv.as<int>();
  ragged.used_q = views.seqused_q.as<int>();
  ragged.used_kv = views.seqused_kv.as<int>();
  ragged.total_q = static_cast<int>(problem.total_q);
  return ragged;
}

StridedTensor strided(const View& view) {
  const int64_t bytes = size_of(view.element);
  return {view.data, view.stride_batch * bytes, view.stride_head * bytes, view.stride_seq * bytes};
}

Result<MapGranules> set_map(const Driver& driver, bool ragged, const Named& tensor, Boxes boxes, const void* stand_in,
                            TmaMap& map) {
  auto shape = ragged ? ragged_shape(tensor, boxes.rows, stand_in) : fixed_shape(tensor, boxes.rows, stand_in);
  if (!shape) return shape.failure();
  shape->box[2] = static_cast<uint32_t>(boxes.heads);
  shape->ahead = boxes.ahead;
  if (auto ok = encode(driver, tensor, *shape, map); !ok) return ok.failure();
  return shape->granules;
}

RowScalars row_scalars(const View& view) {
  return {view.as<float>(), view.stride_batch, view.stride_head, view.stride_seq};
}
ScaleValues scale_values(const View& v) { return {v.as<float>(), v.stride_batch, v.stride_head, v.stride_seq}; }

}  // namespace froghopper::runtime
