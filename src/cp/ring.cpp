// SPDX-License-Identifier: Apache-2.0
// cp: the ring. In step t a rank attends to the keys of rank - t, while those of rank - t - 1 arrive.
// They come from their owner itself, who sends what this rank attends to and no more. Gradients of k and v go straight
// home, where the owner adds those of rank, rank + 1, rank + 2 and so on to its own.
#include "src/cp/builder.hpp"

namespace froghopper::cp {
namespace {

class Ring {
 public:
  Ring(const Job& job, int64_t rank);
  Steps steps();

 private:
  void make_slots();
  void fetch(int64_t step);
  void attend_local();
  void attend_step(int64_t step);
  void send_gradients(int64_t step);
  void add_gradients(int64_t step);

  Builder b_;
  KeyPlaces arrived_[2], partial_[2], from_peer_[2], home_;
  // Of each step: the rows of the rank whose keys are attended to, which of them this rank needs, and which of
  // its own keys the rank needs that attends to them.
  std::vector<std::vector<Range>> owners_, attended_, read_;
};

Ring::Ring(const Job& job, int64_t rank) : b_(job, rank), owners_(1), attended_(1), read_(1) {
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
  if (b_.job.backward()) {
    if (b_.job.ranks > 1) add_gradients(b_.job.ranks - 1);
    b_.convert_home(home_);
  }
  b_.end();
  return std::move(b_.made);
}

// Two of each, used alternately. They hold the most that any step brings.
void Ring::make_slots() {
  int64_t most_attended = 0, most_read = 0;
  for (int64_t step = 1; step < b_.job.ranks; ++step) {
    most_attended = std::max(most_attended, rows_of(attended_[static_cast<size_t>(step)]));
    most_read = std::max(most_read, rows_of(read_[static_cast<size_t>(step)]));
  }
  for (int slot = 0; slot < 2; ++slot) {
    arrived_[slot] = b_.keys(most_attended, b_.kv_element);
    if (b_.job.backward()) partial_[slot] = b_.keys(most_attended, 4), from_peer_[slot] = b_.keys(most_read, 4);
  }
  if (b_.job.backward()) home_ = b_.home();
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

void Ring::attend_local() { b_.attend(Block(b_.shard), b_.own_keys(), home_); }

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
  b_.add_rows(home_, b_.shard, from_peer_[step % 2], read_[static_cast<size_t>(step)]);
}

}  // namespace

Steps ring_steps(const Job& job, int64_t rank) { return Ring(job, rank).steps(); }

}  // namespace froghopper::cp
