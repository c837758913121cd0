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
// and 1 MiB in 105 us, of which 100 us are latency; a call that overlaps with such transfers takes 1.52 times as long.
// Between hosts: one NIC of 400 Gbit a GPU, 50e9 bytes a second by the data sheet; a latency of 150 us is assumed.
constexpr Rates h100 = {705e12, 585e12, 20e-6, 1.3e12, 100e-6, 295e9, 295e9, 150e-6, 50e9, 1.52};

// The same with copies of the driver, which are within a host. Measured there: a pull from a peer's memory, 1 MiB in 18
// us and 256 MiB in 724 us, 378e9 bytes a second behind 15 us; a call that overlaps with four of them takes 1.03 times
// as long.
constexpr Rates h100_copies = {705e12, 585e12, 20e-6, 1.3e12, 15e-6, 378e9, 378e9, 150e-6, 50e9, 1.03};

// A CPU. The orders of magnitude of one socket, not measured: they rank schemes, and the times are no prediction.
constexpr Rates cpu = {1e12, 0.7e12, 20e-6, 2e10, 20e-6, 1e10, 1e10, 50e-6, 1e9, 1.0};

// Bytes that go one way in a group of transfers.
struct Moved {
  double near = 0, far = 0;
  int64_t peers = 0;  // of this host, each counted where its transfers begin
};

Moved moved(const Job& job, const std::vector<Transfer>& transfers, int64_t rank) {
  Moved m;
  int64_t last = -1;
  for (const Transfer& t : transfers) {
    const bool near = t.peer / job.ranks_per_host == rank / job.ranks_per_host;
    (near ? m.near : m.far) += static_cast<double>(t.bytes);
    m.peers += near && t.peer != last;
    last = t.peer;
  }
  return m;
}

// Documents that are divided make many transfers of a group. Up to 16 with a peer are in its latency, and of the others
// each starts 3 us after the one before. Both are assumed.
constexpr int64_t transfers_in_latency = 16;
constexpr double transfer_start = 3e-6;

int64_t peers_of(const std::vector<Transfer>& transfers) {
  std::vector<int64_t> peers;
  for (const Transfer& t : transfers) peers.push_back(t.peer);
  std::sort(peers.begin(), peers.end());
  return std::unique(peers.begin(), peers.end()) - peers.begin();
}

double start_seconds(const std::vector<Transfer>& transfers) {
  const auto count = static_cast<int64_t>(transfers.size());
  if (count <= transfers_in_latency) return 0;
  return static_cast<double>(std::max<int64_t>(0, count - transfers_in_latency * peers_of(transfers))) *
         transfer_start;
}

double transfer_seconds(const Job& job, const Exchange& group, int64_t rank, const Rates& rates) {
  const Moved in = moved(job, group.recvs, rank), out = moved(job, group.sends, rank);
  const double near = std::max(in.near, out.near), far = std::max(in.far, out.far);
  if (near + far == 0) return 0;
  const double starts = std::max(start_seconds(group.recvs), start_seconds(group.sends));
  const double bandwidth = std::max(in.peers, out.peers) > 1 ? rates.gather_bandwidth : rates.bandwidth;
  return starts + std::max(near > 0 ? rates.latency + near / bandwidth : 0,
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
    // With accumulate a call reads and writes o, or dq, in f32; of phases only the first and the last one move dq.
    const double rows = static_cast<double>(s.rows);
    const bool is_phase = p.phase != FH_PHASE_NONE;
    const bool merges = backward && is_phase ? p.phase != FH_PHASE_MIDDLE : p.accumulate || s.o_sum.batch_rows > 0;
    const double merged =
        merges ? rows * static_cast<double>(p.heads_q) * static_cast<double>(backward ? p.dim_qk : p.dim_v) * 4 : 0;
    // A launch before it gives 8-bit k and v the type of q.
    const double keys = static_cast<double>(p.varlen ? p.total_kv : p.batch * p.seq_kv);
    const double dequantised =
        job.kv_has_8_bits() ? keys * static_cast<double>(p.heads_kv * (p.dim_qk + p.dim_v) * (1 + job.element())) : 0;
    return rates.call + flops / (backward ? rates.backward_flops : rates.forward_flops) +
           (merged + dequantised) / rates.memory;
  }
};

}  // namespace

Rates rates_of(const Job& job, bool on_gpu) {
  Rates r = !on_gpu ? cpu : job.peer_copies ? h100_copies : h100;
  const fh_cp_topology& t = job.topology;
  const auto take = [](double& own, double measured) {
    if (measured > 0) own = measured;
  };
  const double bandwidth = job.peer_copies ? t.copy_bandwidth : t.bandwidth;
  take(r.forward_flops, t.forward_flops), take(r.backward_flops, t.backward_flops);
  take(r.call, t.call), take(r.memory, t.memory);
  take(r.latency, job.peer_copies ? t.copy_latency : t.latency);
  take(r.bandwidth, bandwidth), take(r.gather_bandwidth, bandwidth);
  take(r.gather_bandwidth, job.peer_copies ? t.copy_gather_bandwidth : t.gather_bandwidth);
  take(r.slowdown, job.peer_copies ? t.copy_slowdown : t.slowdown);
  take(r.far_latency, t.far_latency), take(r.far_bandwidth, t.far_bandwidth);
  return r;
}

// 2 FLOP a product and column: q k^T and P V forward; of the backward pass q k^T, dP, dV, dK and dQ.
double flops_of(const fh_problem& p, double pairs) {
  const double heads = static_cast<double>(p.varlen ? 1 : p.batch) * static_cast<double>(p.heads_q) * pairs;
  const double qk = static_cast<double>(p.dim_qk), v = static_cast<double>(p.dim_v);
  return 2 * heads * (p.op == FH_BACKWARD ? 3 * qk + 2 * v : qk + v);
}

double seconds_alone(const Job& job, const Steps& steps, const Step& step, int64_t rank, bool on_gpu) {
  const Rates rates = rates_of(job, on_gpu);
  return std::visit(Alone{job, steps, rank, rates}, step);
}

double seconds_of(const Job& job, const Steps& steps, int64_t rank, bool on_gpu) {
  const Rates rates = rates_of(job, on_gpu);
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
      const double seconds = std::visit(alone, step), overlap = std::max(0.0, lane_free - now);
      now += seconds * rates.slowdown <= overlap ? seconds * rates.slowdown
                                                 : overlap + seconds - overlap / rates.slowdown;
    }
  }
  return std::max(now, lane_free);
}

}  // namespace froghopper::cp
