// SPDX-License-Identifier: Apache-2.0
// plan: the time of a plan by the busiest SM. Items are handed out as on a device, by contract/order.h, to whoever is
// free first; each takes its iterations and items. docs/4-planning.md, "How long it takes".
#include "src/plan/time.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "contract/mask.h"
#include "src/base/ceil_div.hpp"
#include "src/base/text.hpp"
#include "src/plan/backward.hpp"
#include "src/plan/forward.hpp"
#include "src/plan/tuning.hpp"
#include "src/plan/workers.hpp"
#include "src/problem/bytes.hpp"
#include "src/problem/mask.hpp"

namespace froghopper {
namespace {

// What an SM does in a clock, by NVIDIA's description of the chip: FLOPs of 16-bit wgmma, and exponentials.
constexpr double tensor_flops = 4096, exponentials_a_clock = 16;  // 8-bit FLOPs count half
constexpr double share_of_copies = 0.85;      // of the memory's speed, where a kernel reads and writes
constexpr int64_t items_simulated = 1 << 17;  // of more, every SM is taken to have as much to do
constexpr double share_of_reads = 0.93;       // where one only reads: 64 x 8k keys on an H200, one query row
// Launches follow each other: the first begins as the one before it ends; gradients fill and empty the device each.
constexpr double launch_us = 1.5, next_launch_us = 4;

// ---- Who does what ----

// Rows of one sequence: where lengths are on the device, all are taken to be equally long.
int64_t rows_of_one(int64_t bound, int64_t all, const Problem& p) {
  return std::min(bound, ceil_div(all, std::max<int64_t>(p.batch, 1)));
}
int64_t mean_rows_q(const Problem& p) { return p.varlen ? rows_of_one(p.seq_q, p.total_q, p) : p.seq_q; }
int64_t mean_rows_kv(const Problem& p) { return p.kv_is_packed() ? rows_of_one(p.seq_kv, p.total_kv, p) : p.seq_kv; }

// Calls with the q tile (of gradients the kv tile) of each item, one after the other. pairs_falling: pairs whose last
// tile comes first.
void each_tile(const Order& order, int heads, bool ragged, int pairs_falling, const std::function<void(int)>& call) {
  if (!ragged) {
    for (int number = 0; number < order.items; ++number)
      call(item_in_dq_order(order, number, pairs_falling).index_in_pair);
    return;
  }
  for (int sequence = 0; sequence < order.pairs / std::max(heads, 1); ++sequence)
    for (int number = 0; number < order.items_of_pair * heads; ++number) {
      const int tile = item_in_sequence(number, order.items_of_pair, heads, order.section).index_in_pair;
      call(pairs_falling > 0 ? tile : order.items_of_pair - 1 - tile);
    }
}

// What the launch does that takes longest, and what an iteration of it is.
struct Main {
  std::vector<Load> tiles;  // of a q tile, of gradients a kv tile, by its place in a sequence: of every so many one
  int64_t tiles_of_pair;    // that they stand for
  Order order;
  int heads;  // items of a tile
  bool ragged;
  int pairs_falling;  // pairs whose last tile comes first
  int workers, sms_of_worker;
  double iterations_left;  // of an item when the next one is asked for
  Rate rate;
  double flops, exponentials;  // of an iteration
};

// Which tiles of so many are looked at: all, unless they are more than are walked.
int64_t step_of(int64_t tiles) { return std::max<int64_t>(1, ceil_div(tiles, items_simulated)); }

// How many iterations an item has left when its CTA asks for the next one; of whole items 0, by which rates are fitted.
double iterations_left(const FwdVariant& v, int64_t parts) { return parts > 1 && !v.pack_gqa ? v.tiles.stages : 0.0; }

// Of an item that visits these tiles. There may be none: a part without keys.
Load load_of(TileSequence<int64_t> tiles) {
  return tiles.count() > 0 ? Load{static_cast<double>(tiles.count()), 1} : Load{};
}

Main main_of(const Problem& p, const ForwardStep& step, int grid, const Device& device) {
  const FwdVariant& v = step.variant;
  const int64_t rows_q = mean_rows_q(p), rows_kv = mean_rows_kv(p);
  const int64_t rows = v.pack_gqa ? step.pack_gqa.rows : v.tiles.q, q_tiles = ceil_div(rows_q, rows);
  const int64_t parts = step.parts.most;
  Main m{.tiles = {},
         .tiles_of_pair = q_tiles * parts,
         .order = step.order,
         .heads = static_cast<int>(p.heads_q / step.pack_gqa.heads),
         .ragged = v.ragged,
         .pairs_falling = v.mask != Mask::none ? step.order.pairs : 0,
         .workers = std::min(grid, usable_sms(p, device)),  // two CTAs of one share its speed
         .sms_of_worker = 1,
         .iterations_left = iterations_left(v, parts),
         .rate = rate_of(v, device),
         .flops = (fwd_fp8_mma(v) ? 1.0 : 2.0) * v.tiles.q * v.tiles.kv *
                  (fwd_consumers_per_m_tile(v) * v.dims.qk + v.dims.v),
         .exponentials = 1.0 * fwd_consumers_per_m_tile(v) * v.tiles.q * v.tiles.kv};
  m.order.items_of_pair = static_cast<int>(q_tiles * parts);
  if (v.ragged) m.order.pairs = static_cast<int>(p.batch * m.heads);
  const int64_t each = step_of(m.tiles_of_pair);
  for (int64_t unit = each / 2; unit < m.tiles_of_pair; unit += each) {
    const int64_t first = unit / parts * rows;
    auto attended = tiles_attended(p, rows_q, rows_kv, first, std::min(first + rows, rows_q) - 1, v.tiles.kv);
    if (fwd_splits(v))  // evenly: about such parts
      attended = v.batch_invariant ? batch_invariant_part_of<int64_t>(attended, unit % parts, parts)
                                   : part_of<int64_t>(attended, unit % parts, step.parts.tiles, parts);
    m.tiles.push_back(load_of(attended));
  }
  return m;
}

Main main_of(const Problem& p, const BackwardStep& step, int grid, const Device& device) {
  const BwdVariant& v = step.variant;
  const int64_t rows_q = mean_rows_q(p), rows_kv = mean_rows_kv(p);
  const int64_t kv_tiles = ceil_div(rows_kv, v.tiles.kv);
  const auto group = static_cast<double>(p.heads_q / p.heads_kv);
  Main m{.tiles = {},
         .tiles_of_pair = kv_tiles,
         .order = step.order,
         .heads = static_cast<int>(p.heads_kv),
         .ragged = v.ragged,
         .pairs_falling = step.pairs_light_first,
         .workers = grid / bwd_ctas(v),
         .sms_of_worker = bwd_ctas(v),
         .iterations_left = 0,
         .rate = rate_of(v, device),
         .flops = 2.0 * v.tiles.q * v.tiles.kv * (3 * v.dims.qk + 2 * v.dims.v),
         .exponentials = 1.0 * v.tiles.q * v.tiles.kv};
  m.order.items_of_pair = static_cast<int>(kv_tiles);
  const int64_t each = step_of(kv_tiles);
  for (int64_t tile = each / 2; tile < kv_tiles; tile += each) {
    const int64_t first = tile * v.tiles.kv;
    const int64_t last = std::min(first + v.tiles.kv, rows_kv) - 1;
    const auto iterations = q_tiles_that_attend(p, rows_q, rows_kv, first, last, v.tiles.q);
    m.tiles.push_back({group * static_cast<double>(iterations.end - iterations.begin), group});
  }
  return m;
}

struct Shares {
  Load busiest, all;
};
Shares shares_of(const Main& m) {
  const int64_t items = m.ragged ? m.order.pairs * m.tiles_of_pair : m.order.items;
  if (items <= items_simulated) {
    Workers workers(m.workers, m.rate, m.iterations_left);
    each_tile(m.order, m.heads, m.ragged, m.pairs_falling, [&](int tile) { workers.take(m.tiles[tile]); });
    return {workers.busiest(), workers.all()};
  }
  Load all;
  const double times =
      m.order.pairs * (static_cast<double>(m.tiles_of_pair) / std::max(1.0, static_cast<double>(m.tiles.size())));
  for (const Load& tile : m.tiles) all.iterations += times * tile.iterations, all.items += times * tile.items;
  return {{all.iterations / m.workers, all.items / m.workers}, all};
}

// ---- Bytes ----

double row_heads_q(const Problem& p) { return 1.0 * p.rows_q() * p.heads_q; }

// o and grad_o, lse and delta; with a gate three tensors of that shape more; and zeros where grad_q is summed in any
// order: else the first part is written.
double bytes_of_delta(const Problem& p, const DeltaStep& step) {
  const double zeros = step.reader.deterministic ? 0 : 1.0 * p.dim_qk * sizeof(float);
  const double tensors = p.gate ? 5 : 2;
  return row_heads_q(p) * (tensors * p.dim_v * size_of(p.dtype) + 4.0 * sizeof(float) + zeros);
}
double bytes_of_grad_q(const Problem& p) {
  const bool adds = p.accumulate && p.phase == FH_PHASE_NONE;
  return row_heads_q(p) * p.dim_qk * (sizeof(float) + (adds ? 2.0 * sizeof(float) : size_of(p.dtype)));
}
double bytes_of_quantise(const Problem& p, const QuantiseStep& step) {
  const double values = row_heads_q(p) * p.dim_qk + values_of_keys(p);
  return values * (size_of(p.dtype) + (step.scaling == Scaling::look ? 0 : size_of(p.dtype_kv)));
}

double bytes_of_dequantising(const Problem& p) {
  return (size_of(p.dtype_kv) + size_of(p.dtype)) * values_of_keys(p);
}

double copy_us(double bytes, const Device& device) { return bytes / (share_of_copies * 1e3 * device.memory_gbps); }

// ---- A plan ----

// The sum of what its launches take; `device` is all there is to do it.
struct Sum {
  Estimate estimate;
  double longest_us = 0;  // of the launch that the estimate describes
  double work_us = 0, between_us = 0, flops = 0, exponentials = 0, bytes = 0;
  bool known = true;
};

template <class Step>
void add_main(Sum& sum, const Problem& p, const Step& step, int grid, const Device& device, double least_us) {
  const Main m = main_of(p, step, grid, device);
  sum.known &= m.rate.iteration_us > 0;
  if (!sum.known || m.workers == 0) return;
  const Shares shares = shares_of(m);
  const double busiest_us = time_of(shares.busiest, m.rate), main_us = overlapped(busiest_us, least_us);
  sum.work_us += main_us;
  sum.flops += shares.all.iterations * m.flops, sum.exponentials += shares.all.iterations * m.exponentials;
  if (main_us < sum.longest_us) return;
  sum.longest_us = main_us;
  Estimate& e = sum.estimate;
  e.rate = m.rate;
  e.busiest = shares.busiest;
  // Workers that could have been: of all SMs those without an item count too.
  const int most = std::max(m.workers, usable_sms(p, device) / m.sms_of_worker);
  e.average = {shares.all.iterations / most, shares.all.items / most};
  e.busy = busiest_us > 0 ? time_of(e.average, m.rate) / busiest_us : 0;
}

// Of a mixed step the sequences that a launch computes. The host knows how many rows there are and how many a sequence
// has at most: as many sequences as possible are taken to have one row, and the others all the rest.
Problem sequences_of(const Problem& p, const ForwardStep& step) {
  const bool of_few = step.second, of_many = step.rows.least > 0;
  if (!of_few && !of_many) return p;
  const int64_t rows_of_few = of_few ? step.rows.most : step.rows.least - 1;
  const int64_t beyond_one = std::max<int64_t>(p.total_q - p.batch, 0);  // rows
  const int64_t longer = std::min(p.batch, ceil_div(beyond_one, std::max<int64_t>(p.seq_q - 1, 1)));
  const int64_t rows_of_longer = longer > 0 ? std::min(p.seq_q, 1 + ceil_div(beyond_one, longer)) : 0;
  const int64_t many = rows_of_longer > rows_of_few ? longer : 0;
  Problem its = p;
  its.batch = of_few ? std::min(p.batch - many, p.total_q) : many;
  its.seq_q = of_few ? std::min(p.seq_q, rows_of_few) : rows_of_longer;
  its.total_q = of_few ? std::max<int64_t>(p.total_q - many * rows_of_longer, 0) : many * rows_of_longer;
  return its;
}

void add(Sum& sum, const Problem& all, const ForwardStep& step, int grid, const Device& device) {
  const Problem p = sequences_of(all, step);
  if (step.second) sum.work_us += launch_us;
  if (p.batch == 0 && all.batch > 0) return;
  sum.bytes += bytes_moved(p);
  // Several rows of PackGQA tiles read keys again, from L2 at best.
  add_main(sum, p, step, grid, device, read_us(bytes_moved(p), device));
}
void add(Sum& sum, const Problem& p, const BackwardStep& step, int grid, const Device& device) {
  Problem forward = p.forward();
  forward.gate = false;  // the launch before has read it
  sum.bytes += 2 * bytes_moved(forward), sum.between_us += next_launch_us;
  add_main(sum, p, step, grid, device, 0);
}
void add(Sum& sum, const Problem&, const FillStep&, int, const Device&) { sum.between_us += next_launch_us; }
void add(Sum& sum, const Problem& p, const DequantiseStep&, int, const Device& device) {
  sum.bytes += bytes_of_dequantising(p), sum.work_us += dequantise_us(p, device);
}
void add(Sum& sum, const Problem& p, const CombineStep& step, int, const Device&) {
  if (!step.variant.even) return void(sum.work_us += combine_us(p, step.parts.most));
  // Each CTA of the kernel before begins a tile at most that others go on with, and two parts are usual.
  Problem rows = p;
  rows.batch = 1, rows.varlen = false, rows.seq_q = step.even.ctas, rows.heads_q = step.pack_gqa.heads;
  sum.work_us += combine_us(rows, 2);
}
void add(Sum& sum, const Problem& p, const DeltaStep& step, int, const Device& device) {
  const double bytes = bytes_of_delta(p, step);
  sum.bytes += bytes, sum.work_us += copy_us(bytes, device);
}
void add(Sum& sum, const Problem& p, const GradQStep&, int, const Device& device) {
  sum.bytes += bytes_of_grad_q(p), sum.work_us += copy_us(bytes_of_grad_q(p), device);
  sum.between_us += next_launch_us;
}
void add(Sum& sum, const Problem& p, const QuantiseStep& step, int, const Device& device) {
  sum.bytes += bytes_of_quantise(p, step), sum.work_us += copy_us(bytes_of_quantise(p, step), device);
}
void add(Sum& sum, const Problem& p, const AppendStep&, int, const Device& device) {
  sum.bytes += bytes_moved(p), sum.work_us += copy_us(bytes_moved(p), device);
}
void add(Sum& sum, const Problem& p, const AverageStep& step, int, const Device& device) {
  const double bytes = values_of_keys(p) * size_of(p.dtype);
  sum.between_us += next_launch_us;
  if (step.what == Averaging::sum) sum.bytes += bytes, sum.work_us += copy_us(bytes, device);
}

Bound bound_of(const Estimate& e) {
  const double most = std::max({e.tensor_core, e.exponentials, e.memory});
  constexpr double few = 0.75;  // of SMs at work; what they do is seldom nearer to its most than this
  if (e.average.iterations > 0 && e.busy < few && e.memory < few) return Bound::few_items;
  if (most == e.memory) return Bound::memory;
  return most == e.tensor_core ? Bound::tensor_core : Bound::exponentials;
}

}  // namespace

std::optional<Estimate> estimate(const Plan& plan, const Device& device) {
  Sum sum;
  for (const Launch& launch : plan.launches)
    std::visit([&](const auto& step) { add(sum, plan.problem, step, launch.grid, device); }, launch.step);
  if (!sum.known || plan.launches.empty()) return std::nullopt;
  Estimate& e = sum.estimate;
  e.us = launch_us + sum.between_us + sum.work_us;
  const double clocks = e.us * device.clock_mhz * device.sms;
  e.tensor_core = sum.flops / (tensor_flops * clocks);
  e.exponentials = sum.exponentials / (exponentials_a_clock * clocks);
  e.memory = sum.bytes / (e.us * 1e3 * device.memory_gbps);
  e.bound = bound_of(e);
  return e;
}

double kernel_us(const Problem& p, const FwdVariant& v, int64_t parts, const Device& device) {
  const int64_t rows_q = mean_rows_q(p), rows_kv = mean_rows_kv(p);
  const int64_t q_tiles = ceil_div(rows_q, v.tiles.q), pairs = p.batch * p.heads_q, items = q_tiles * pairs * parts;
  const int64_t of_part = ceil_div(ceil_div(std::max<int64_t>(rows_kv, 1), v.tiles.kv), parts);
  const Rate rate = rate_of(v, device);
  const int sms = usable_sms(p, device);
  const auto attended_by = [&](int64_t tile) {
    const int64_t first = tile * v.tiles.q;
    return tiles_attended(p, rows_q, rows_kv, first, std::min(first + v.tiles.q, rows_q) - 1, v.tiles.kv);
  };
  if (v.mask == Mask::none && !v.ragged && items > 0)
    return static_cast<double>(ceil_div(items, sms)) * time_of(load_of({0, of_part}), rate);
  constexpr int few = 8;  // of each SM
  if (v.ragged || items > few * int64_t{sms}) {
    const int64_t step = std::max<int64_t>(1, q_tiles / tuning::tiles_sampled);
    double sum = 0, count = 0;
    for (int64_t tile = step / 2; tile < q_tiles; tile += step, ++count)
      sum += time_of(load_of(attended_by(tile)), rate);
    return count == 0 ? 0 : sum / count * static_cast<double>(q_tiles) * static_cast<double>(pairs) / sms;
  }
  Workers workers(sms, rate, iterations_left(v, parts));
  for (int64_t tile = q_tiles; tile-- > 0;) {  // the heaviest first
    const auto attended = attended_by(tile);
    for (int64_t part = parts; part-- > 0;)  // of some there is nothing; they are handed out too
      for (int64_t pair = 0; pair < pairs; ++pair)
        workers.take(load_of(part_of<int64_t>(attended, part, of_part, parts)));
  }
  return time_of(workers.busiest(), rate);
}

double forward_us(const Problem& p, const FwdVariant& v, int64_t parts, const Device& device) {
  const double before_us = fwd_dequantised_by_earlier_launch(v) ? dequantise_us(p, device) : 0;
  const double after_us = parts > 1 ? combine_us(p, parts) : 0;
  return kernel_us(p, v, parts, device) + before_us + after_us;
}

const Candidate& quickest(const Problem& p, std::span<const Candidate> candidates, const Device& device) {
  const auto us_of = [&](const Candidate& c) { return forward_us(p, c.variant, c.parts, device); };
  const Candidate* best = &candidates.front();
  double best_us = us_of(*best);
  for (const Candidate& candidate : candidates.subspan(1))
    if (const double us = us_of(candidate); us < candidate.below * best_us) best = &candidate, best_us = us;
  return *best;
}

double values_of_keys(const Problem& p) { return 1.0 * p.rows_kv() * p.heads_kv * (p.dim_qk + p.dim_v); }

double dequantise_us(const Problem& p, const Device& device) {
  constexpr double begins_us = 2;
  return begins_us + copy_us(bytes_of_dequantising(p), device);
}

double read_us(double bytes, const Device& device) { return bytes / (share_of_reads * 1e3 * device.memory_gbps); }

// In doubles: of the largest problems they pass 2^63.
double part_bytes(const Problem& p) { return row_heads_q(p) * (p.dim_v * sizeof(float) + sizeof(PartOfRow)); }

// By the clock of an H200, from bench/suites/decode.txt and few_items.txt. It begins before the launch before it ends.
// Of up to four parts rows share what finding one takes (combine_lanes); parts are written to L2 and read from there.
double combine_us(const Problem& p, int64_t parts) {
  constexpr double begins_us = 1.2, row_us = 1.2e-3, row_of_few_us = 0.2e-3, part_us = 0.05, bytes_a_us = 4e6;
  const double of_few = p.dim_v <= 128 ? row_of_few_us : 2 * row_of_few_us;
  const double of_rows = (parts <= 4 ? of_few : row_us) * row_heads_q(p);
  return begins_us + of_rows + static_cast<double>(parts) * (part_us + part_bytes(p) / bytes_a_us);
}

// The longer of the two, and a fifth more where they are as long. (Powers ask for no function of a newer glibc.)
double overlapped(double one_us, double other_us) {
  const double one = one_us * one_us, other = other_us * other_us;
  return std::sqrt(std::sqrt(one * one + other * other));
}

std::string share_of_roof(const Estimate& e, double us) {
  const std::array shares = {std::pair{e.tensor_core, "tensor"}, std::pair{e.exponentials, "exp2"},
                             std::pair{e.memory, "memory"}};
  const auto& [share, name] = *std::ranges::max_element(shares);
  return text("{:.0f}% {} {:.2f}", 100 * share * e.us / us, name, us / e.us);
}

const char* name_of(Bound bound) {
  switch (bound) {
    case Bound::tensor_core: return "the tensor cores";
    case Bound::exponentials: return "exponentials";
    case Bound::memory: return "memory";
    case Bound::few_items: return "too few work items";
  }
  return "";
}

}  // namespace froghopper
