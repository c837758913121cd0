// SPDX-License-Identifier: Apache-2.0
// cp: the model of time, of one rank: two lanes, calls and transfers, that wait for each other as the steps say.
#include "src/cp/time.hpp"

namespace froghopper::cp {
namespace {

// H100 and H200 SXM, which attend equally fast to 5 % (README's results). The rates of attention lie between those of
// one H200 at 131072 rows in bf16, heads of 128, causal (bench/results/context_parallel): forward 64 heads, 2.81e14
// FLOP, in 395 ms and 16 heads in 102 ms, 712e12 and 689e12, and in another run 725e12 and 689e12; backward, 2.5 times
// the FLOP, in 1284 and 284 ms, 548e12 and 620e12. A call: launch, fill and tail of a grid, 20 us, assumed. Memory:
// 3.35e12 bytes a second by the data sheet; a copy reads and writes, and 1.3e12 of its bytes a second are assumed.
// Measured on 4 H100 of one host with NCCL 2.28: send and receive in a ring, 256 MiB in 909 us, 295e9 bytes a second,
// and 1 MiB in 105 us, of which 100 us are latency; a call beside such transfers takes 1.52 times as long. Between
// hosts: one NIC of 400 Gbit a GPU, 50e9 bytes a second by the data sheet; a latency of 150 us is assumed.
constexpr Rates h100 = {705e12, 585e12, 20e-6, 1.3e12, 100e-6, 295e9, 150e-6, 50e9, 1.52};

// The same with copies of the driver, which are within a host. Measured there: a pull from a peer's memory, 1 MiB in 18
// us and 256 MiB in 724 us, 378e9 bytes a second behind 15 us; a call beside four of them takes 1.03 times as long.
constexpr Rates h100_copies = {705e12, 585e12, 20e-6, 1.3e12, 15e-6, 378e9, 150e-6, 50e9, 1.03};

// A CPU. The orders of magnitude of one socket, not measured: they rank schemes, and the times are no prediction.
constexpr Rates cpu = {1e12, 0.7e12, 20e-6, 2e10, 20e-6, 1e10, 50e-6, 1e9, 1.0};

// Documents that are divided make many transfers of a group. Up to 16 with a peer are in its latency, and of the others
// each starts 3 us after the one before. Both are assumed.
constexpr size_t transfers_in_latency = 16;
constexpr double transfer_start = 3e-6;

double start_seconds(const Job& job, const std::vector<Transfer>& transfers) {
  if (transfers.size() <= transfers_in_latency) return 0;
  const bool one_peer = transfers.front().peer == transfers.back().peer;
  const size_t first = transfers_in_latency * (one_peer ? 1 : static_cast<size_t>(job.ranks - 1));
  return static_cast<double>(std::max(transfers.size(), first) - first) * transfer_start;
}

double transfer_seconds(const Job& job, const Exchange& group, int64_t rank, const Rates& rates) {
  double near = 0, far = 0, near_out = 0, far_out = 0;
  const auto add = [&](const std::vector<Transfer>& transfers, double& inside, double& outside) {
    for (const Transfer& t : transfers)
      (t.peer / job.ranks_per_host == rank / job.ranks_per_host ? inside : outside) += static_cast<double>(t.bytes);
  };
  add(group.recvs, near, far);
  add(group.sends, near_out, far_out);
  near = std::max(near, near_out), far = std::max(far, far_out);
  if (near + far == 0) return 0;
  const double starts = std::max(start_seconds(job, group.recvs), start_seconds(job, group.sends));
  return starts + std::max(near > 0 ? rates.latency + near / rates.bandwidth : 0,
                           far > 0 ? rates.far_latency + far / rates.far_bandwidth : 0);
}

struct Alone {
  const Job& job;
  const Steps& steps;
  int64_t rank;
  const Rates& rates;
  double moved(int64_t bytes) const { return static_cast<double>(bytes) / rates.memory; }
  double operator()(const Exchange& group) const { return transfer_seconds(job, group, rank, rates); }
  double operator()(const Wait&) const { return 0; }
  double operator()(const Fill& s) const { return moved(s.words * 4) / 2; }
  double operator()(const Copy& s) const { return moved(s.bytes * s.rows); }
  double operator()(const Add& s) const { return moved(s.count * 6); }
  double operator()(const Convert& s) const { return moved(s.count * 3); }
  double operator()(const Spread& s) const { return moved(s.rows * s.columns * 4) / 2; }
  double operator()(const Attend& s) const {
    const fh_problem& p = steps.problems[s.problem];
    const bool backward = p.op == FH_BACKWARD;
    const double flops = flops_of(p, s.pairs);
    // With accumulate a call reads and writes o, or dq, in f32.
    const double rows = static_cast<double>(s.rows);
    const double merged =
        p.accumulate ? rows * static_cast<double>(p.heads_q) * static_cast<double>(backward ? p.dim_qk : p.dim_v) * 4
                     : 0;
    return rates.call + flops / (backward ? rates.backward_flops : rates.forward_flops) + merged / rates.memory;
  }
};

}  // namespace

const Rates& rates_of(const Job& job, bool on_gpu) {
  if (!on_gpu) return cpu;
  return job.peer_copies ? h100_copies : h100;
}

// 2 FLOP a product and column: q k^T and P V forward; of the backward pass q k^T, dP, dV, dK and dQ.
double flops_of(const fh_problem& p, double pairs) {
  const double heads = static_cast<double>(p.varlen ? 1 : p.batch) * static_cast<double>(p.heads_q) * pairs;
  const double qk = static_cast<double>(p.dim_qk), v = static_cast<double>(p.dim_v);
  return 2 * heads * (p.op == FH_BACKWARD ? 3 * qk + 2 * v : qk + v);
}

double seconds_alone(const Job& job, const Steps& steps, const Step& step, int64_t rank, bool on_gpu) {
  return std::visit(Alone{job, steps, rank, rates_of(job, on_gpu)}, step);
}

double seconds_of(const Job& job, const Steps& steps, int64_t rank, bool on_gpu) {
  const Rates& rates = rates_of(job, on_gpu);
  const Alone alone{job, steps, rank, rates};
  double now = 0, lane_free = 0;  // of the calls, and when the lane of transfers has done all that was started
  std::vector<double> done;
  size_t waited = 0;
  for (const Step& step : steps.steps) {
    if (const auto* group = std::get_if<Exchange>(&step)) {
      const double seconds = alone(*group);
      if (seconds > 0) lane_free = std::max(lane_free, now) + seconds;
      done.push_back(seconds > 0 ? lane_free : now);
    } else if (std::holds_alternative<Wait>(step)) {
      now = std::max(now, done[waited++]);
    } else {
      // While bytes move, work goes on at a part of its speed.
      const double seconds = std::visit(alone, step), beside = std::max(0.0, lane_free - now);
      now +=
          seconds * rates.slowdown <= beside ? seconds * rates.slowdown : beside + seconds - beside / rates.slowdown;
    }
  }
  return std::max(now, lane_free);
}

}  // namespace froghopper::cp
