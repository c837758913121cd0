// SPDX-License-Identifier: Apache-2.0
// runtime/params: the arguments of the kernel that appends to a cache.
#include "src/runtime/params/params.hpp"
#include "src/runtime/params/shared.hpp"

namespace froghopper::runtime {

namespace {

struct Part {
  Named from, to;
  const View *weights, *scales;  // null: it has none
};

AppendTensor tensor_of(const Problem& problem, AppendVariant v, const Part& part) {
  AppendTensor tensor{};
  tensor.from = strided(part.from.view);
  tensor.to = strided(part.to.view);
  tensor.weights = part.weights ? part.weights->data : nullptr;
  tensor.heads = static_cast<int>(part.from.view.heads);
  tensor.dim = static_cast<int>(part.from.view.dim);
  tensor.lane_bits = append_lane_bits(v, tensor.dim);
  tensor.iterations = append_iterations_of(v, tensor.dim, tensor.heads);
  if (!part.scales || !part.scales->data) return tensor;
  if (problem.scale_tokens) {
    tensor.written = part.scales->as<float>();
    tensor.written_batch = part.scales->stride_batch;
    tensor.written_row = part.scales->stride_seq;
    tensor.written_head = part.scales->stride_head;
  } else {
    tensor.given = scale_values(*part.scales);
  }
  return tensor;
}

Result<RotaryParams> rotary_of(const Problem& problem, AppendVariant v, const Views& views) {
  RotaryParams rotary{};
  if (problem.rotary_dim == 0) return rotary;
  for (const Named& table : {Named{"rotary_cos", views.rotary_cos}, Named{"rotary_sin", views.rotary_sin}})
    if (auto ok = check_layout(table); !ok) return ok.failure();
  const StridedTensor cos = strided(views.rotary_cos), sin = strided(views.rotary_sin);
  return RotaryParams{.cos = cos.data,
                      .sin = sin.data,
                      .cos_row = cos.row,
                      .sin_row = sin.row,
                      .positions = static_cast<int>(problem.rotary_rows),
                      .columns = static_cast<int>(problem.rotary_dim),
                      .lane_bits = append_lane_bits(v, static_cast<int>(problem.dim_qk)),
                      .interleaved = problem.rotary_interleaved,
                      .f32 = problem.dtype_rotary == Dtype::f32};
}

}  // namespace

Result<Params> make_params(const Driver&, const Run& run, const AppendStep& step) {
  const Problem& problem = run.plan.problem;
  const Views& views = run.views;
  const RaggedParams lengths = lengths_of(problem, views);
  const Part parts[] = {{{"q", views.q}, {"q_out", views.q_out}, &views.norm_q, nullptr},
                        {{"k", views.k}, {"cache_k", views.cache_k}, &views.norm_k, &views.scale_k},
                        {{"v", views.v}, {"cache_v", views.cache_v}, nullptr, &views.scale_v}};
  AppendParams params{};
  for (int i = 0; i < 3; ++i) {
    const Part& part = parts[i];
    if (!part.from.view.data || !part.to.view.data) continue;  // left out, or a cache without rows
    for (const Named& tensor : {part.from, part.to})
      if (auto ok = check_layout(tensor); !ok) return ok.failure();
    if (part.weights && part.weights->data)
      if (auto ok = check_layout({i == 0 ? "norm_q" : "norm_k", *part.weights}); !ok) return ok.failure();
    params.tensors[i] = tensor_of(problem, step.variant, part);
  }
  params.lane_groups = step.lane_groups;
  params.iterations = step.iterations;
  params.rows = static_cast<int>(problem.rows_q());
  params.seq_q = static_cast<int>(problem.seq_q);
  params.sequences = static_cast<int>(problem.batch);
  params.cu = lengths.cu_q;
  params.used = lengths.used_q;
  params.before = views.seqused_kv.as<int>();
  params.slots = views.slot_mapping.as<long long>();
  params.positions = views.positions.as<long long>();
  params.table = views.block_table.as<int>();
  params.table_sequence = views.block_table.stride_batch;
  params.table_column = static_cast<int>(views.block_table.stride_seq);
  params.cache_batches = static_cast<int>(problem.batches_kv());
  params.cache_rows = static_cast<int>(problem.extent_kv());
  params.seq_kv = static_cast<int>(problem.seq_kv);
  const auto rotary = rotary_of(problem, step.variant, views);
  if (!rotary) return rotary.failure();
  params.rotary = *rotary;
  params.norm = problem.norm;
  params.norm_f32 = problem.dtype_norm == Dtype::f32;
  params.epsilon = problem.norm_epsilon;
  params.own_scales = problem.scale_tokens;
  return Params{params};
}

}  // namespace froghopper::runtime
