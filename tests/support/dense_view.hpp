// SPDX-License-Identifier: Apache-2.0
// tests: a view without gaps, [batch, seq, heads, dim] of bf16, at an address without memory.
#pragma once
#include "src/problem/tensors.hpp"

namespace froghopper::test {

inline View view(int64_t batch, int64_t seq, int64_t heads, int64_t dim) {
  return {.data = reinterpret_cast<void*>(0x10000),
          .element = Element::bf16,
          .batch = batch,
          .seq = seq,
          .heads = heads,
          .dim = dim,
          .stride_batch = batch > 1 ? seq * heads * dim : 0,
          .stride_seq = seq > 1 ? heads * dim : 0,
          .stride_head = heads > 1 ? dim : 0};
}

}  // namespace froghopper::test
