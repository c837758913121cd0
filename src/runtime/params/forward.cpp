// SPDX-License-Identifier: Apache-2.0
// runtime/params: the arguments of the forward kernel and of those around it.
#include <limits>

#include "contract/fwd_smem.h"
#include "src/plan/forward.hpp"
#include "src/runtime/params/params.hpp"
#include "src/runtime/params/shared.hpp"

namespace froghopper::runtime {

namespace {

SplitParams split_of(const Run& run, const Parts& parts, const PackGqaParams& pack, const EvenSplit& even) {
  const Problem& problem = run.plan.problem;
  const int64_t rows = problem.varlen ? problem.total_q : problem.batch * problem.seq_q;
  const Workspace& workspace = run.plan.workspace;
  SplitParams params{.o = run.slice<float>(workspace.part_o),
                     .rows = run.slice<PartOfRow>(workspace.part_rows),
                     .row_heads = rows * problem.heads_q,
                     .tiles = parts.tiles,
                     .most = parts.most,
                     .even = {}};
  if (even.ctas > 0)
    params.even = {.classes = even.classes,
                   .heads_of_class = static_cast<int>(problem.heads_q) / pack.heads / even.classes,
                   .sequences = static_cast<int>(problem.batch),
                   .ctas_of_class = even.ctas / even.classes,
                   .shared_q_tiles = run.slice<SharedQTile>(workspace.shared_q_tiles)};
  return params;
}

// An 8-bit tensor as DequantiseStep leaves it in the workspace: dense, so that a head's rows lie one after the other.
View dequantised(const View& from, Element element, void* to) {
  View dense = from;
  dense.data = to, dense.element = element;
  dense.stride_seq = from.dim, dense.stride_head = from.seq * from.dim,
  dense.stride_batch = from.heads * dense.stride_head;
  return dense;
}

BlockScales block_scales(const Run& run) {
  const Problem& problem = run.plan.problem;
  const auto head = static_cast<int>(block_scales_of_head(problem.seq_kv));
  return {.data = run.slice<float>(run.plan.workspace.block_scales),
          .batch = static_cast<int>(problem.heads_kv) * head,
          .head = head};
}

PageParams pages_of(const Run& run, const Tiles& tiles) {
  const View& table = run.views.block_table;
  return {.table = table.as<int>(),
          .sequence_stride = table.stride_batch,
          .page_stride = static_cast<int>(table.stride_seq),
          .size = static_cast<int>(run.plan.problem.page_size),
          .box = box_of_pages(run.plan.problem, tiles),
          .k = strided(run.views.k),
          .v = strided(run.views.v),
          .k_bytes = static_cast<int>(run.views.k.dim) * size_of(run.views.k.element),
          .v_bytes = static_cast<int>(run.views.v.dim) * size_of(run.views.v.element),
          .k_granule_bytes = static_cast<int>(granule_bytes(run.views.k)),
          .v_granule_bytes = static_cast<int>(granule_bytes(run.views.v))};
}

}  // namespace

FwdParams plain_params(const Run& run, const ForwardStep& step) {
  const Problem& problem = run.plan.problem;
  const Views& views = run.views;
  FwdParams params{};
  params.o = strided(views.o);
  params.lse = row_scalars(views.lse);
  if (problem.begins()) params.sink = views.sink.as<float>();  // later, lse has it
  if (problem.merges_lse())
    params.sum_of_o = {.sum = strided(problem.accumulate ? views.o : views.o_sum),
                       .reads = problem.accumulate || !problem.begins() ? 1 : 0,
                       .rounds = problem.accumulate || !problem.ends() ? 0 : 1};
  params.heads_q = static_cast<int>(problem.heads_q);
  params.heads_per_kv = static_cast<int>(problem.heads_q / problem.heads_kv);
  params.seq_q = static_cast<int>(problem.seq_q);
  params.seq_kv = static_cast<int>(problem.seq_kv);
  params.dim_v = static_cast<int>(problem.dim_v);
  params.mask = mask_of(problem);
  const ScaleParams scale = scale_of(problem);
  params.scale_log2 = scale.scale_log2;
  params.cap_scale = scale.cap_scale;
  params.softcap = scale.softcap;
  params.ragged = lengths_of(problem, views);
  if (fwd_has_scales(step.variant))
    params.eight_bit = {.q = scale_values(views.scale_q),
                        .k = scale_values(views.scale_k),
                        .v = scale_values(views.scale_v),
                        .v_columns = problem.scale_v_columns,
                        .dtype_o = problem.dtype_o};
  if (fwd_has_scales(step.variant)) params.block_scales = block_scales(run);
  params.sums = run.slice<float>(run.plan.workspace.sums);
  params.order = step.order;
  params.queue = {
      step.has_tickets ? run.slice<unsigned long long>(run.plan.workspace.tickets) + step.second : nullptr, run.tag};
  params.rows = step.rows;
  params.overlaps_another = step.second && problem.max_sms == 0;  // else the two would have more SMs than that
  params.pack_gqa = step.pack_gqa;
  if (fwd_splits(step.variant)) params.split = split_of(run, step.parts, step.pack_gqa, step.even);
  params.chunk = chunk_of(problem);
  if (problem.alibi) params.slopes = scale_values(views.alibi_slopes);
  if (problem.smooth)
    params.means = {.k = scale_values(views.mean_k),
                    .v = scale_values(views.mean_v),
                    .q = strided(views.q),
                    .dim_qk = static_cast<int>(problem.dim_qk)};
  if (problem.paged()) params.pages = pages_of(run, step.variant.tiles);
  params.max_logit = views.max_logit.as<float>();
  params.gate = strided(views.gate);
  return params;
}

Result<Params> make_params(const Driver& driver, const Run& run, const ForwardStep& step) {
  const Views& views = run.views;
  const Problem& problem = run.plan.problem;
  const bool ragged = step.variant.ragged;
  const Tiles& tiles = step.variant.tiles;
  FwdParams params = plain_params(run, step);
  for (const Named& tensor : {Named{"o", views.o}, Named{"gate", views.gate}, Named{"o_sum", views.o_sum}})
    if (auto ok = check_layout(tensor); !ok) return ok.failure();
  if (problem.paged())
    if (auto ok = check_table(views.block_table); !ok) return ok.failure();
  if (step.variant.kv.layout == KvLayout::page_rows)
    for (const Named& tensor : {Named{"k", views.k}, Named{"v", views.v}})
      if (auto ok = check_page_rows(tensor); !ok) return ok.failure();
  const void* const stand_in = views.q.data;  // q is never empty in a launch
  // PackGQA tiles read K and V once, at the memory's speed: there L2 must not read ahead of the copy engine, which
  // costs 6 % on an H200. With 8-bit K and V and head dims above 256 there is room only for two tiles, and reading
  // ahead makes them come sooner: by 3 %, with pages.
  const bool pack_gqa = step.variant.pack_gqa,
             few_stages = fwd_reads_8_bit(step.variant) && step.variant.dims.qk > 256;
  const Boxes boxes_q = pack_gqa ? Boxes{step.pack_gqa.rows, step.pack_gqa.heads} : Boxes{tiles.q};
  const Boxes boxes_kv = {.rows = problem.paged() ? box_of_pages(problem, tiles) : tiles.kv,
                          .ahead = !pack_gqa || few_stages};
  const auto q = set_map(driver, ragged, {"q", views.q}, boxes_q, stand_in, params.q);
  if (!q) return q.failure();
  const Workspace& workspace = run.plan.workspace;
  const bool is_dequantised = fwd_dequantised_by_earlier_launch(step.variant);
  const View view_k =
      is_dequantised ? dequantised(views.k, views.q.element, run.slice<void>(workspace.dequantised_k)) : views.k;
  const View view_v =
      is_dequantised ? dequantised(views.v, views.q.element, run.slice<void>(workspace.dequantised_v)) : views.v;
  const auto k = set_map(driver, ragged, {"k", view_k}, boxes_kv, stand_in, params.k);
  if (!k) return k.failure();
  const auto v = set_map(driver, ragged, {"v", view_v}, boxes_kv, stand_in, params.v);
  if (!v) return v.failure();
  if (fwd_o_store(step.variant) != OStore::from_registers) {
    const auto o = set_map(driver, ragged, {"o", views.o}, Boxes{o_box_rows}, stand_in, params.o_map);
    if (!o) return o.failure();
    params.ragged.o = *o;
  }
  params.ragged.q = *q;
  params.ragged.k = *k;
  params.ragged.v = *v;
  return Params{params};
}

Result<Params> make_params(const Driver&, const Run& run, const FillStep&) {
  const View& to = run.views.max_logit;
  return Params{FillParams{
      .to = to.as<float>(), .count = to.batch * to.heads, .value = -std::numeric_limits<float>::infinity()}};
}

Result<Params> make_params(const Driver&, const Run& run, const DequantiseStep&) {
  const auto tensor_of = [&](const View& from, const Slice& to) {
    return DequantiseTensor{.from = strided(from),
                            .to = run.slice<void>(to),
                            .batch = from.batch,
                            .seq = from.seq,
                            .heads = static_cast<int>(from.heads),
                            .dim = static_cast<int>(from.dim)};
  };
  const Views& views = run.views;
  for (const Named& tensor : {Named{"k", views.k}, Named{"v", views.v}})
    if (auto ok = check_layout(tensor); !ok) return ok.failure();
  const Problem& problem = run.plan.problem;
  const DequantiseScales scales = {.to = block_scales(run),
                                   .k = scale_values(views.scale_k),
                                   .v = scale_values(views.scale_v),
                                   .v_columns = problem.scale_v_columns,
                                   .scale_log2 = scale_of(problem).scale_log2,
                                   .ragged = lengths_of(problem, views),
                                   .seq_kv = static_cast<int>(problem.seq_kv),
                                   .sequences = static_cast<int>(problem.batch),
                                   .heads = static_cast<int>(problem.heads_kv)};
  // Packed rows do not know their sequence, so all are dequantised.
  return Params{DequantiseParams{.k = tensor_of(views.k, run.plan.workspace.dequantised_k),
                                 .v = tensor_of(views.v, run.plan.workspace.dequantised_v),
                                 .used = problem.varlen ? nullptr : views.seqused_kv.as<int>(),
                                 .scales = scales}};
}

Result<Params> make_params(const Driver&, const Run& run, const CombineStep& step) {
  const Problem& problem = run.plan.problem;
  const Views& views = run.views;
  CombineParams params{};
  params.split = split_of(run, step.parts, step.pack_gqa, step.even);
  params.o = strided(problem.merges_lse() ? views.o_sum : views.o);
  params.lse = row_scalars(views.lse);
  params.sink = views.sink.as<float>();
  params.heads_q = static_cast<int>(problem.heads_q);
  params.seq_q = static_cast<int>(problem.seq_q);
  params.seq_kv = static_cast<int>(problem.seq_kv);
  params.dim_v = static_cast<int>(problem.dim_v);
  params.sequences = static_cast<int>(problem.batch);
  params.tile_q = step.tile_q;
  params.tile_kv = step.tile_kv;
  params.mask = mask_of(problem);
  params.scale_log2 = scale_of(problem).scale_log2;
  params.ragged = lengths_of(problem, views);
  params.gate = strided(views.gate);
  params.pack_gqa = step.pack_gqa;
  params.ctas = step.even.ctas;
  return Params{params};
}

}  // namespace froghopper::runtime
