// SPDX-License-Identifier: Apache-2.0
// cpu: a forward problem cut into work items, numbered in the order in which threads take them.
//
// A work item is a run of lanes (see work.hpp) of one key head of one sequence, or of several heads side by side, and
// all the keys that its lanes attend to, or a part of them. The lanes of a key head are its query rows, and within a
// row the query heads that share the key head.
//
// Keys are cut into parts where there are few lanes: else one sequence with one key head would occupy one thread. How
// many parts there are follows from the problem and its lengths, never from the number of threads, so bits do not
// either. A family is the work items of the same lanes, one for each part.
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
  int64_t head_kv, heads;  // the first of so many key heads
  int64_t first, count;    // lanes of each head
  int64_t part = 0, parts = 1;
  Visible keys = every_key;  // of the part
  int64_t family = 0;        // of those in parts
  int64_t memory = 0;        // floats before those of the family
  int64_t floats = 0;        // of a part
};

class WorkItems {
 public:
  WorkItems(const Plan&, const Views&);

  int64_t count() const { return count_; }
  WorkItem item(int64_t number) const;
  int64_t group() const { return group_; }  // query heads of a key head
  int64_t heads() const { return heads_; }  // of a work item, at most
  int64_t families() const { return families_; }
  int64_t floats() const { return floats_; }  // of all parts

 private:
  // Sequences with lengths of their own are in a list; others are all alike and need none.
  struct Place {
    int64_t sequence;
    int64_t items_before;  // of the places before it; before they are known, how much work the sequence is
  };
  struct InParts {  // a sequence
    int64_t first_item, first_family, memory;
  };

  void list();
  double keys_of_all() const;
  Visible keys_of(const Sequence&) const;
  int64_t lanes_of_head(const Sequence& s) const { return s.extent_q * group_; }
  int64_t fair_keys() const;
  int64_t keys_of_part(const Sequence&) const;
  int64_t parts_of(const Sequence&) const;
  int64_t floats_of_part(const Sequence&) const;
  int64_t items_of_head(const Sequence&) const;  // of each part
  int64_t heads_of_item(const Sequence&) const;
  int64_t families_of(const Sequence&) const;
  void append(const Sequence&);

  const Problem& p_;
  const Views& views_;
  const int64_t group_;
  const int64_t block_lanes_;
  int64_t item_lanes_;
  int64_t heads_ = 1;
  double head_keys_ = 0;   // keys x key heads of a work item that has several heads
  int64_t fair_keys_ = 0;  // of a part
  int64_t count_ = 0;
  std::vector<Place> list_;
  std::vector<InParts> in_parts_;
  int64_t families_ = 0, floats_ = 0;
};

}  // namespace froghopper::cpu
