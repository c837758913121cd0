// SPDX-License-Identifier: Apache-2.0
// plan: which kernel computes a forward problem on a device, with which tiles, in which order. docs/4-planning.md.
#include "src/plan/forward.hpp"

#include <algorithm>

#include "contract/parts.h"
#include "src/base/text.hpp"

namespace froghopper {
namespace {

Result<FwdVariant> choose_variant(const Problem& p, int sms, const Hints& hints) {
  const auto dims = choose_dims(p);
  if (!dims) return dims.failure();
  const FwdVariant variant = {.dtype = p.dtype,
                              .dims = *dims,
                              .tiles = hints.tiles.value_or(tuned_tiles(p, *dims, sms)),
                              .mask = kernel_mask(p),
                              .ragged = p.varlen || p.seqused,
                              .softcap = p.softcap > 0};
  if (auto ok = check_tiles(p, variant.tiles, why_invalid(variant)); !ok) return ok.failure();
  return variant;
}

}  // namespace

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
