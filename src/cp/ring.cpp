// SPDX-License-Identifier: Apache-2.0
// cp: the ring. In step t a rank attends to the keys of rank - t, while those of rank - t - 1 arrive.
// They come from their owner itself, who sends what this rank attends to and no more. Gradients of k and v go straight
// home, where the owner adds those of rank, rank + 1, rank + 2 and so on to its own. The first half of the rank's rows
// attends to own keys at the end of the backward pass, while the last gradients move.
//
// Under a window most keys of a rank are attended to by its own rows alone. Their gradients are written once, rounded.
#include "src/cp/builder.hpp"
#include "src/cp/ranges.hpp"

namespace froghopper::cp {
namespace {

class Ring {
 public:
  Ring(const Job& job, int64_t rank);
  Steps steps();

 private:
  void make_slots();
  void fetch(int64_t step);
  Range added() const;
  bool holds_back() const { return b_.job.backward() && b_.job.ranks > 1 && b_.parts.size() == 2; }
  void attend_local();
  void attend_own(Range its, const KeyPlaces& grads);
  void attend_step(int64_t step);
  void send_gradients(int64_t step);
  void add_gradients(int64_t step);

  Builder b_;
  KeyPlaces arrived_[2], partial_[2], from_peer_[2], home_;
  Range added_;  // rows of the shard whose gradients of k and v are sums of several calls, and so those of home_
  // Of each step: the rows of the rank whose keys are attended to, which of them this rank needs, and which of
  // its own keys the rank needs that attends to them.
  std::vector<std::vector<Range>> owners_, attended_, read_;
};

// In halves, where one half has work for the end: not under a window, whose transfers are short, nor of documents.
std::vector<Range> division_of(const Job& job, int64_t rank) {
  const std::vector<Range> shard = ranges_of(job, rank);
  if (!job.backward() || job.ranks == 1 || job.packed() || job.whole.window_left != FH_ALL || shard.empty())
    return {};
  return divided(shard, second_half(shard).begin);
}

Ring::Ring(const Job& job, int64_t rank) : b_(job, rank, division_of(job, rank)), owners_(1), attended_(1), read_(1) {
  for (int64_t step = 1; step < job.ranks; ++step) {
    owners_.push_back(ranges_of(job, b_.peer(-step)));
    attended_.push_back(needed(job, b_.shard, owners_.back()));
    read_.push_back(needed(job, ranges_of(job, b_.peer(step)), b_.shard));
  }
}

Steps Ring::steps() {
  b_.begin(true);
  make_slots();
  if (b_.job.ranks > 1) fetch(1);
  attend_local();
  for (int64_t step = 1; step < b_.job.ranks; ++step) {
    if (step + 1 < b_.job.ranks) fetch(step + 1);
    b_.add(Wait{});
    attend_step(step);
    if (!b_.job.backward()) continue;
    send_gradients(step);
    if (step > 1) add_gradients(step - 1);
  }
  if (holds_back()) b_.attend_own_part(0, home_);
  if (b_.job.backward()) {
    if (b_.job.ranks > 1) add_gradients(b_.job.ranks - 1);
    b_.convert_home(home_, added_);
  }
  b_.end();
  return std::move(b_.made);
}

// Two of each, used alternately, or one where there is one step. They hold the most that any step brings.
void Ring::make_slots() {
  int64_t most_attended = 0, most_read = 0;
  for (int64_t step = 1; step < b_.job.ranks; ++step) {
    most_attended = std::max(most_attended, rows_of(attended_[static_cast<size_t>(step)]));
    most_read = std::max(most_read, rows_of(read_[static_cast<size_t>(step)]));
  }
  for (int64_t step = 1; step < std::min<int64_t>(b_.job.ranks, 3); ++step) {
    const int64_t slot = step % 2;
    arrived_[slot] = b_.keys(most_attended, b_.kv_element);
    if (b_.job.backward()) partial_[slot] = b_.keys(most_attended, 4), from_peer_[slot] = b_.keys(most_read, 4);
  }
  if (!b_.job.backward()) return;
  added_ = added();
  home_ = b_.home(added_);
}

// From the first row that another rank attends to until the last one.
Range Ring::added() const {
  if (!b_.may_write_home()) return {0, b_.rows};
  Range hull{b_.rows, 0};
  for (const std::vector<Range>& read : read_)
    for (const Range& range : read)
      hull = {std::min(hull.begin, range.begin - b_.shard.front().begin),
              std::max(hull.end, range.end - b_.shard.front().begin)};
  if (hull.empty()) return {};
  // The mask of keys from key 1 on would end at key -1 of the first row, which is how FH_ALL is written.
  return hull.begin == 1 || hull.end == 1 ? Range{0, b_.rows} : hull;
}

void Ring::fetch(int64_t step) {
  Exchange group{"k, v", {}, {}};
  const int64_t owner = b_.peer(-step), reader = b_.peer(step);
  const std::vector<Range>&attended = attended_[static_cast<size_t>(step)], &read = read_[static_cast<size_t>(step)];
  b_.move_keys(group.recvs, owner, arrived_[step % 2], attended, owners_[static_cast<size_t>(step)], attended,
               b_.kv_element);
  b_.move_keys(group.sends, reader, b_.own_keys(), b_.shard, read, read, b_.kv_element);
  b_.exchange(std::move(group));
}

void Ring::attend_local() {
  if (holds_back()) return b_.attend_own_part(1, home_);
  if (!b_.job.backward() || added_.rows() == b_.rows) return b_.attend(Block(b_.shard), b_.own_keys(), home_);
  const KeyPlaces written{{Buffer::grad_k, 0}, {Buffer::grad_v, 0}, b_.rows, /*rounded=*/true};
  attend_own({0, added_.begin}, written);
  attend_own(added_, home_);
  attend_own({added_.end, b_.rows}, written);
}

// The calls on some of a contiguous rank's own keys. `grads` has all rows of the rank, or only these.
void Ring::attend_own(Range its, const KeyPlaces& grads) {
  if (its.empty()) return;
  const int64_t first = b_.shard.front().begin, before = grads.rows == b_.rows ? 0 : its.begin;
  Block block;
  block.parts.push_back({{first + its.begin, first + its.end}, its.begin});
  KeyPlaces from_first = grads;
  from_first.k.bytes -= before * b_.k_row(4), from_first.v.bytes -= before * b_.v_row(4);
  b_.attend(block, b_.own_keys(), from_first);
}

void Ring::attend_step(int64_t step) {
  const Block block(attended_[static_cast<size_t>(step)]);
  KeyPlaces keys = arrived_[step % 2], grads = partial_[step % 2];
  keys.rows = grads.rows = block.rows;
  if (b_.job.backward()) b_.clear(grads);
  b_.attend(block, keys, grads);
}

void Ring::send_gradients(int64_t step) {
  Exchange group{"dk, dv", {}, {}};
  const int64_t owner = b_.peer(-step), reader = b_.peer(step);
  const std::vector<Range>&attended = attended_[static_cast<size_t>(step)], &read = read_[static_cast<size_t>(step)];
  b_.move_keys(group.sends, owner, partial_[step % 2], attended, attended, attended, 4);
  b_.move_keys(group.recvs, reader, from_peer_[step % 2], read, read, read, 4);
  b_.exchange(std::move(group));
}

void Ring::add_gradients(int64_t step) {
  b_.add(Wait{});
  const int64_t first = b_.shard.empty() ? 0 : b_.shard.front().begin;
  const bool all = added_.rows() == b_.rows;
  b_.add_rows(home_, all ? b_.shard : std::vector<Range>{{first + added_.begin, first + added_.end}},
              from_peer_[step % 2], read_[static_cast<size_t>(step)]);
}

}  // namespace

Steps ring_steps(const Job& job, int64_t rank) { return Ring(job, rank).steps(); }

}  // namespace froghopper::cp
