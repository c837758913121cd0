// SPDX-License-Identifier: Apache-2.0
// cpu: calls in phases (fh_phase). Forward each of them is a call with accumulate, which merges o in o_sum; backward it
// adds grad_q to f32 rows in the workspace. The first call clears these, and the last one rounds them.
#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "src/base/storage.hpp"
#include "src/base/text.hpp"
#include "src/cpu/sequences.hpp"
#include "src/cpu/threads.hpp"
#include "src/cpu/work.hpp"

namespace froghopper::cpu {
namespace {

constexpr float no_score = -std::numeric_limits<float>::infinity();

Plan adding(const Plan& plan) {
  Problem p = plan.problem;
  p.sink = p.sink && p.backward() && p.ends();
  if (!p.backward()) p.phase = FH_PHASE_NONE, p.accumulate = true, p.dtype_o = Dtype::f32;
  return plan_with(*plan.kernel, p);
}

void round_row(const float* from, int64_t count, Dtype to_type, void* to) {
  switch (to_type) {
    case Dtype::f32: std::copy_n(from, count, static_cast<float*>(to)); return;
    case Dtype::bf16: std::transform(from, from + count, static_cast<uint16_t*>(to), float_to_bf16); return;
    default: std::transform(from, from + count, static_cast<uint16_t*>(to), float_to_f16);
  }
}

// Every row of the tensor, padding rows too: they are 0 in the sum.
void round_rows(const Plan& plan, const View& sum, const View& to, Dtype type, const InterruptWatch& watch) {
  for_each(sum.batch * sum.seq, plan.threads, watch, [&](int64_t i, int64_t) {
    const int64_t b = i / sum.seq, row = i % sum.seq;
    for (int64_t head = 0; head < sum.heads; ++head)
      round_row(sum.as<float>() + sum.at(b, row, head), sum.dim, type, to.address(b, row, head));
  });
}

void clear_rows(const View& view, float value) {
  for (int64_t b = 0; b < view.batch; ++b)
    for (int64_t row = 0; row < view.seq; ++row)
      for (int64_t head = 0; head < view.heads; ++head)
        std::fill_n(view.as<float>() + view.at(b, row, head), view.dim, value);
}

// What the first call finds: nothing, or the sink alone in rows of sequences.
void begin_forward(const Problem& p, const Views& views) {
  clear_rows(views.o_sum, 0);
  clear_rows(views.lse, no_score);
  if (p.max_logit) clear_rows(views.max_logit, no_score);
  if (!p.sink) return;
  for (int64_t index = 0; index < p.batch; ++index) {
    const Sequence s = sequence_of(p, views, index);
    for (int64_t row = s.first_q; row < s.first_q + s.used_q; ++row)
      for (int64_t head = 0; head < p.heads_q; ++head)
        views.lse.as<float>()[views.lse.at(s.batch, row, head)] = views.sink.as<float>()[head];
  }
}

Result<void> forward_phase(const Plan& plan, Views views, const InterruptWatch& watch) {
  const Problem& p = plan.problem;
  if (p.begins()) begin_forward(p, views);
  const View o = std::exchange(views.o, views.o_sum);
  views.o_sum = views.sink = {};
  if (Result<void> done = run_forward(adding(plan), views, watch); !done) return done;
  if (p.ends()) round_rows(plan, views.o, o, p.dtype_o, watch);
  return {};
}

Result<void> backward_phase(const Plan& plan, Views views, void* workspace, const InterruptWatch& watch) {
  const Problem& p = plan.problem;
  const int64_t row = p.heads_q * p.dim_qk;
  const View sum{.data = workspace,
                 .element = Element::f32,
                 .batch = p.batches(),
                 .seq = p.extent_q(),
                 .heads = p.heads_q,
                 .dim = p.dim_qk,
                 .stride_batch = p.extent_q() * row,
                 .stride_seq = row,
                 .stride_head = p.dim_qk};
  if (p.begins()) clear_rows(sum, 0);
  const View grad_q = std::exchange(views.grad_q, sum), grad_sink = views.grad_sink;
  std::vector<float> of_heads(static_cast<size_t>(p.heads_q), 0.0f);
  views.grad_sink.data = of_heads.data();
  if (Result<void> done = run_backward(adding(plan), views, watch); !done || !p.ends()) return done;
  round_rows(plan, sum, grad_q, p.dtype, watch);
  if (p.sink) std::ranges::copy(of_heads, grad_sink.as<float>());
  return {};
}

}  // namespace

Result<void> run_phase(const Plan& plan, const Views& views, void* workspace, const InterruptWatch& watch) {
  return plan.problem.backward() ? backward_phase(plan, views, workspace, watch) : forward_phase(plan, views, watch);
}

size_t Plan::workspace_bytes() const {
  if (!problem.backward() || problem.phase == FH_PHASE_NONE) return 0;
  return sizeof(float) * static_cast<size_t>(problem.rows_q() * problem.heads_q * problem.dim_qk);
}

}  // namespace froghopper::cpu
