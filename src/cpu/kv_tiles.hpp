// SPDX-License-Identifier: Apache-2.0
// cpu: divides a backward problem into KV tiles (see gradient_work.hpp), numbered in the order in which threads take
// them.
//
// While the KV tiles of a head, which is one KV head of one sequence, are computed, the head has a slot: memory for
// grad_q of its rows in fp32, twice where KV tiles are smaller than spans. There are fewer slots than heads. Head n has
// slot n % slots, in wave n / slots. The heads of a wave are computed side by side, KV tile 0 of each, then KV tile 1
// of each, so that threads seldom wait for each other.
#pragma once
#include <vector>

#include "src/cpu/cpu.hpp"
#include "src/cpu/sequences.hpp"

namespace froghopper::cpu {

struct KvTileId {
  int64_t index;  // of the sequence, see sequence_of
  Sequence sequence;
  int64_t head_kv;
  int64_t kv_tile, kv_tiles;  // of the head
  int64_t slot, wave;
  int64_t kv_tiles_before;  // of the head that had the slot before; 0: none
};

class KvTiles {
 public:
  KvTiles(const Plan&, const Views&);

  int64_t count() const { return count_; }
  int64_t slots() const { return slots_; }
  int64_t kv_tiles_max() const { return kv_tiles_max_; }                 // of a head
  int64_t q_tiles_max() const { return q_tiles_max_; }                   // of a sequence whose rows attend to keys
  int64_t kv_tiles_of_span() const { return kv_tiles_of_span_; }         // see gradient_work.hpp
  int64_t sums_of_row() const { return kv_tiles_of_span_ > 1 ? 2 : 1; }  // one over all keys, one over a span
  bool find(int64_t number, KvTileId&) const;                            // false: nothing to do at this number

 private:
  struct Wave {
    int64_t first_head, heads, kv_tiles, number;  // kv_tiles: the most of a head; number: of its first KV tile
  };
  int64_t sequences() const { return p_.batch + p_.varlen; }
  int64_t sequence_at(int64_t place) const { return order_.empty() ? place : order_[place]; }
  int64_t kv_tiles_of(const Sequence&) const;
  Wave wave(int64_t) const;
  void sort();

  const Problem& p_;
  const Views& views_;
  int64_t kv_tile_keys_, slots_ = 0, count_ = 0, kv_tiles_max_ = 0, q_tiles_max_ = 0, kv_tiles_of_span_ = 1;
  std::vector<int64_t> order_;  // of packed sequences: those with most KV tiles first
  std::vector<int64_t> first_;  // packed: the number of the first KV tile of each wave
};

}  // namespace froghopper::cpu
