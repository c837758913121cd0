// SPDX-License-Identifier: Apache-2.0
// runtime/params: the arguments of the kernels that quantise and that find means.
#include <cmath>
#include <cstdint>

#include "src/base/ceil_div.hpp"
#include "src/plan/quantise.hpp"
#include "src/runtime/params/params.hpp"
#include "src/runtime/params/shared.hpp"

namespace froghopper::runtime {

namespace {

struct Part {
  Named from, to;
  const View& scale;
  bool of_q, rotates;
  int64_t first_mean;  // -1: none
};

// To the kernel NULL says that there is no tile. Of tensors without rows nothing is read, so any aligned address will
// do.
void* aligned_below(const void* address) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(address) & ~uintptr_t{15});
}

QuantiseTensor tensor_of(const Run& run, const QuantiseParams& so_far, const Part& part) {
  const Problem& problem = run.plan.problem;
  const View& from = part.from.view;
  const RaggedParams lengths = lengths_of(problem, run.views);
  const int64_t rows = part.of_q ? problem.seq_q : problem.seq_kv;
  QuantiseTensor tensor{};
  tensor.from = strided(from);
  if (!tensor.from.data) tensor.from.data = aligned_below(part.scale.data);
  tensor.to = strided(part.to.view);
  tensor.scale = part.scale.as<float>();
  tensor.scale_batch = part.scale.stride_batch;
  tensor.scale_tile = part.scale.stride_seq;
  tensor.scale_head = part.scale.stride_head;
  tensor.cu = part.of_q ? lengths.cu_q : lengths.cu_kv;
  tensor.used = part.of_q ? lengths.used_q : lengths.used_kv;
  tensor.first_item = so_far.items;
  tensor.largest = run.slice<float>(run.plan.workspace.largest) + so_far.items;
  tensor.tiles = static_cast<int>(quantise_tiles(problem, rows));
  tensor.heads = static_cast<int>(from.heads);
  tensor.rows = static_cast<int>(rows);
  tensor.dim = static_cast<int>(from.dim);
  tensor.rotation = part.rotates ? rotation_block(tensor.dim) : 0;
  tensor.norm = part.rotates ? 1 / std::sqrt(static_cast<float>(tensor.rotation)) : 1;
  tensor.first_mean = static_cast<int>(problem.smooth ? part.first_mean : -1);
  return tensor;
}

// Means of v come after them.
int64_t means_of_k(const Problem& problem) { return problem.batch * problem.heads_kv; }

}  // namespace

Result<Params> make_params(const Driver&, const Run& run, const QuantiseStep& step) {
  const Problem& problem = run.plan.problem;
  const Views& views = run.views;
  const Part parts[] = {
      {{"q", views.q}, {"quantised_q", views.quantised_q}, views.scale_q, true, problem.rotate, -1},
      {{"k", views.k}, {"quantised_k", views.quantised_k}, views.scale_k, false, problem.rotate, 0},
      {{"v", views.v}, {"quantised_v", views.quantised_v}, views.scale_v, false, false, means_of_k(problem)}};
  QuantiseParams params{};
  params.scaling = step.scaling;
  params.seed = problem.rotate_seed;
  params.means = run.slice<float>(run.plan.workspace.means);
  for (const Part& part : parts) {
    // Without rows q, k or v may be NULL, and scales of sequences without rows are written all the same.
    if (!part.scale.data) continue;
    for (const Named& tensor : {part.from, part.to})
      if (auto ok = check_layout(tensor); !ok) return ok.failure();
    QuantiseTensor& tensor = params.tensors[params.count++] = tensor_of(run, params, part);
    params.items += static_cast<int>(problem.batch * tensor.tiles * tensor.heads);
  }
  return Params{params};
}

Result<Params> make_params(const Driver&, const Run& run, const AverageStep& step) {
  const Problem& problem = run.plan.problem;
  const Views& views = run.views;
  const RaggedParams lengths = lengths_of(problem, views);
  AverageParams params{};
  params.sequences = static_cast<int>(problem.batch);
  params.heads = static_cast<int>(problem.heads_kv);
  params.chunks = static_cast<int>(ceil_div(problem.seq_kv, average_rows));
  params.sums = run.slice<double>(run.plan.workspace.column_sums);
  params.means = run.slice<float>(run.plan.workspace.means);
  params.what = step.what;
  params.seed = problem.rotate_seed;
  const auto add = [&](const Named& from, const View& mean, bool rotates, int64_t first_mean) -> Result<void> {
    if (!mean.data) return {};
    if (auto ok = check_layout(from); !ok) return ok.failure();
    const int dim = static_cast<int>(from.view.dim);
    params.tensors[params.count++] = {.from = strided(from.view),
                                      .mean = mean.as<float>(),
                                      .mean_batch = mean.stride_batch,
                                      .mean_head = mean.stride_head,
                                      .cu = lengths.cu_kv,
                                      .used = lengths.used_kv,
                                      .rows = static_cast<int>(problem.seq_kv),
                                      .dim = dim,
                                      .rotation = rotates ? rotation_block(dim) : 0,
                                      .first_mean = static_cast<int>(first_mean)};
    return {};
  };
  if (auto ok = add({"k", views.k}, views.mean_k, problem.rotate, 0); !ok) return ok.failure();
  if (auto ok = add({"v", views.v}, views.mean_v, false, means_of_k(problem)); !ok) return ok.failure();
  return Params{params};
}

}  // namespace froghopper::runtime
