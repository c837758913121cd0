// SPDX-License-Identifier: Apache-2.0
// problem: problems that write nothing.
#pragma once
#include <string>

#include "src/problem/problem.hpp"

namespace froghopper {

// Which sizes are the reason that no tensor has an element to write: "batch is 0", "seq_q and seq_kv are 0". "" where
// something is written.
std::string why_nothing(const Problem&);

}  // namespace froghopper
