// SPDX-License-Identifier: Apache-2.0
// plan: which kernel computes a forward problem on a device, with which tiles, in which order. docs/4-planning.md.
#include "src/plan/forward.hpp"

#include <algorithm>

#include "contract/parts.h"
#include "src/base/text.hpp"

namespace froghopper {
namespace {

// What the kernels of 8-bit types compute. Their code has the rest too, but nobody has run it.
Result<void> check_8_bit(const Problem& p) {
  if (!is_8_bit(p.dtype)) return {};
  const auto refuse = [](const std::string& what) {
    return unsupported(text(
        "{}; of 8-bit types the Hopper kernels take e4m3 of one length, full or causal, with scales of rows. Use "
        "target \"cpu\".",
        what));
  };
  if (p.dtype != Dtype::e4m3) return refuse(text("dtype is {}", name_of(p.dtype)));
  if (p.varlen || p.seqused) return refuse(p.varlen ? "varlen is set" : "seqused is set");
  if (kernel_mask(p) == Mask::window) return refuse(text("window_left is {}", p.window_left));
  if (p.seq_kv == 0) return refuse("seq_kv is 0");  // there would be no scale to read
  if (p.softcap > 0) return refuse(text("softcap is {}", p.softcap));
  if (p.sink) return refuse("sink is set");
  if (p.scale_v_columns) return refuse("scale_v_columns is set");
  return {};
}

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
  if (auto ok = check_8_bit(p); !ok) return ok.failure();
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
  const int grid = variant->ragged ? sms : static_cast<int>(std::min<int64_t>(sms, items));
  plan.workspace.tickets = plan.workspace.take(sizeof *QueueParams::counter);
  if (fwd_promotes(*variant, p.seq_kv))
    plan.workspace.sums =
        plan.workspace.take(sizeof(float) * grid * fwd_consumers(*variant) * fwd_sums_floats(*variant));
  plan.launches.push_back({.kernel = kernel_of(*variant),
                           .grid = grid,
                           .step = ForwardStep{*variant, order_items(p, *variant, device, hints)}});
  return plan;
}

}  // namespace froghopper
