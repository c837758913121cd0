// SPDX-License-Identifier: Apache-2.0
// plan: one launch that quantises q, k and v; two where all rows of a sequence share a scale, the first to look for the
// largest value. With smooth two come before them, which find the means of k and v.
#include "src/plan/quantise.hpp"

#include <algorithm>

#include "src/base/ceil_div.hpp"
#include "src/base/text.hpp"
#include "src/plan/both_passes.hpp"

namespace froghopper {
namespace {

// Tiles of q, k and v over all sequences and heads. A tensor that a run leaves out has none; the plan knows of none.
int64_t items_at_most(const Problem& p) {
  return p.batch * (quantise_tiles(p, p.seq_q) * p.heads_q + 2 * quantise_tiles(p, p.seq_kv) * p.heads_kv);
}

int dim_of_tiles(const Problem& p) { return static_cast<int>(ceil_div(std::max(p.dim_qk, p.dim_v), 64) * 64); }

// The means of k and of v; a run may leave one out.
void add_means(Plan& plan) {
  const Problem& p = plan.problem;
  const int64_t means = 2 * p.batch * p.heads_kv, chunks = ceil_div(p.seq_kv, average_rows);
  if (!p.smooth || means == 0) return;
  const AverageVariant v{.from = p.dtype, .dim = dim_of_tiles(p)};
  const size_t values = static_cast<size_t>(means) * static_cast<size_t>(v.dim);
  plan.workspace.column_sums = plan.workspace.take(values * static_cast<size_t>(chunks) * sizeof(double));
  plan.workspace.means = plan.workspace.take(values * sizeof(float));
  const auto add = [&](int64_t ctas, Averaging what) {
    if (ctas > 0)
      plan.launches.push_back(
          {.kernel = kernel_of(v), .grid = static_cast<int>(ctas), .step = AverageStep{v, what}, .overlaps = false});
  };
  add(means * chunks, Averaging::sum);
  add(means, Averaging::divide);
}

}  // namespace

Result<Plan> plan_quantise(const Problem& p, const Device& device, const Hints& hints) {
  if (auto ok = check_limits(p); !ok) return ok.failure();
  if (const std::string given = hints.line(); !given.empty())
    return unsupported(
        text("{} is a hint for attention; to quantise there is one way. Leave it out.", given.substr(1)));
  Plan plan{.problem = p, .launches = {}, .workspace = {}};
  const int64_t items = items_at_most(p);
  if (items > items_max)
    return unsupported(
        text("batch x heads x rows make {} tiles; one launch takes {}. Split the batch.", items, items_max));
  add_means(plan);  // also of no rows: they are 0
  if (items == 0) return plan;

  const QuantiseVariant v{.from = p.dtype, .to = p.dtype_kv, .dim = dim_of_tiles(p), .smooth = p.smooth};
  const int64_t ctas = int64_t{usable_sms(p, device)} * quantise_ctas_per_sm(v);
  const auto add = [&](Scaling scaling) {
    plan.launches.push_back({.kernel = kernel_of(v),
                             .grid = static_cast<int>(std::min(ctas, items)),
                             .step = QuantiseStep{v, scaling},
                             .overlaps = false});
  };
  if (p.scale_rows == 0) {
    plan.workspace.largest = plan.workspace.take(static_cast<size_t>(items) * sizeof(float));
    add(Scaling::look);
    add(Scaling::shared);
  } else {
    add(Scaling::own);
  }
  return plan;
}

}  // namespace froghopper
