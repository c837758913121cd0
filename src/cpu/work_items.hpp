// SPDX-License-Identifier: Apache-2.0
// cpu: divides a forward problem into work items, numbered in the order in which threads take them.
//
// A work item has a Q tile, which is a run of lanes (see work.hpp) of one KV head of one sequence, or of several KV
// heads side by side, and all the keys that these lanes attend to, or a split of them. The lanes of a KV head are its
// query rows, and within a row the query heads that share the KV head (PackGQA).
//
// Where there are few lanes, keys are split; without that, one sequence with one KV head would occupy one thread. The
// number of splits depends on the problem and its lengths only, so that any number of threads gives the same bits.
#pragma once
#include <limits>
#include <vector>

#include "src/cpu/cpu.hpp"
#include "src/cpu/sequences.hpp"
#include "src/problem/mask.hpp"

namespace froghopper::cpu {

inline constexpr Visible every_key{0, std::numeric_limits<int64_t>::max()};

struct WorkItem {
  Sequence sequence;
  int64_t head_kv, heads;  // the first KV head, and how many
  int64_t first, count;    // lanes of each head
  int64_t split = 0, splits = 1;
  Visible keys = every_key;  // of the split
  int64_t q_tile = 0;        // counted among the Q tiles whose keys are split
  int64_t memory = 0;        // floats before the partial results of the Q tile
  int64_t floats = 0;        // of a partial result
};

class WorkItems {
 public:
  WorkItems(const Plan&, const Views&);

  int64_t count() const { return count_; }
  WorkItem item(int64_t number) const;
  int64_t group() const { return group_; }  // query heads of a KV head
  int64_t heads() const { return heads_; }  // of a work item, at most
  int64_t split_q_tiles() const { return split_q_tiles_; }
  int64_t floats() const { return floats_; }  // of all partial results

 private:
  // Sequences with lengths of their own are in a list; sequences of one length need none.
  struct Place {
    int64_t sequence;
    int64_t items_before;  // of the places before it; until these are known, the work of the sequence
  };
  struct SplitSequence {  // a sequence whose keys are split
    int64_t first_item, first_q_tile, memory;
  };

  void list();
  double keys_of_all() const;
  Visible keys_of(const Sequence&) const;
  int64_t lanes_of_head(const Sequence& s) const { return s.extent_q * group_; }
  int64_t fair_keys() const;
  int64_t keys_of_split(const Sequence&) const;
  int64_t splits_of(const Sequence&) const;
  int64_t floats_of_partial(const Sequence&) const;
  int64_t items_of_head(const Sequence&) const;  // of each split
  int64_t heads_of_item(const Sequence&) const;
  int64_t q_tiles_of(const Sequence&) const;
  void append(const Sequence&);

  const Problem& p_;
  const Views& views_;
  const int64_t group_;
  const int64_t block_lanes_;
  int64_t item_lanes_;
  int64_t heads_ = 1;
  double head_keys_ = 0;   // keys x KV heads of a work item that has several heads
  int64_t fair_keys_ = 0;  // of a split
  int64_t count_ = 0;
  std::vector<Place> list_;
  std::vector<SplitSequence> split_sequences_;
  int64_t split_q_tiles_ = 0, floats_ = 0;
};

}  // namespace froghopper::cpu
