// SPDX-License-Identifier: Apache-2.0
// runtime/params: the forward kernel's argument.
#include <algorithm>
#include <atomic>
#include <numbers>
#include <random>

#include "contract/mask.h"
#include "src/runtime/params/params.hpp"
#include "src/runtime/tensor_map.hpp"

namespace froghopper::runtime {

namespace {

// Tells this launch's tickets from what the workspace held before. It starts at random, so that two processes, or two
// copies of the library, that use one workspace in turn do not count alike.
unsigned int next_ticket_tag() {
  static std::atomic<unsigned int> tag{std::random_device{}()};
  unsigned int mine = 0;
  while (mine == 0) mine = tag.fetch_add(1, std::memory_order_relaxed);
  return mine;
}

int window_bound(int64_t keys) {
  return keys == all_keys ? no_bound<int> : static_cast<int>(std::min<int64_t>(keys, no_bound<int>));
}

// s' = scale s, or cap tanh(scale s / cap) with tanh(x) = 1 - 2 / (e^(2x) + 1); both enter 2^x instead of e^x.
void set_scale(FwdParams& params, const Problem& problem) {
  const double log2e = std::numbers::log2e, scale = problem.scale, cap = problem.softcap;
  params.scale_log2 = static_cast<float>((cap > 0 ? cap : scale) * log2e);
  params.cap_scale = cap > 0 ? static_cast<float>(2 * log2e * scale / cap) : 0;
}

StridedTensor strided(const View& view) {
  const int64_t bytes = size_of(view.element);
  return {view.data, view.stride_batch * bytes, view.stride_head * bytes, view.stride_seq * bytes};
}

// Encodes the map of a tensor whose boxes have so many rows. stand_in: the address of empty tensors, never read.
Result<MapUnits> set_map(const Driver& driver, bool ragged, const Named& tensor, int rows, const void* stand_in,
                         TmaMap& map) {
  const auto shape = ragged ? ragged_shape(tensor, rows, stand_in) : fixed_shape(tensor, rows, stand_in);
  if (!shape) return shape.failure();
  if (auto ok = encode(driver, tensor, *shape, map); !ok) return ok.failure();
  return shape->units;
}

}  // namespace

FwdParams plain_params(const Run& run, const ForwardStep& step) {
  const Problem& problem = run.plan.problem;
  const Views& views = run.views;
  FwdParams params{};
  params.o = strided(views.o);
  params.lse = {views.lse.as<float>(), views.lse.stride_batch, views.lse.stride_head};
  params.sink = views.sink.as<float>();
  params.heads_q = static_cast<int>(problem.heads_q);
  params.heads_per_kv = static_cast<int>(problem.heads_q / problem.heads_kv);
  params.seq_q = static_cast<int>(problem.seq_q);
  params.seq_kv = static_cast<int>(problem.seq_kv);
  params.dim_v = static_cast<int>(problem.dim_v);
  params.mask = {.left = window_bound(problem.window_left),
                 .right = window_bound(problem.window_right),
                 .top_left = problem.align == FH_TOP_LEFT ? 1 : 0};
  set_scale(params, problem);
  params.ragged.cu_q = views.cu_seqlens_q.as<int>();
  params.ragged.cu_kv = views.cu_seqlens_kv.as<int>();
  params.ragged.used_q = views.seqused_q.as<int>();
  params.ragged.used_kv = views.seqused_kv.as<int>();
  params.ragged.total_q = static_cast<int>(problem.total_q);
  params.order = step.order;
  params.queue = {run.slice<unsigned long long>(run.plan.workspace.tickets), next_ticket_tag()};
  return params;
}

Result<Params> make_params(const Driver& driver, const Run& run, const ForwardStep& step) {
  const Views& views = run.views;
  const bool ragged = step.variant.ragged;
  const Tiles& tiles = step.variant.tiles;
  FwdParams params = plain_params(run, step);
  if (auto ok = check_layout({"o", views.o}); !ok) return ok.failure();
  const void* const stand_in = views.q.data;  // q is never empty in a launch
  const auto q = set_map(driver, ragged, {"q", views.q}, tiles.q, stand_in, params.q);
  if (!q) return q.failure();
  const auto k = set_map(driver, ragged, {"k", views.k}, tiles.kv, stand_in, params.k);
  if (!k) return k.failure();
  const auto v = set_map(driver, ragged, {"v", views.v}, tiles.kv, stand_in, params.v);
  if (!v) return v.failure();
  params.ragged.q = *q;
  params.ragged.k = *k;
  params.ragged.v = *v;
  return Params{params};
}

}  // namespace froghopper::runtime
