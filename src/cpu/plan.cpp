// SPDX-License-Identifier: Apache-2.0
// cpu: chooses the kernel and the number of threads.
#include <algorithm>

#include "src/base/ceil_div.hpp"
#include "src/base/cores.hpp"
#include "src/base/text.hpp"
#include "src/cpu/append_work.hpp"
#include "src/cpu/cpu.hpp"
#include "src/cpu/gradient_work.hpp"
#include "src/cpu/quantise_work.hpp"
#include "src/cpu/work.hpp"
#include "src/problem/nothing.hpp"

namespace froghopper::cpu {
namespace {

// A thread must have at least this many multiply-adds: a core takes 10 to 20 microseconds for them, and waking a
// thread takes as long.
constexpr double worth_a_thread = 1e6;

int64_t threads_for(const Problem& p) {
  // Quantising or appending a value takes about as long as 8 multiply-adds.
  const double work = p.appends() ? 8.0 * static_cast<double>(p.rows_q()) *
                                        static_cast<double>(p.heads_q * p.dim_qk + p.heads_kv * (p.dim_qk + p.dim_v))
                      : p.quantises() ? 8.0 * (static_cast<double>(p.rows_q()) * p.heads_q * p.dim_qk +
                                               static_cast<double>(p.rows_kv()) * p.heads_kv * (p.dim_qk + p.dim_v))
                                      : static_cast<double>(p.rows_q()) * p.heads_q * p.seq_kv * (p.dim_qk + p.dim_v);
  const int64_t allowed = p.max_sms == 0 ? cores() : std::min(p.max_sms, cores());
  return std::clamp<int64_t>(static_cast<int64_t>(std::min(work / worth_a_thread, 1e6)), 1, allowed);
}

// Query rows that read a KV head.
int64_t lanes_of_head(const Problem& p) { return p.seq_q * (p.heads_q / std::max<int64_t>(1, p.heads_kv)); }

// Depends on the problem only, since the tiles, and with them the bits, depend on it. With `invariant` the tiles are
// those of any other problem.
bool heads_side_by_side(const Kernel& kernel, const Problem& p) {
  return p.heads_kv > 1 && lanes_of_head(p) <= kernel.block_lanes && !p.invariant;
}

// Keys of a KV tile of the backward pass: fewer where some threads would have no KV tile.
int64_t kv_tile_for(const Problem& p, int64_t threads) {
  int64_t keys = kv_tile_most(p.dim_qk + p.dim_v);
  const auto kv_tiles = [&] { return static_cast<double>(p.batch) * p.heads_kv * ceil_div(p.seq_kv, keys); };
  while (keys > 64 && kv_tiles() < 2 * static_cast<double>(threads)) keys /= 2;
  return keys;
}

}  // namespace

// The CPU computes whatever Problem::from accepts.
Result<Plan> plan(const Problem& problem) {
  // A single query row is multiplied in floats, which takes less time than to convert k and v to AMX tiles.
  const bool one_row = !problem.backward() && !problem.quantises() && !problem.appends() &&
                       lanes_of_head(problem) == 1 && !problem.invariant;
  return plan_with(fastest_kernel(one_row ? Dtype::f32 : multiplied_as(problem)), problem);
}

Plan plan_with(const Kernel& kernel, const Problem& problem) {
  const int64_t threads = threads_for(problem);
  if (problem.backward()) return {problem, &kernel, threads, q_tile_rows, kv_tile_for(problem, threads)};
  if (problem.quantises()) return {problem, &kernel, threads, quantise_rows, quantise_rows};
  if (problem.appends()) return {problem, &kernel, threads, 1, 1};
  const int keys = keys_of_tile(kernel.keys, static_cast<int>(problem.dim_qk), static_cast<int>(problem.dim_v));
  if (!heads_side_by_side(kernel, problem)) return {problem, &kernel, threads, kernel.block_lanes, keys};
  const int few = kernel.bf16_only ? tile_kv_side_by_side_in_pairs : tile_kv_side_by_side;
  return {problem, &kernel, threads, kernel.block_lanes, few, /*side_by_side=*/true};
}

int Plan::item_lanes_most() const {
  return lanes_of_item(kernel->lanes, static_cast<int>(problem.dim_qk), static_cast<int>(problem.dim_v));
}

size_t Plan::scratch_bytes() const {
  const int dim_qk = static_cast<int>(problem.dim_qk), dim_v = static_cast<int>(problem.dim_v);
  if (problem.quantises()) return sizeof(float) * quantise_floats(std::max(dim_qk, dim_v));
  if (problem.appends()) return sizeof(float) * append_floats(std::max(dim_qk, dim_v));
  return sizeof(float) *
         (problem.backward()
              ? gradient_floats(dim_qk, dim_v, static_cast<int>(tile_kv))
              : scratch_floats(dim_qk, dim_v, item_lanes_most(), static_cast<int>(tile_kv)) +
                    (problem.paged() ? gathered_floats(dim_qk + dim_v, static_cast<int>(tile_kv)) : 0));
}

std::string Plan::how() const {
  if (const std::string why = why_nothing(problem); !why.empty()) return text("cpu nothing to compute, as {}", why);
  if (problem.quantises()) return text("cpu {} rows{} threads {}", kernel->name, tile_q, threads);
  if (problem.appends()) return text("cpu {} rows threads {}", kernel->name, threads);
  return text("cpu {} q{}.kv{} threads {}", kernel->name, tile_q, tile_kv, threads);
}

std::string Plan::line() const { return text("{} -> {}", problem.line(), how()); }

Result<void> run(const Plan& plan, const Views& views, void* workspace) {
  if (Result<void> lengths = check_lengths(plan.problem, views); !lengths) return lengths;
  if (!plan.problem.quantises() && !plan.problem.appends())
    if (Result<void> scales = check_scales(plan.problem, views); !scales) return scales;
  const InterruptWatch watch;
  const auto run_pass = plan.problem.appends()     ? run_append
                        : plan.problem.quantises() ? run_quantise
                        : plan.problem.backward()  ? run_backward
                                                   : run_forward;
  const bool is_phase = plan.problem.backward() ? plan.problem.phase != FH_PHASE_NONE : plan.problem.in_phases();
  Result<void> done = is_phase ? run_phase(plan, views, workspace, watch) : run_pass(plan, views, watch);
  if (watch.asked())
    return Failure{FH_INTERRUPTED, "SIGINT came during the call; what it wrote is undefined. Call again."};
  return done;
}

}  // namespace froghopper::cpu
