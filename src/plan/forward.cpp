// SPDX-License-Identifier: Apache-2.0
// plan: which kernel computes a forward problem on a device, with which tiles, in which order. docs/4-planning.md.
#include <algorithm>

#include "src/base/text.hpp"
#include "src/plan/order.hpp"
#include "src/plan/plan.hpp"

namespace froghopper {
namespace {

Failure unsupported(std::string why) { return {FH_UNSUPPORTED, std::move(why)}; }

// Rows are 32-bit inside the kernel, and a mask adds two of them to no_bound.
constexpr int64_t seq_max = int64_t{1} << 29;
constexpr int64_t works_max = (int64_t{1} << 31) - 1;

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

Mask kernel_mask(const Problem& p) {
  if (p.window_left != all_keys) return Mask::window;
  return p.window_right != all_keys ? Mask::causal : Mask::none;
}

// The most keys that one query row sees.
int64_t keys_seen(const Problem& p) {
  if (p.window_left == all_keys || p.window_right == all_keys) return p.seq_kv;
  return std::min(p.seq_kv, p.window_left + 1 + p.window_right);
}

Result<FwdVariant> choose_variant(const Problem& p, const Device& device) {
  const auto dims = tile_dims(p.dim_qk, p.dim_v);
  if (!dims)
    return unsupported(
        text("dim_qk is {} and dim_v is {}; the Hopper kernels take up to 256 of each. Use target \"cpu\".", p.dim_qk,
             p.dim_v));
  const Mask mask = kernel_mask(p);
  const Tiles tiles = device.tiles.value_or(tuned_tiles(*dims, mask, keys_seen(p)));
  const FwdVariant variant = {.dtype = p.dtype,
                              .dim_qk = dims->qk,
                              .dim_v = dims->v,
                              .tile_q = tiles.q,
                              .tile_kv = tiles.kv,
                              .stages = tiles.stages,
                              .mask = mask,
                              .ragged = p.varlen || p.seqused,
                              .softcap = p.softcap > 0};
  if (const char* why = why_invalid(variant))
    return unsupported(text("tiles={}x{}s{} do not do for {}: {}. Leave tiles out to get the tuned ones.", tiles.q,
                            tiles.kv, tiles.stages, variant_name(variant), why));
  return variant;
}

}  // namespace

Result<Plan> plan_forward(const Problem& p, const Device& device) {
  if (auto ok = check_limits(p); !ok) return ok.failure();
  auto variant = choose_variant(p, device);
  if (!variant) return variant.failure();

  const int64_t works = works_at_most(p, variant->tile_q);
  if (works > works_max)
    return unsupported(
        text("batch x heads_q x seq_q make {} tiles of {} rows; one launch takes 2^31 - 1. Split the batch.", works,
             variant->tile_q));

  Plan plan;
  plan.problem = p;
  plan.variant = *variant;
  plan.order = order_works(p, *variant, device);
  const int64_t sms = p.max_sms > 0 ? std::min<int64_t>(p.max_sms, device.sms) : device.sms;
  // Ragged: also where no sequence has a query, its rows of o and lse are cleared.
  const bool something = variant->ragged ? p.rows_q() > 0 : works > 0;
  plan.grid = something ? static_cast<int>(variant->ragged ? sms : std::min(sms, works)) : 0;
  plan.smem_bytes = fwd_smem_bytes(*variant);
  plan.workspace_bytes = plan.grid > 0 ? workspace_bytes_max : 0;
  return plan;
}

}  // namespace froghopper
