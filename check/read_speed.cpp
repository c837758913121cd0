// SPDX-License-Identifier: Apache-2.0
// check: the readers. A copy by the driver is none: it also writes, and reaches less. So two kernels of the library
// take part that read all the time, one with plain loads and one with TMA, and the faster one counts.
#include "check/read_speed.hpp"

#include <algorithm>

#include "src/problem/bytes.hpp"
#include "src/runtime/runtime.hpp"

namespace froghopper::check {

namespace {

// The first kernel of a backward pass reads o and grad_o, of which it makes two values a row. Where gradients are
// deterministic it clears no memory. One head of keys keeps the tensors small that it does not read.
constexpr const char* backward_line = "bwd bf16 b8 hq32 hkv1 sq8192 skv8192 d128 det";
// Decoding reads k and v.
constexpr const char* decoding_line = "fwd bf16 b64 hq32 hkv8 sq1 skv8192 d128";

double bytes_of_delta(const Problem& p) {
  constexpr int64_t values_of_row = 3;  // lse is read; lse in base 2 and delta are written
  return static_cast<double>(p.rows_q() * p.heads_q) *
         static_cast<double>(2 * p.dim_v * size_of(p.dtype_o) + values_of_row * int64_t{sizeof(float)});
}

Result<double> gbps_of(const Reader& reader) {
  constexpr int calls = 5, rounds = 5;
  const auto session = GpuSession::open();
  if (!session) return session.failure();
  GpuSession& gpu = **session;
  const auto inputs = make_inputs_to_measure(reader.of, 1);
  const auto copies = upload(gpu, *inputs);
  if (!copies) return copies.failure();
  const auto workspace = gpu.allocate(std::max<size_t>(reader.plan.workspace.bytes, 1));
  if (!workspace) return workspace.failure();
  const auto views = bind(reader.of.problem, copies->tensors);
  if (!views) return views.failure();
  const auto burst = [&]() -> Result<void> {
    for (int i = 0; i < calls; ++i)
      if (auto ran = runtime::launch(reader.plan, *views, *workspace, gpu.stream()); !ran) return ran;
    return {};
  };
  double best = 0;
  for (int round = 0; round <= rounds; ++round) {  // the first one loads the kernel
    const auto ms = gpu.time(burst);
    if (!ms) return ms.failure();
    if (round > 0) best = std::max(best, calls * reader.bytes / *ms / 1e6);
  }
  return best;
}

Result<ReadSpeed> measure() {
  const auto device = runtime::device(-1);
  if (!device) return device.failure();
  const auto all = readers(*device);
  if (!all) return all.failure();
  ReadSpeed fastest;
  for (const Reader& reader : *all) {
    const auto gbps = gbps_of(reader);
    if (!gbps) return gbps.failure();
    if (*gbps > fastest.gbps) fastest = {*gbps, reader.plan.launches.front().kernel.name};
  }
  return fastest;
}

}  // namespace

Result<std::vector<Reader>> readers(const Device& device) {
  std::vector<Reader> all;
  for (const char* const line : {backward_line, decoding_line}) {
    const auto of = parse_case(line);
    if (!of) return of.failure();
    const Problem& p = (*of).problem;
    auto plan = make_gpu_plan(p, device);
    if (!plan) return plan.failure();
    if (p.backward())
      std::erase_if(plan->launches, [](const Launch& l) { return !std::holds_alternative<DeltaStep>(l.step); });
    all.push_back({*of, std::move(*plan), p.backward() ? bytes_of_delta(p) : bytes_moved(p)});
  }
  return all;
}

const Result<ReadSpeed>& read_speed() {
  static const Result<ReadSpeed> measured = measure();
  return measured;
}

}  // namespace froghopper::check
