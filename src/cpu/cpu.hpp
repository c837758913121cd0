// SPDX-License-Identifier: Apache-2.0
// cpu: the default backend. Tiled, vectorised, threaded online softmax in fp32.
#pragma once
#include <string>

#include "src/problem/tensors.hpp"

namespace froghopper::cpu {

Result<void> supports(const Problem&);
Result<void> forward(const Problem&, const Views&);  // at most 4 MB of scratch a thread
std::string line(const Problem&);                    // "cpu avx512bf16 q64.kv128 threads 2": what runs here

}  // namespace froghopper::cpu
