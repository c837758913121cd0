// SPDX-License-Identifier: Apache-2.0
#include "src/runtime/fwd_params.hpp"

#include <algorithm>
#include <atomic>
#include <numbers>
#include <random>

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
  return keys == all_keys ? no_bound : static_cast<int>(std::min<int64_t>(keys, no_bound));
}

// s' = scale s, or cap tanh(scale s / cap) with tanh(x) = 1 - 2 / (e^(2x) + 1); both enter 2^x instead of e^x.
void set_scale(FwdParams& params, const Problem& problem) {
  const double log2e = std::numbers::log2e, scale = problem.scale, cap = problem.softcap;
  params.scale_log2 = static_cast<float>((cap > 0 ? cap : scale) * log2e);
  params.cap_scale = cap > 0 ? static_cast<float>(2 * log2e * scale / cap) : 0;
}

void set_order(FwdParams& params, const Order& order, void* workspace) {
  params.works = order.works;
  params.pairs = order.pairs;
  params.q_tiles = order.q_tiles;
  params.section = order.section;
  params.tail = order.tail;
  params.counter = static_cast<unsigned long long*>(workspace);
  params.ticket_tag = next_ticket_tag();
}

// stand_in: the address of empty k and v. It is q's, which is never empty in a launch.
Result<MapShape> set_map(const Driver& driver, const Plan& plan, const Named& tensor, int rows, const void* stand_in,
                         TmaMap& map) {
  const auto shape = plan.variant.ragged ? ragged_shape(tensor, rows, stand_in) : fixed_shape(tensor, rows, stand_in);
  if (!shape) return shape;
  if (auto ok = encode(driver, tensor, plan.variant.dtype, *shape, map); !ok) return ok.failure();
  return shape;
}

// The kernel counts the rows of k and of v in the same units.
Result<void> check_alike(const MapShape& k, const MapShape& v) {
  if (k.row_step == v.row_step && k.unit == v.unit) return {};
  return Failure{FH_INVALID_TENSOR,
                 "stride_batch / stride_seq is not the same for k and v; with seqused it must be. "
                 "Pad k and v alike."};
}

}  // namespace

FwdParams plain_params(const Plan& plan, const Views& views, void* workspace) {
  const Problem& problem = plan.problem;
  constexpr int64_t bytes = 2;  // of an element
  FwdParams params{};
  params.o = views.o.data;
  params.o_batch = views.o.stride_batch * bytes;
  params.o_head = views.o.stride_head * bytes;
  params.o_row = views.o.stride_seq * bytes;
  params.lse = views.lse;
  params.lse_batch = views.lse_stride_batch;
  params.lse_head = views.lse_stride_head;
  params.sink = views.sink;
  params.heads_q = static_cast<int>(problem.heads_q);
  params.heads_per_kv = static_cast<int>(problem.heads_q / problem.heads_kv);
  params.seq_q = static_cast<int>(problem.seq_q);
  params.seq_kv = static_cast<int>(problem.seq_kv);
  params.dim_v = static_cast<int>(problem.dim_v);
  params.window_left = window_bound(problem.window_left);
  params.window_right = window_bound(problem.window_right);
  params.top_left = problem.align == FH_TOP_LEFT ? 1 : 0;
  params.cu_q = views.cu_seqlens_q;
  params.cu_kv = views.cu_seqlens_kv;
  params.used_q = views.seqused_q;
  params.used_kv = views.seqused_kv;
  params.total_q = static_cast<int>(problem.total_q);
  set_scale(params, problem);
  set_order(params, plan.order, workspace);
  return params;
}

Result<void> set_maps(const Driver& driver, const Plan& plan, const Views& views, FwdParams& params) {
  const void* stand_in = views.q.data;
  if (auto ok = check_layout({"o", views.o}); !ok) return ok;
  const auto q = set_map(driver, plan, {"q", views.q}, plan.variant.tile_q, stand_in, params.q);
  if (!q) return q.failure();
  const auto k = set_map(driver, plan, {"k", views.k}, plan.variant.tile_kv, stand_in, params.k);
  if (!k) return k.failure();
  const auto v = set_map(driver, plan, {"v", views.v}, plan.variant.tile_kv, stand_in, params.v);
  if (!v) return v.failure();
  params.row_step_q = q->row_step;
  params.unit_q = q->unit;
  params.row_step_kv = k->row_step;
  params.unit_kv = k->unit;
  return check_alike(*k, *v);
}

}  // namespace froghopper::runtime
