// SPDX-License-Identifier: Apache-2.0
// cp: the model of time. How long a list of steps takes, with transfers that overlap with the attention.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "src/cp/job.hpp"
#include "src/cp/steps.hpp"

namespace froghopper::cp {

// Seconds or rates. Which figures were measured and which follow from data sheets: time.cpp.
struct Rates {
  double forward_flops, backward_flops;  // a second, in one call
  double call;                           // seconds a call costs in addition to its FLOP
  double memory;                         // bytes a second of copies, fills and sums
  double latency, bandwidth;             // of a group of transfers within a host: seconds, bytes a second into a rank
  double gather_bandwidth;               // from several peers of the host at once
  double far_latency, far_bandwidth;     // between hosts
  double slowdown;                       // of a call while bytes move
};
Rates rates_of(const Job& job, bool on_gpu);

Result<fh_cp_topology> parsed_topology(const std::string& text);
// The caller's struct in this library's size; refused where it was not initialised.
Result<fh_cp_topology> whole_topology(const fh_cp_topology& given);

// Reads the topology that the problem gives, or the file of the environment, into the job.
Result<void> take_topology(const fh_cp_problem& problem, Job& job);

// Its figures by their names.
std::vector<std::pair<const char*, double>> figures_of(const fh_cp_topology& topology);

// What a plan's text says of a topology; empty where there is none.
std::string topology_line(const Job& job, bool on_gpu);

double flops_of(const fh_problem& problem, double pairs);
double seconds_of(const Job& job, const Steps& steps, int64_t rank, bool on_gpu);

// Seconds of each step alone, without what overlaps with it: for printing.
double seconds_alone(const Job& job, const Steps& steps, const Step& step, int64_t rank, bool on_gpu);

}  // namespace froghopper::cp
