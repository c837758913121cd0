// SPDX-License-Identifier: Apache-2.0
// plan: which kernel computes a forward problem on a device, with which tiles, in which order. docs/4-planning.md.
#include "src/plan/forward.hpp"

#include <algorithm>

#include "contract/fwd_legality.h"
#include "contract/fwd_smem.h"
#include "contract/shared_params.h"
#include "src/base/ceil_div.hpp"
#include "src/base/text.hpp"
#include "src/plan/tuning.hpp"

namespace froghopper {
namespace {

Result<void> check_hints(const Problem& p, const Hints& hints) {
  if (p.invariant && hints.parts)
    return unsupported(text("parts={} is a hint and invariant is set; its parts have {} keys. Leave parts out.",
                            *hints.parts, batch_invariant_part_tiles * batch_invariant_tile_kv));
  if (may_have_pack_gqa_or_split_kv(p)) return {};
  const auto refuse = [&](const char* word, int value) {
    return unsupported(
        text("{0}={1} is a hint for problems without accumulate, attention_chunk and alibi; with these tiles are "
             "neither PackGQA nor split-KV. Leave {0} out.",
             word, value));
  };
  if (hints.pack_gqa.value_or(0) > 0) return refuse("packgqa", *hints.pack_gqa);
  if (hints.parts.value_or(1) > 1) return refuse("parts", *hints.parts);
  return {};
}

Parts parts(const Tiling& tiling) { return {tiling.part_tiles, tiling.parts}; }

// Whether a Consumer keeps sums of O in the workspace: an item may have several parts of keys, or so many keys that FP8
// products are promoted. A packed sequence may be longer than seq_kv.
bool keeps_sums(const Problem& p, const FwdVariant& v) {
  const int64_t keys = p.kv_is_packed() ? std::max(p.seq_kv, p.total_kv) : p.seq_kv;
  return fwd_promotes(v, keys) ||
         (fwd_merges_parts(v) && keys > batch_invariant_part_tiles * batch_invariant_tile_kv);
}

// What the parts of all rows take; each is read by the second kernel. ctas: of the first one.
void take_parts(Plan& plan, const Tiling& tiling, int ctas) {
  const Problem& p = plan.problem;
  if (fwd_splits_evenly(tiling.variant)) {
    const size_t rows = static_cast<size_t>(workspace_tile_of_part(ctas, false)) * m_tile_rows;
    plan.workspace.part_o = plan.workspace.take(rows * static_cast<size_t>(p.dim_v) * sizeof(float));
    plan.workspace.part_rows = plan.workspace.take(rows * sizeof(PartOfRow));
    plan.workspace.shared_q_tiles = plan.workspace.take(static_cast<size_t>(ctas) * sizeof(SharedQTile));
    return;
  }
  const auto row_heads = static_cast<size_t>(p.rows_q() * p.heads_q * tiling.parts);
  plan.workspace.part_o = plan.workspace.take(row_heads * static_cast<size_t>(p.dim_v) * sizeof(float));
  plan.workspace.part_rows = plan.workspace.take(row_heads * sizeof(PartOfRow));
}

// p: the sequences whose keys are split.
void add_combine(Plan& plan, const Problem& p, const Tiling& tiling, const EvenSplit& evenly) {
  const FwdVariant& v = tiling.variant;
  const int dim = dim_of_rows(v.dims.v);
  const bool even = fwd_splits_evenly(v);
  const CombineVariant combine{p.merges_lse() ? Dtype::f32 : p.dtype_o,
                               dim,
                               tiling.parts <= 4 && !even ? 4 : combine_parts_most(dim),
                               v.batch_invariant,
                               v.gated,
                               even};
  const int64_t of_tile = tiling.pack_gqa.heads * std::min<int64_t>(tiling.pack_gqa.rows, p.seq_q);
  const int64_t grid =
      even ? evenly.ctas * std::min<int64_t>(ceil_div(of_tile, combine_rows(combine)), combine_ctas_of_tile)
           : ceil_div(p.rows_q() * p.heads_q, combine_rows(combine));
  plan.launches.push_back({.kernel = kernel_of(combine),
                           .grid = static_cast<int>(grid),
                           .step = CombineStep{combine, v.pack_gqa ? tiling.pack_gqa.rows : v.tiles.q, v.tiles.kv,
                                               parts(tiling), tiling.pack_gqa, evenly},
                           .overlaps = true});
}

// What forward kernels raise begins at -inf; merged, it begins as it is.
void add_fill(Plan& plan, int sms) {
  const Problem& p = plan.problem;
  const int64_t values = p.batch * p.heads_q;
  if (!p.max_logit || p.accumulate || !p.begins() || values == 0) return;
  plan.launches.push_back({.kernel = kernel_of(FillVariant{}),
                           .grid = static_cast<int>(std::min<int64_t>(ceil_div(values, fill_threads), sms)),
                           .step = FillStep{},
                           .overlaps = true});
}

void add_dequantise(Plan& plan, bool blocks, int sms) {
  const Problem& p = plan.problem;
  const auto bytes = [&](int64_t dim) {
    return static_cast<size_t>(p.rows_kv() * p.heads_kv * dim) * size_of(p.dtype);
  };
  plan.workspace.dequantised_k = plan.workspace.take(bytes(p.dim_qk));
  plan.workspace.dequantised_v = plan.workspace.take(bytes(p.dim_v));
  if (blocks)
    plan.workspace.block_scales = plan.workspace.take(static_cast<size_t>(block_scales(p)) * block_scale_bytes);
  const DequantiseVariant variant{p.dtype_kv, p.dtype};
  plan.launches.push_back({.kernel = kernel_of(variant),
                           .grid = sms * dequantise_ctas_per_sm,
                           .step = DequantiseStep{variant},
                           .overlaps = true});
}

// Whether an item may take longer than a launch's first ticket.
bool hides_tickets(const Problem& p, const Tiling& tiling) {
  const int64_t tiles = ceil_div(ceil_div(p.seq_kv, tiling.variant.tiles.kv), tiling.parts);
  return tiles * tiling.variant.tiles.kv > tuning::keys_without_tickets;
}

// Of an even split, the CTAs of a class of heads, at most `most`. One for each q tile if these are nearly as many: of
// equally many keys none of them is cut then, and there is nothing to combine. docs/experiments/0051.
int ctas_of_class(int64_t q_tiles, int most) {
  const bool nearly = q_tiles <= most && 100 * q_tiles >= tuning::even_ctas_percent * most;
  return nearly ? static_cast<int>(q_tiles) : most;
}

// Of the sequences p, which are some or all of the plan's.
struct Sequences {
  const Problem& p;
  RowsRange rows = {};
  bool second = false;
};
void add_forward(Plan& plan, const Sequences& its, const Tiling& tiling, const Device& device, const Hints& hints) {
  const Problem& p = its.p;
  const FwdVariant& v = tiling.variant;
  const int64_t items = items_at_most(p, v, tiling.pack_gqa) * tiling.parts;
  const int sms = usable_sms(p, device), ctas = sms * fwd_ctas_per_sm(v);
  // Ragged: how many items there are is known only on the GPU, and all CTAs fill padding rows.
  int grid = !v.ragged ? static_cast<int>(std::min<int64_t>(ctas, items)) : items <= sms ? sms : ctas;
  EvenSplit even;
  if (fwd_splits_evenly(v)) {
    even.classes = classes_of_heads(static_cast<int>(p.heads_q / tiling.pack_gqa.heads), grid);
    even.ctas = grid = even.classes * ctas_of_class(items / tiling.parts / even.classes, grid / even.classes);
  }
  if (keeps_sums(p, v))
    plan.workspace.sums = plan.workspace.take(sizeof(float) * grid * fwd_consumers(v) * fwd_sums_floats(v));
  if (tiling.parts > 1) take_parts(plan, tiling, grid);
  if (fwd_dequantised_by_earlier_launch(v)) add_dequantise(plan, fwd_block_scales(v), sms);
  const bool draws = !fwd_splits_evenly(v) && (items > grid || hides_tickets(p, tiling));
  plan.launches.push_back({.kernel = kernel_of(v),
                           .grid = grid,
                           .step = ForwardStep{v, order_items(p, tiling, device, hints), tiling.pack_gqa,
                                               parts(tiling), draws, its.rows, its.second, even},
                           .overlaps = true,
                           .one_cta_an_sm = ctas > sms && grid <= sms});
  if (tiling.parts > 1) add_combine(plan, p, tiling, even);
}

}  // namespace

Result<Plan> plan_forward(const Problem& p, const Device& device, const Hints& hints) {
  if (auto ok = check_limits(p); !ok) return ok.failure();
  if (auto ok = check_hints(p, hints); !ok) return ok.failure();
  const int sms = usable_sms(p, device);
  const auto dims = choose_dims(p);
  if (!dims) return dims.failure();
  const auto tiling = choose_tiling(p, *dims, device, hints);
  if (!tiling) return tiling.failure();
  const FwdVariant* const variant = &tiling->variant;
  if (auto ok = check_tiles(p, variant->tiles, why_invalid(*variant)); !ok) return ok.failure();
  if (p.scale_rows > 0 && fwd_reads_8_bit(*variant) && p.scale_rows % variant->tiles.kv != 0)
    return check_tiles(p, variant->tiles, "the keys of a tile share a scale, so it has 64 or 128").failure();

  const int64_t items = items_at_most(p, *variant, tiling->pack_gqa) * tiling->parts;
  const int64_t row_heads = p.rows_q() * p.heads_q;
  if (items > items_max || (tiling->parts > 1 && row_heads > items_max))
    return unsupported(text("batch x heads_q x seq_q make {} tiles of {} rows; one launch takes {}. Split the batch.",
                            items, variant->tiles.q, items_max));

  Plan plan{.problem = p, .launches = {}, .workspace = {}};
  add_fill(plan, sms);
  // Ragged: also where no sequence has a query, its rows of o and lse are cleared.
  const bool something = variant->ragged ? p.rows_q() > 0 : items > 0;
  if (!something) return plan;
  const auto few = sequences_of_few_rows(p, *tiling, hints);
  const auto of_few = few ? choose_tiling(*few, *dims, device, {}) : tiling;
  if (!of_few) return of_few.failure();
  // Combine would take the rows of other sequences for split ones too.
  const bool mixed = few && (fwd_splits_evenly(of_few->variant) || of_few->parts == 1) &&
                     !why_invalid(of_few->variant) &&
                     items_at_most(*few, of_few->variant, of_few->pack_gqa) * of_few->parts <= items_max;
  // Also where no ticket is drawn, so that a workspace does not depend on the number of SMs.
  plan.workspace.tickets = plan.workspace.take(sizeof *QueueParams::counter * (mixed ? 2 : 1));
  if (!mixed) {
    add_forward(plan, {p}, *tiling, device, hints);
    return plan;
  }
  const int most = static_cast<int>(few->seq_q);
  add_forward(plan, {p, {.least = most + 1}}, *tiling, device, hints);
  add_forward(plan, {*few, {.most = most}, /*second=*/true}, *of_few, device, hints);
  return plan;
}

}  // namespace froghopper
