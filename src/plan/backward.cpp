// SPDX-License-Identifier: Apache-2.0
// plan: which kernels compute a backward problem on a device, one after the other, and what they share.
// docs/8-backward.md.
#include "src/plan/backward.hpp"

#include <algorithm>

#include "contract/bwd_params.h"
#include "src/base/ceil_div.hpp"
#include "src/base/text.hpp"
#include "src/plan/both_passes.hpp"
#include "src/plan/forward.hpp"
#include "src/plan/tuning.hpp"

namespace froghopper {
namespace {

// Registers and shared memory leave no choice: contract/bwd_variant.h.
Tiles tiles_for(Dims dims) { return {dims.qk == 64 ? 128 : 64, above_256(dims) ? 64 : 128, 2}; }

// Above head dim 256 v has the tile of q and k (device/bwd/by_columns.cuh).
Result<Dims> choose_dims_of_gradients(const Problem& p) {
  const auto dims = choose_dims(p);
  if (!dims || !above_256(*dims)) return dims;
  const int64_t dim = std::max(p.dim_qk, p.dim_v);
  return *tile_dims(dim, dim);
}

// Each by a CTA, or by those of a cluster.
int kv_tiles_at_once(const Problem& p, const BwdVariant& v, const Device& device) {
  return usable_sms(p, device) / bwd_ctas(v);
}

// CTAs that add to grad_q in order need no zeros to add to, since the first one writes: sums go to memory once less,
// and are not read from there to be added to. With few keys that is more than what waiting for each other costs, if the
// kv tiles of a pair do not begin together; to begin costs 2 us more. docs/experiments/0012.
bool deterministic_is_faster(const Problem& p, const BwdVariant& v, int at_once) {
  if (v.ragged || v.score_mods.softcap || v.score_mods.alibi || (v.mask != Mask::none && v.mask != Mask::causal))
    return false;
  const int64_t kv_tiles = ceil_div(p.seq_kv, v.tiles.kv), few = v.dims.qk == 64 && v.mask == Mask::causal
                                                                     ? tuning::deterministic_kv_tiles_causal_64
                                                                     : tuning::deterministic_kv_tiles;
  const int64_t tiles = q_tiles_of(p, v.tiles.q) * p.heads_q;
  const bool apart = kv_tiles == 1 || (kv_tiles <= few && p.batch * p.heads_kv >= at_once);
  return apart && tiles * dq_floats(v.tiles.q, v.dims.qk) >= tuning::deterministic_floats_least;
}

Result<BwdVariant> choose_variant(const Problem& p, const Device& device, const Hints& hints) {
  const auto dims = choose_dims_of_gradients(p);
  if (!dims) return dims.failure();
  BwdVariant variant = {.dtype = p.dtype,
                        .dims = *dims,
                        .tiles = hints.tiles.value_or(tiles_for(*dims)),
                        .mask = kernel_mask(p),
                        .ragged = p.varlen || p.seqused,
                        .score_mods = {.softcap = p.softcap > 0, .alibi = p.alibi},
                        .deterministic = p.deterministic};
  // Not by itself in phases, in which the first CTA adds too, so that nothing is gained.
  if (!p.in_phases())
    variant.deterministic |= deterministic_is_faster(p, variant, kv_tiles_at_once(p, variant, device));
  if (auto ok = check_tiles(p, variant.tiles, why_invalid(variant)); !ok) return ok.failure();
  if (p.max_sms > 0 && p.max_sms < bwd_ctas(variant))
    return unsupported(
        text("max_sms is {}; gradients above head dim 128 take SMs in pairs. Set max_sms to 2 or more, or to 0 for "
             "all.",
             p.max_sms));
  return variant;
}

// A hint that nothing would heed is refused: its user would measure the plan that is made without it.
Result<void> check_hints(const Hints& hints) {
  if (hints.tail_percent)
    return unsupported(
        text("tail={}% is a hint for forward problems; a backward one holds no kv tiles back for the end. Leave tail "
             "out; section= changes the order of kv tiles.",
             *hints.tail_percent));
  if (hints.deferred_tiles)
    return unsupported(
        text("deferred={} is a hint for forward problems; a backward one defers the fetch of every work item. Leave "
             "deferred out.",
             *hints.deferred_tiles));
  const std::string tiling = hints.pack_gqa ? text("packgqa={}", *hints.pack_gqa)
                             : hints.parts  ? text("parts={}", *hints.parts)
                                            : "";
  if (!tiling.empty())
    return unsupported(
        text("{} is a hint for forward problems; a backward one has neither PackGQA nor split-KV. "
             "Leave {} out.",
             tiling, tiling.substr(0, tiling.find('='))));
  return {};
}

// kv tiles over all sequences and key heads; for packed sequences the most there can be.
int64_t items_at_most(const Problem& p, const BwdVariant& v) {
  const int64_t tiles = p.varlen ? p.total_kv / v.tiles.kv + p.batch : p.batch * ceil_div(p.seq_kv, v.tiles.kv);
  return tiles * p.heads_kv;
}

// Q and grad_o of a pair, and the sums of its grad_q, which all its kv tiles go through. Packed sequences have no more
// rows than there are, however large seq_q is; so all pairs have up to 2^49 bytes, 2 KiB a row in 2^31 tiles of 128.
int64_t pair_bytes(const Problem& p) {
  const int64_t rows = p.varlen ? std::min(p.seq_q, p.total_q) : p.seq_q;
  const int64_t row_bytes = (p.dim_qk + p.dim_v) * size_of(p.dtype) + p.dim_qk * size_of(Dtype::f32);
  return rows * row_bytes * (p.heads_q / p.heads_kv);
}

// How many Q iterations a kv tile has less than the one before it, under a causal mask.
int64_t iterations_less(const Problem& p, const BwdVariant& v) {
  return v.tiles.kv / v.tiles.q * (p.heads_q / p.heads_kv);
}

// Where CTAs add in order and the heaviest kv tile comes first, the light ones at the end of a section follow one
// another faster than an add and the signal's latency take, and wait; so sections begin with them, item_in_dq_order.
// With more than two iterations less each they do not wait, on paper: docs/experiments/0014.
bool light_first(const Problem& p, const BwdVariant& v) {
  return v.deterministic && v.mask == Mask::causal && !v.ragged &&
         iterations_less(p, v) <= tuning::light_first_iterations;
}

// How the iterations of items come where query heads share keys and kv tiles are unequal (Traversal,
// device/bwd/schedule.cuh). Short pairs come one by one, and all items go from the last q tile to the first: the CTAs
// of a pair begin nearly together. Where one or two pairs have about one kv tile for every CTA, those of a section
// begin one after the other, as those before end, and end together: every other section goes the other way.
// docs/experiments/0016.
struct Traversals {
  int64_t same_traversal = 0;  // BwdParams::same_traversal
  int64_t section = 0;
};

// Packed sequences whose heads come together, q tile by q tile: eight or more share keys, and sequences are short; long
// ones lose. docs/experiments/0017.
bool is_packed_short(const Problem& p, const BwdVariant& v) {
  const int64_t rows = p.varlen ? p.total_kv : p.batch * p.seq_kv, mean = rows / std::max<int64_t>(p.batch, 1);
  return v.ragged && p.heads_q / p.heads_kv >= tuning::packed_short_heads && mean <= tuning::packed_short_keys &&
         p.seq_kv <= tuning::packed_short_spread * mean;
}

// Packed sequences: as many pairs of one are side by side as have about one kv tile for every CTA, for those of the
// longest. More leave L2, fewer do not begin together, and one by one SMs would end late. docs/experiments/0017.
int64_t pairs_of_packed(const Problem& p, double in_flight) {
  return std::min<int64_t>(p.heads_kv, std::max<int64_t>(2, std::lround(in_flight)));
}

Traversals traversals_of(const Problem& p, const BwdVariant& v, const Device& device) {
  if (v.mask != Mask::causal || p.heads_q == p.heads_kv) return {};
  const double in_flight = double(kv_tiles_at_once(p, v, device)) * v.tiles.kv / std::max<int64_t>(p.seq_kv, 1);
  const auto section = static_cast<int64_t>(std::lround(in_flight));
  const bool fits = section > 0 && section <= tuning::serpentine_pairs_most &&
                    std::abs(in_flight - section) <= tuning::serpentine_off_most;
  if (!v.deterministic) {
    if (is_packed_short(p, v)) return {no_bound<int>, 2};
    if (fits) return {section, section};
    return v.ragged ? Traversals{0, pairs_of_packed(p, in_flight)} : Traversals{no_bound<int>, 1};
  }
  // Deterministic ones go from the last q tile to the first, or serpentine, but never head by head. Not measured in
  // clusters. Where every other section goes the other way its CTAs follow one another by an add and the signal's
  // latency, which few iterations do not hide: docs/experiments/0016.
  if (bwd_ctas(v) > 1 || light_first(p, v)) return {};
  if (fits && iterations_less(p, v) >= tuning::of(device).serpentine_from) return {section, section};
  // Four short pairs in flight wait for each other no more than many do; a long one would: docs/experiments/0016.
  return !v.ragged && in_flight >= tuning::short_pairs_in_flight ? Traversals{0, 1} : Traversals{};
}

// How many bytes of pairs go through their kv tiles side by side; 0: one pair.
//
// Without a mask one by one, so that all SMs read the same Q and grad_o. With one, kv tiles are unequal: as many pairs
// as fit a share of L2.
// Where CTAs add to grad_q in order, a kv tile follows the one before it by an iteration. CTAs that begin together, or
// one after the other as others end, must not all be of one pair then, or they wait for each other; many pairs wait
// least, until they no longer fit L2, which an H100 has less of. Measured: docs/experiments/0013, 0014.
int64_t bytes_together(const Problem& p, const BwdVariant& v, const Device& device) {
  if (!v.deterministic) return v.mask == Mask::none ? 0 : tuning::pairs_bytes;
  if (light_first(p, v) && v.dims.qk == 64) return tuning::section_of_l2(device);
  const int64_t bytes = tuning::deterministic_pairs_bytes / (p.seq_kv <= tuning::deterministic_short_keys ? 2 : 1);
  return bytes * (v.mask == Mask::none || light_first(p, v) ? 1 : 2);
}

// With a mask a pair's first kv tile is many times as heavy as its last. A section has about one kv tile for every SM,
// so such a last section would end with SMs that wait for its heaviest; so that many kv tiles of every SM come as
// one section at the end, the heaviest first. More would leave L2; and where CTAs add in order, wait for each other.
// Measured: docs/experiments/0015.
int64_t rounds_at_the_end(const Problem& p, const BwdVariant& v) {
  return p.seq_kv <= tuning::one_round_keys || light_first(p, v) ? 1 : tuning::rounds_at_the_end;
}

BackwardStep step_of(const Problem& p, const BwdVariant& v, const Device& device, const Hints& hints) {
  const int64_t kv_tiles = ceil_div(p.seq_kv, v.tiles.kv), all_items = items_at_most(p, v);
  // Ragged: sequences come one after the other.
  const int64_t pairs = v.ragged ? p.heads_kv : p.batch * p.heads_kv;
  const int64_t items = v.ragged ? p.heads_kv * kv_tiles : all_items;
  const int64_t bytes = hints.section_mib ? int64_t{*hints.section_mib} << 20 : bytes_together(p, v, device);
  const int64_t all_pairs = p.batch * p.heads_kv;
  const int at_once = kv_tiles_at_once(p, v, device);
  const Traversals traversals = hints.section_mib ? Traversals{} : traversals_of(p, v, device);
  int64_t section = 1, in_sections = all_pairs, light = 0;
  if (bytes > 0 && pairs > 0) {
    section = ceil_div(pairs, sections_of(pairs, pair_bytes(p), bytes, items, at_once));
    if (traversals.section > 0) section = traversals.section;
    if (v.ragged) {
      section = without_small_remainder(pairs, section);
      const RaggedTiles tiles = {v.tiles.kv, p.total_kv, p.seq_kv, p.heads_kv};
      if (v.mask != Mask::none)
        in_sections -= sequences_at_the_end(p, tiles, rounds_at_the_end(p, v), at_once) * p.heads_kv;
    } else if (v.mask != Mask::none) {
      const int64_t at_the_end =
          traversals.section > 0 ? at_once / kv_tiles : ceil_div(rounds_at_the_end(p, v) * at_once, kv_tiles);
      in_sections = std::max<int64_t>(pairs - at_the_end, 0) / section * section;
      // They would wait for the last of one pair
      if (traversals.section > 0 && pairs <= 2 * at_the_end) in_sections = 0;
      if (light_first(p, v)) light = in_sections;
      if (in_sections == 0) section = in_sections = pairs;
    }
  }
  const Order order = {.items = static_cast<int>(all_items),
                       .pairs = static_cast<int>(all_pairs),
                       .items_of_pair = static_cast<int>(kv_tiles),
                       .section = static_cast<int>(section),
                       .in_sections = static_cast<int>(in_sections),
                       .tail = 0,
                       .deferred_tiles = 0};
  return {v, order, static_cast<int>(traversals.same_traversal), static_cast<int>(light)};
}

void take_workspace(Plan& plan, const BwdVariant& v, int64_t tiles) {
  const auto numbers = [](int64_t count) { return static_cast<size_t>(count) * sizeof(float); };
  Workspace& w = plan.workspace;
  w.tickets = w.take(sizeof *QueueParams::counter);
  w.large_rows = w.take(sizeof *BwdParams::large);
  w.rows = w.take(numbers(tiles * 2 * v.tiles.q));
  w.grad_q = w.take(numbers(tiles * dq_floats(v.tiles.q, v.dims.qk)));
  if (plan.problem.sink) w.grad_sink = w.take(numbers(tiles));
  if (v.deterministic) w.dq_semaphores = w.take(numbers(tiles));
  const Problem& p = plan.problem;
  if (p.gate) w.gated_grad_o = w.take(static_cast<size_t>(p.rows_q() * p.heads_q * p.dim_v) * size_of(p.dtype));
}

}  // namespace

Result<Plan> plan_backward(const Problem& p, const Device& device, const Hints& hints) {
  if (auto ok = check_limits(p); !ok) return ok.failure();
  if (auto ok = check_hints(hints); !ok) return ok.failure();
  const auto variant = choose_variant(p, device, hints);
  if (!variant) return variant.failure();
  const BwdVariant& v = *variant;

  Plan plan{.problem = p, .launches = {}, .workspace = {}};
  const int64_t tiles = q_tiles_of(p, v.tiles.q) * p.heads_q, items = items_at_most(p, v);
  if (std::max(tiles + p.heads_q, items) > items_max)
    return unsupported(text("batch x heads x rows make {} tiles; one launch takes {}. Split the batch.",
                            std::max(tiles, items), items_max));
  if (p.rows_q() == 0 && p.rows_kv() == 0 && !p.sink) return plan;

  take_workspace(plan, v, tiles);
  const int dim_v = dim_of_rows(v.dims.v);
  const DeltaVariant delta{v.dtype, dim_v, v.ragged, p.gate};
  const GradQVariant grad_q{v.dtype, v.dims.qk, v.tiles.q, v.ragged};
  const auto add = [&](const auto& kernel, int64_t grid, Step step, bool overlaps = true) {
    plan.launches.push_back(
        {.kernel = kernel_of(kernel), .grid = static_cast<int>(grid), .step = std::move(step), .overlaps = overlaps});
  };
  // With a gate it also clears rows, which there may be without a sequence.
  const int64_t delta_ctas = std::max<int64_t>(tiles, p.gate && p.rows_q() > 0 ? 1 : 0);
  const bool has_delta = delta_ctas > 0 && p.begins();
  if (has_delta) add(delta, delta_ctas, DeltaStep{delta, v});
  const int sms = kv_tiles_at_once(p, v, device) * bwd_ctas(v);  // whole clusters
  const int64_t grid = v.ragged ? sms : std::min<int64_t>(sms, items * bwd_ctas(v));
  // It reads grad_o before it waits, so with a gate, where the kernel before writes that, it begins after it. It also
  // draws tickets before it waits, so another run on the same workspace must be over, which the delta kernel waits for.
  const bool overlaps = !p.gate && has_delta;
  if (grid > 0 && p.rows_kv() > 0) {
    const BackwardStep step = step_of(p, v, device, hints);
    if (!dq_order_fits(step.order, step.pairs_light_first))
      return Failure{FH_INTERNAL,
                     text("the first {} pairs, whose lightest kv tile comes first, are not whole sections "
                          "of {} pairs. This is a bug of froghopper; please report it.",
                          step.pairs_light_first, step.order.section)};
    add(v, grid, step, overlaps);
  }
  // Sequences of lengths of their own have rows of no sequence, which are cleared.
  const int64_t ctas = std::max<int64_t>(tiles + (p.sink ? p.heads_q : 0), v.ragged ? sms : 0);
  if (ctas > 0 && p.ends()) add(grad_q, ctas, GradQStep{grad_q});
  return plan;
}

int64_t q_tiles_of(const Problem& p, int tile_q) {
  return p.varlen ? tiles_of_packed(p.total_q, p.batch, tile_q) : p.batch * ceil_div(p.seq_q, tile_q);
}

}  // namespace froghopper
