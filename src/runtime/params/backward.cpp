// SPDX-License-Identifier: Apache-2.0
// runtime/params: the arguments of the kernels of the backward pass.
#include "src/plan/backward.hpp"
#include "src/base/ceil_div.hpp"
#include "src/runtime/params/params.hpp"
#include "src/runtime/params/shared.hpp"

namespace froghopper::runtime {

namespace {

QTiles q_tiles_of_workspace(const Problem& p, int tile_q) {
  return {.heads_q = static_cast<int>(p.heads_q),
          .tiles_of_sequence = static_cast<int>(ceil_div(p.seq_q, tile_q)),
          .tiles = static_cast<int>(q_tiles_of(p, tile_q))};
}

GradTensor grad_of(const View& view, const Problem& p) {
  return {.to = strided(view), .dim = static_cast<int>(view.dim), .add = p.accumulate ? 1 : 0};
}

// Calls in phases have a workspace in common, and so one tag; the last one clears what has it.
unsigned int tag_of_large_rows(const Run& run) {
  if (!run.plan.problem.in_phases()) return run.tag;
  return static_cast<unsigned int>(reinterpret_cast<uintptr_t>(run.workspace) / slice_alignment) | 1;
}

// With a gate: as the first launch leaves it for the next.
View gated_grad_o(const Run& run) {
  View dense = run.views.grad_o;
  dense.data = run.slice<void>(run.plan.workspace.gated_grad_o);
  dense.stride_head = dense.dim, dense.stride_seq = dense.heads * dense.dim,
  dense.stride_batch = dense.seq * dense.stride_seq;
  return dense;
}

Result<void> check_layouts(std::initializer_list<Named> tensors) {
  for (const Named& tensor : tensors)
    if (auto ok = check_layout(tensor); !ok) return ok;
  return {};
}

}  // namespace

Result<Params> make_params(const Driver&, const Run& run, const DeltaStep& step) {
  const Problem& problem = run.plan.problem;
  const Views& views = run.views;
  const Workspace& workspace = run.plan.workspace;
  if (auto ok = check_layouts(
          {{"o", views.o}, {"grad_o", views.grad_o}, {"gate", views.gate}, {"grad_gate", views.grad_gate}});
      !ok)
    return ok.failure();
  DeltaParams params{};
  params.o = strided(views.o);
  params.grad_o = strided(views.grad_o);
  params.lse = row_scalars(views.lse);
  params.grad_lse = row_scalars(views.grad_lse);
  params.sink = views.sink.as<float>();
  params.rows = run.slice<float>(workspace.rows);
  if (!step.reader.deterministic || problem.in_phases()) params.dq_sum = run.slice<float>(workspace.grad_q);
  params.sink_shares = problem.sink ? run.slice<float>(workspace.grad_sink) : nullptr;
  params.dq_semaphore = run.slice<unsigned int>(workspace.dq_semaphores);
  params.large = run.slice<unsigned int>(workspace.large_rows);
  params.tag = tag_of_large_rows(run);
  const BwdVariant& reader = step.reader;
  params.q_tiles = q_tiles_of_workspace(problem, reader.tiles.q);
  params.sequences = static_cast<int>(problem.batch);
  params.seq_q = static_cast<int>(problem.seq_q);
  params.dim_v = static_cast<int>(problem.dim_v);
  params.tile_q = reader.tiles.q;
  params.dq_floats = dq_floats(reader.tiles.q, reader.dims.qk);
  params.float4_interleaved = bwd_rows_float4_interleaved(reader);
  params.ragged = lengths_of(problem, views);
  if (!problem.gate) return Params{params};
  params.gate = strided(views.gate);
  params.grad_gate = strided(views.grad_gate);
  params.gated_grad_o = strided(gated_grad_o(run));
  params.mask = mask_of(problem);
  params.chunk = chunk_of(problem);
  params.seq_kv = static_cast<int>(problem.seq_kv);
  return Params{params};
}

BwdParams plain_params(const Run& run, const BackwardStep& step) {
  const Problem& problem = run.plan.problem;
  const Views& views = run.views;
  const Workspace& workspace = run.plan.workspace;
  BwdParams params{};
  params.dq_sum = run.slice<float>(workspace.grad_q);
  params.dq_semaphore = run.slice<unsigned int>(workspace.dq_semaphores);
  params.large = run.slice<unsigned int>(workspace.large_rows);
  params.large_tag = tag_of_large_rows(run);
  params.grad_k = grad_of(views.grad_k, problem);
  params.grad_v = grad_of(views.grad_v, problem);
  params.q_tiles = q_tiles_of_workspace(problem, step.variant.tiles.q);
  params.heads_kv = static_cast<int>(problem.heads_kv);
  params.heads_per_kv = static_cast<int>(problem.heads_q / problem.heads_kv);
  params.sequences = static_cast<int>(problem.batch);
  params.seq_q = static_cast<int>(problem.seq_q);
  params.seq_kv = static_cast<int>(problem.seq_kv);
  params.same_traversal = step.same_traversal;
  params.pairs_light_first = step.pairs_light_first;
  params.in_phases = problem.in_phases() ? 1 : 0;
  params.mask = mask_of(problem);
  params.scale = problem.scale;
  const ScaleParams scale = scale_of(problem);
  params.scale_log2 = scale.scale_log2;
  params.cap_scale = scale.cap_scale;
  params.ragged = lengths_of(problem, views);
  params.order = step.order;
  params.queue = {run.slice<unsigned long long>(workspace.tickets), run.tag};
  params.chunk = chunk_of(problem);
  if (problem.alibi) params.slopes = scale_values(views.alibi_slopes);
  return params;
}

Result<Params> make_params(const Driver& driver, const Run& run, const BackwardStep& step) {
  const Views& views = run.views;
  const BwdVariant& v = step.variant;
  BwdParams params = plain_params(run, step);
  if (auto ok = check_layouts({{"grad_k", views.grad_k}, {"grad_v", views.grad_v}}); !ok) return ok.failure();
  const void* const stand_in = views.k.data;  // k is never empty in a launch of this step
  const View grad_o = run.plan.problem.gate ? gated_grad_o(run) : views.grad_o;
  const struct {
    Named tensor;
    int rows;
    TmaMap* map;
    MapGranules* granules;
  } maps[] = {{{"q", views.q}, v.tiles.q, &params.q, &params.ragged.q},
              {{"k", views.k}, bwd_keys_of_cta(v), &params.k, &params.ragged.k},
              {{"v", views.v}, bwd_keys_of_cta(v), &params.v, &params.ragged.v},
              {{"grad_o", grad_o}, v.tiles.q, &params.grad_o, &params.grad_o_granules}};
  for (const auto& [tensor, rows, map, granules] : maps) {
    const auto encoded = set_map(driver, v.ragged, tensor, {.rows = rows}, stand_in, *map);
    if (!encoded) return encoded.failure();
    *granules = *encoded;
  }
  const void* const rows = run.slice<void>(run.plan.workspace.rows);
  const int64_t tiles = int64_t{params.q_tiles.tiles} * params.q_tiles.heads_q;
  const View of_workspace{.data = run.workspace, .element = Element::f32};
  if (auto ok = encode(driver, {"workspace", of_workspace}, dense_rows(rows ? rows : stand_in, tiles, 2 * v.tiles.q),
                       params.rows);
      !ok)
    return ok.failure();
  return Params{params};
}

Result<Params> make_params(const Driver&, const Run& run, const GradQStep& step) {
  const Problem& problem = run.plan.problem;
  const Views& views = run.views;
  if (auto ok = check_layouts({{"grad_q", views.grad_q}}); !ok) return ok.failure();
  GradQParams params{};
  const Workspace& workspace = run.plan.workspace;
  params.dq_sum = run.slice<float>(workspace.grad_q);
  if (!problem.in_phases()) params.dq_semaphore = run.slice<unsigned int>(workspace.dq_semaphores);
  params.large = run.slice<unsigned int>(workspace.large_rows);
  params.sink_shares = run.slice<float>(workspace.grad_sink);
  params.grad_q = grad_of(views.grad_q, problem);
  if (problem.phase != FH_PHASE_NONE) params.grad_q.add = 0;
  params.grad_k = grad_of(views.grad_k, problem);
  params.grad_v = grad_of(views.grad_v, problem);
  params.grad_sink = views.grad_sink.as<float>();
  params.q_tiles = q_tiles_of_workspace(problem, step.variant.tile_q);
  params.heads_kv = static_cast<int>(problem.heads_kv);
  params.sequences = static_cast<int>(problem.batch);
  params.seq_q = static_cast<int>(problem.seq_q);
  params.seq_kv = static_cast<int>(problem.seq_kv);
  params.total_kv = static_cast<int>(problem.total_kv);
  params.scale = problem.scale;
  params.ragged = lengths_of(problem, views);
  return Params{params};
}

}  // namespace froghopper::runtime
