// SPDX-License-Identifier: Apache-2.0
// cp: the ring. In step t a rank attends to what it sees of the rows of rank - t, while those of rank - t - 1 arrive.
// They come from their owner itself, who sends what this rank sees and no more. Gradients of k and v go straight home,
// where the owner adds those of rank, rank + 1, rank + 2 and so on to its own.
#include "src/cp/builder.hpp"

namespace froghopper::cp {
namespace {

class Ring {
 public:
  Ring(const Job& job, int64_t rank) : b_(job, rank) {}
  Steps steps();

 private:
  int64_t peer(int64_t step) const { return (b_.rank + step + b_.job.ranks) % b_.job.ranks; }
  std::vector<Range> seen_of(int64_t owner) const;   // what this rank sees of the owner's rows
  std::vector<Range> seen_by(int64_t reader) const;  // what the reader sees of this rank's rows
  void make_slots();
  void fetch(int64_t step);
  void attend_local();
  void attend_step(int64_t step);
  void send_gradients(int64_t step);
  void add_gradients(int64_t step);

  Builder b_;
  KeyPlaces arrived_[2], partial_[2], from_peer_[2], home_;
};

std::vector<Range> Ring::seen_of(int64_t owner) const { return needed(b_.whole, b_.shard, ranges_of(b_.job, owner)); }
std::vector<Range> Ring::seen_by(int64_t reader) const {
  return needed(b_.whole, ranges_of(b_.job, reader), b_.shard);
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
    b_.convert(Buffer::grad_k, home_.k, b_.batch * b_.rows * b_.heads_kv * b_.dim_qk);
    b_.convert(Buffer::grad_v, home_.v, b_.batch * b_.rows * b_.heads_kv * b_.dim_v);
  }
  b_.end();
  return std::move(b_.made);
}

// Two of each, used in turns. They hold the most that any step brings.
void Ring::make_slots() {
  int64_t most_seen = 0, most_read = 0;
  for (int64_t step = 1; step < b_.job.ranks; ++step) {
    most_seen = std::max(most_seen, rows_of(seen_of(peer(-step))));
    most_read = std::max(most_read, rows_of(seen_by(peer(step))));
  }
  for (int slot = 0; slot < 2; ++slot) {
    arrived_[slot] = b_.keys(most_seen, b_.element);
    if (b_.job.backward()) partial_[slot] = b_.keys(most_seen, 4), from_peer_[slot] = b_.keys(most_read, 4);
  }
  if (!b_.job.backward()) return;
  const int64_t k_words = b_.batch * b_.rows * b_.heads_kv * b_.dim_qk;
  const int64_t v_words = b_.batch * b_.rows * b_.heads_kv * b_.dim_v;
  home_ = {b_.target(Buffer::grad_k, k_words), b_.target(Buffer::grad_v, v_words), b_.rows};
  b_.add(Fill{home_.k, 0, k_words});
  b_.add(Fill{home_.v, 0, v_words});
}

void Ring::fetch(int64_t step) {
  Exchange group{"k, v", {}, {}};
  const std::vector<Range> seen = seen_of(peer(-step));
  const KeyPlaces& slot = arrived_[step % 2];
  for (const Range& range : seen) {
    b_.move(group.recvs, peer(-step), slot.k, seen, range, b_.k_row(b_.element));
    b_.move(group.recvs, peer(-step), slot.v, seen, range, b_.v_row(b_.element));
  }
  for (const Range& range : seen_by(peer(step))) {
    b_.move(group.sends, peer(step), {Buffer::k, 0}, b_.shard, range, b_.k_row(b_.element));
    b_.move(group.sends, peer(step), {Buffer::v, 0}, b_.shard, range, b_.v_row(b_.element));
  }
  b_.exchange(std::move(group));
}

void Ring::attend_local() {
  const KeyPlaces own{{Buffer::k, 0}, {Buffer::v, 0}, b_.rows};
  const Block block(b_.shard);
  for (const Piece& piece : pieces_of(b_.whole, b_.shard, block.parts)) b_.attend(piece, own, home_, block.parts);
}

void Ring::attend_step(int64_t step) {
  const Block block(seen_of(peer(-step)));
  KeyPlaces keys = arrived_[step % 2], grads = partial_[step % 2];
  keys.rows = grads.rows = block.rows;
  if (b_.job.backward()) {
    b_.add(Fill{grads.k, 0, b_.batch * block.rows * b_.heads_kv * b_.dim_qk});
    b_.add(Fill{grads.v, 0, b_.batch * block.rows * b_.heads_kv * b_.dim_v});
  }
  for (const Piece& piece : pieces_of(b_.whole, b_.shard, block.parts)) b_.attend(piece, keys, grads, block.parts);
}

void Ring::send_gradients(int64_t step) {
  Exchange group{"dk, dv", {}, {}};
  const std::vector<Range> seen = seen_of(peer(-step)), read = seen_by(peer(step));
  for (const Range& range : seen) {
    b_.move(group.sends, peer(-step), partial_[step % 2].k, seen, range, b_.k_row(4));
    b_.move(group.sends, peer(-step), partial_[step % 2].v, seen, range, b_.v_row(4));
  }
  for (const Range& range : read) {
    b_.move(group.recvs, peer(step), from_peer_[step % 2].k, read, range, b_.k_row(4));
    b_.move(group.recvs, peer(step), from_peer_[step % 2].v, read, range, b_.v_row(4));
  }
  b_.exchange(std::move(group));
}

void Ring::add_gradients(int64_t step) {
  b_.add(Wait{});
  const std::vector<Range> read = seen_by(peer(step));
  const KeyPlaces& from = from_peer_[step % 2];
  b_.add_rows(home_, b_.shard, from, read);
}

}  // namespace

Steps ring_steps(const Job& job, int64_t rank) { return Ring(job, rank).steps(); }

}  // namespace froghopper::cp
