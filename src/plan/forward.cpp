// SPDX-License-Identifier: Apache-2.0
// plan: which kernel computes a forward problem on a device, with which tiles, in which order. docs/4-planning.md.
#include "src/plan/forward.hpp"

#include <algorithm>

#include "contract/parts.h"
#include "src/base/text.hpp"

namespace froghopper {
namespace {

Failure unsupported(std::string why) { return {FH_UNSUPPORTED, std::move(why)}; }

// Rows are 32-bit inside the kernel, and a mask adds two of them to no_bound<int>, 2^30.
constexpr int64_t seq_max = int64_t{1} << 29;
constexpr int64_t items_max = (int64_t{1} << 31) - 1;  // the kernel counts them in an int

Result<FwdVariant> choose_variant(const Problem& p, int sms, const Hints& hints) {
  const auto dims = tile_dims(p.dim_qk, p.dim_v);
  if (!dims)
    return unsupported(
        text("dim_qk is {} and dim_v is {}; the Hopper kernels take up to 256 of each. Use target \"cpu\".", p.dim_qk,
             p.dim_v));
  const FwdVariant variant = {.dtype = p.dtype,
                              .dims = *dims,
                              .tiles = hints.tiles.value_or(tuned_tiles(p, *dims, sms)),
                              .mask = kernel_mask(p),
                              .ragged = p.varlen || p.seqused,
                              .softcap = p.softcap > 0};
  if (const char* why = why_invalid(variant))
    return unsupported(text("tiles={}x{}s{} cannot be used for {}: {}. Leave tiles out to get the tuned ones.",
                            variant.tiles.q, variant.tiles.kv, variant.tiles.stages, p.line(), why));
  return variant;
}

}  // namespace

Result<void> check_limits(const Problem& p) {
  if (p.dtype == Dtype::f32)
    return unsupported(
        "dtype is f32; the Hopper kernels take f16 and bf16. Convert q, k and v, or use target \"cpu\".");
  for (const auto& [name, value] : {std::pair{"seq_q", p.seq_q},
                                    {"seq_kv", p.seq_kv},
                                    {"total_q", p.total_q},
                                    {"total_kv", p.total_kv},
                                    {"batch", p.batch},
                                    {"heads_q", p.heads_q}})
    if (value >= seq_max)
      return unsupported(
          text("{} is {}; the Hopper kernels count to 2^29 - 1 in each direction. Split the problem, or use "
               "target \"cpu\".",
               name, value));
  return {};
}

int usable_sms(const Problem& p, const Device& device) {
  return p.max_sms > 0 ? static_cast<int>(std::min<int64_t>(p.max_sms, device.sms)) : device.sms;
}

Mask kernel_mask(const Problem& p) {
  if (p.window_left != all_keys) return Mask::window;
  return p.window_right != all_keys ? Mask::causal : Mask::none;
}

Result<Plan> plan_forward(const Problem& p, const Device& device, const Hints& hints) {
  if (auto ok = check_limits(p); !ok) return ok.failure();
  const int sms = usable_sms(p, device);
  const auto variant = choose_variant(p, sms, hints);
  if (!variant) return variant.failure();

  const int64_t items = items_at_most(p, variant->tiles.q);
  if (items > items_max)
    return unsupported(
        text("batch x heads_q x seq_q make {} tiles of {} rows; one launch takes 2^31 - 1. Split the batch.", items,
             variant->tiles.q));

  Plan plan{.problem = p, .launches = {}, .workspace = {}};
  // Ragged: also where no sequence has a query, its rows of o and lse are cleared.
  const bool something = variant->ragged ? p.rows_q() > 0 : items > 0;
  if (!something) return plan;
  plan.workspace.tickets = plan.workspace.take(sizeof *QueueParams::counter);
  plan.launches.push_back({.kernel = kernel_of(*variant),
                           .grid = variant->ragged ? sms : static_cast<int>(std::min<int64_t>(sms, items)),
                           .step = ForwardStep{*variant, order_items(p, *variant, device, hints)}});
  return plan;
}

}  // namespace froghopper
