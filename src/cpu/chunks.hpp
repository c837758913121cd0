// SPDX-License-Identifier: Apache-2.0
// cpu: a backward problem cut into chunks of keys (see gradient_work.hpp), numbered in the order in which threads take
// them.
//
// A pair is one key head of one sequence. While its chunks are computed it has a slot, memory for grad_q of its rows
// as floats, twice where chunks are smaller than spans. There are fewer slots than pairs: pair n has slot n % slots,
// in wave n / slots, and the pairs of a wave are computed side by side: chunk 0 of each of them, then chunk 1 of
// each, so that threads seldom wait for each other.
#pragma once
#include <vector>

#include "src/cpu/cpu.hpp"
#include "src/cpu/sequences.hpp"

namespace froghopper::cpu {

struct ChunkId {
  int64_t index;  // of the sequence, see sequence_of
  Sequence sequence;
  int64_t head_kv;
  int64_t chunk, chunks;  // of the pair
  int64_t slot, wave;
  int64_t chunks_before;  // of the pair that had the slot before; 0: none
};

class Chunks {
 public:
  Chunks(const Plan&, const Views&);

  int64_t count() const { return count_; }
  int64_t slots() const { return slots_; }
  int64_t chunks_max() const { return chunks_max_; }  // of a pair
  int64_t tiles_max() const { return tiles_max_; }    // of query rows, of a sequence whose rows attend to keys
  int64_t chunks_of_span() const { return chunks_of_span_; }           // see gradient_work.hpp
  int64_t sums_of_row() const { return chunks_of_span_ > 1 ? 2 : 1; }  // of all keys, of those of a span
  bool find(int64_t number, ChunkId&) const;                           // false: nothing to do at this number

 private:
  struct Wave {
    int64_t first_pair, pairs, chunks, number;  // chunks: the most of a pair; number: of its first chunk
  };
  int64_t sequences() const { return p_.batch + p_.varlen; }
  int64_t sequence_at(int64_t place) const { return order_.empty() ? place : order_[place]; }
  int64_t chunks_of(const Sequence&) const;
  Wave wave(int64_t) const;
  void sort();

  const Problem& p_;
  const Views& views_;
  int64_t chunk_keys_, slots_ = 0, count_ = 0, chunks_max_ = 0, tiles_max_ = 0, chunks_of_span_ = 1;
  std::vector<int64_t> order_;  // of packed sequences: those with most chunks first
  std::vector<int64_t> first_;  // packed: the number of the first chunk of each wave
};

}  // namespace froghopper::cpu
