// SPDX-License-Identifier: Apache-2.0
// What a step of the engine computes: rows of some sequences, lying end to end. The scheduler fills it, the model and
// attention read it.
#pragma once
#include <cstdint>
#include <vector>

namespace serve {

// What is made room for, once. Plans of attention are made for these bounds, so that a step never makes one.
struct Limits {
  int64_t pages = 64;     // of the pool
  int64_t sequences = 8;  // that run at the same time
  int64_t rows = 64;      // that a step computes, of all sequences together
  int64_t context = 256;  // tokens of a sequence, prompt and answer
};

struct Batch {
  // One of each a row: the token, its place in its sequence, and the row of the pool that gets its k and v.
  std::vector<int32_t> tokens, positions, slots;
  // One of each a sequence: where its rows of the step end; how many of its rows the pool has then; its pages.
  std::vector<int32_t> ends, lengths;
  std::vector<std::vector<int32_t>> pages;
  // Rows whose logits are wanted: each is the last of a sequence that has no more tokens to read.
  std::vector<int64_t> sampled;

  int64_t rows() const { return static_cast<int64_t>(tokens.size()); }
  int64_t sequences() const { return static_cast<int64_t>(ends.size()); }
  bool only_decodes() const { return rows() == sequences(); }  // the scheduler gives every sequence a row at least
};

}  // namespace serve
