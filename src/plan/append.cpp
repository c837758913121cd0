// SPDX-License-Identifier: Apache-2.0
// plan: one launch that writes new rows of k and v into a cache, and q with them.
#include "src/plan/append.hpp"

#include <algorithm>

#include "src/base/ceil_div.hpp"
#include "src/base/text.hpp"
#include "src/plan/both_passes.hpp"

namespace froghopper {
namespace {

// What the kernel counts in 32 bits, and columns that it takes in pieces.
constexpr int64_t int_max = (int64_t{1} << 31) - 1;
Result<void> check_append(const Problem& p) {
  if (auto ok = check_limits(p); !ok) return ok.failure();
  const int64_t rows = p.rows_q() * (p.heads_q + 2 * p.heads_kv), slots = p.batches_kv() * p.extent_kv();
  if (rows > int_max)
    return unsupported(text("new rows times heads are {}; one launch takes 2^31 - 1. Split the batch.", rows));
  if (slots > int_max)
    return unsupported(text(
        "the cache has {} rows; the Hopper kernel counts 2^31 - 1 of them. Split it, or use target \"cpu\".", slots));
  if (p.rotary_dim % append_rotary_step != 0)
    return unsupported(
        text("rotary_dim is {}; the Hopper kernel rotates columns by multiples of {}. Use target \"cpu\".",
             p.rotary_dim, append_rotary_step));
  if (p.rotary_rows > int_max)
    return unsupported(
        text("rotary_rows is {}; the Hopper kernel knows 2^31 - 1 positions. Use shorter tables.", p.rotary_rows));
  return {};
}

// Of a lane group that takes all heads of a row. q is not there in every call, but as a rule it is.
int64_t iterations_of_a_row(const Problem& p, AppendVariant v) {
  const int qk = static_cast<int>(p.dim_qk), heads_kv = static_cast<int>(p.heads_kv);
  return append_iterations_of(v, qk, static_cast<int>(p.heads_q)) + append_iterations_of(v, qk, heads_kv) +
         append_iterations_of(v, static_cast<int>(p.dim_v), heads_kv);
}
constexpr int most_iterations = 8;  // of a lane group: what it looked up is then an eighth of its work

}  // namespace

Result<Plan> plan_append(const Problem& p, const Device& device, const Hints& hints) {
  if (auto ok = check_append(p); !ok) return ok.failure();
  if (const std::string given = hints.line(); !given.empty())
    return unsupported(
        text("{} is a hint for attention; to append there is one way. Leave it out.", given.substr(1)));
  Plan plan{.problem = p, .launches = {}, .workspace = {}};
  const int64_t rows = p.rows_q() * (p.heads_q + 2 * p.heads_kv);
  if (rows == 0) return plan;
  const AppendVariant v{
      .from = p.dtype, .to = p.dtype_kv, .dim = dim_of_rows(static_cast<int>(std::max(p.dim_qk, p.dim_v)))};
  const int64_t ctas = int64_t{usable_sms(p, device)} * append_ctas_per_sm(v);
  const int64_t iterations = iterations_of_a_row(p, v);
  const int64_t all_groups = ctas * append_lane_groups_of_cta(v);  // that are there at once
  // A lane group looks for a row's place once, so that more heads a group save time where there are rows for all.
  const int64_t of_group = std::clamp<int64_t>(p.rows_q() * iterations / all_groups, 1, most_iterations);
  const int64_t groups = ceil_div(iterations, of_group);
  plan.launches.push_back(
      {.kernel = kernel_of(v),
       .grid = static_cast<int>(std::min(ctas, ceil_div(p.rows_q() * groups, append_lane_groups_of_cta(v)))),
       .step = AppendStep{v, static_cast<int>(groups), static_cast<int>(ceil_div(iterations, groups))},
       .overlaps = true});
  return plan;
}

}  // namespace froghopper
