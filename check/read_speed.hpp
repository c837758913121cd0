// SPDX-License-Identifier: Apache-2.0
// check: how fast this GPU's memory is read: what `froghopper bench` compares with, measured in the same run.
#pragma once
#include <string>

#include "check/backends.hpp"
#include "src/plan/plan.hpp"

namespace froghopper::check {

// A launch that reads much more than it writes, and much more than L2 holds.
struct Reader {
  Case of;           // a problem
  Plan plan;         // of it, with only this launch
  double bytes = 0;  // that it moves
};
Result<std::vector<Reader>> readers(const Device&);

struct ReadSpeed {
  double gbps = 0;
  std::string kernel;  // "delta.bf16.dv128"
};
// Of the fastest reader on the current GPU, measured once a process.
const Result<ReadSpeed>& read_speed();

}  // namespace froghopper::check
