// SPDX-License-Identifier: Apache-2.0
// cp: all-to-all over heads (Ulysses), among all ranks or among the neighbours of a group. Rank p of a group gets all
// rows of the group for the p-th part of the query heads and of the key heads that go with them. It computes as on one
// rank, or with the ranks at its place of other groups, and sends every row home. Where there are fewer key heads than
// ranks, several ranks have the same one, and a row's owner adds their gradients in the order of ranks.
#include "src/cp/builder.hpp"
#include "src/cp/embed.hpp"
#include "src/cp/grid.hpp"

namespace froghopper::cp {
namespace {

// A tensor [batch, rows, heads, dim] of which every rank computes some heads.
struct Headed {
  Buffer buffer;
  int64_t heads, part, dim, element_bytes;                          // of all ranks, of one; bytes of an element
  int64_t line() const { return part * dim * element_bytes; }       // bytes of a row's part
  int64_t all_line() const { return heads * dim * element_bytes; }  // of a whole row
};

class AllToAll {
 public:
  AllToAll(const Job& job, fh_cp_scheme scheme, int64_t rank)
      : b_(job, rank),
        parts_(heads_parts(job, scheme)),
        place_(rank % parts_),
        part_q_(job.whole.heads_q / parts_),
        part_kv_(std::max<int64_t>(1, job.whole.heads_kv / parts_)),
        shared_(job.whole.heads_kv % parts_ != 0),
        between_(job_between_groups(job, parts_)),
        scheme_(scheme_between_groups(scheme)),
        group_(ranges_of(between_, rank / parts_)),
        all_(rows_of(group_)) {}
  Steps steps();

 private:
  Place scatter(const Headed& t, Exchange& group);
  Place scatter_lines(Buffer buffer, Buffer only_with, Exchange& group, std::vector<Step>& after);
  void gather(const Headed& t, Place from, Exchange& group, std::vector<Step>& after);
  void gather_lse(Place from, Exchange& group, std::vector<Step>& after);
  void gather_shared(const Headed& t, Place from, Exchange& group, std::vector<Step>& after);
  void attend();
  void forward();
  void backward();
  int64_t peer_place(int64_t step) const { return (place_ + step + parts_) % parts_; }
  int64_t peer(int64_t step) const { return b_.rank - place_ + peer_place(step); }
  // The head that the part of a rank begins with.
  int64_t head(const Headed& t, int64_t place) const { return t.heads * place / parts_; }
  std::vector<Range> shard(int64_t rank) const { return ranges_of(b_.job, rank); }
  int64_t row_in_group(const Range& range) const { return row_in(group_, range.begin); }
  void add_all(std::vector<Step>& steps) {
    for (Step& step : steps) b_.add(std::move(step));
  }
  Place& heads_of(Buffer buffer) { return heads_[static_cast<size_t>(buffer)]; }
  Headed q(Buffer buffer, int64_t element_bytes) const {
    return {buffer, b_.heads_q, part_q_, b_.dim_qk, element_bytes};
  }
  Headed o(Buffer buffer, int64_t element_bytes) const {
    return {buffer, b_.heads_q, part_q_, b_.dim_v, element_bytes};
  }
  Headed k(Buffer buffer, int64_t element_bytes) const {
    return {buffer, b_.heads_kv, part_kv_, b_.dim_qk, element_bytes};
  }
  Headed v(Buffer buffer, int64_t element_bytes) const {
    return {buffer, b_.heads_kv, part_kv_, b_.dim_v, element_bytes};
  }

  Builder b_;
  const int64_t parts_, place_, part_q_, part_kv_;
  const bool shared_;
  const Job between_;  // what is computed of this rank's heads, and with which scheme
  const fh_cp_scheme scheme_;
  const std::vector<Range> group_;  // the rows of the group, of which there are all_
  const int64_t all_;
  std::array<Place, buffer_count> heads_{};  // where this rank's heads of a tensor are
};

Steps AllToAll::steps() {
  Exchange group{"heads of q, k, v", {}, {}};
  std::vector<Step> after;
  const int64_t e = b_.element, of_kv = b_.kv_element;
  for (const Headed& t : {q(Buffer::q, e), k(Buffer::k, of_kv), v(Buffer::v, of_kv)})
    heads_of(t.buffer) = scatter(t, group);
  if (b_.job.backward()) {
    for (const Headed& t : {o(Buffer::o, e), o(Buffer::grad_o, e)}) heads_of(t.buffer) = scatter(t, group);
    heads_of(Buffer::lse) = scatter_lines(Buffer::lse, Buffer::none, group, after);
    heads_of(Buffer::grad_lse) = scatter_lines(Buffer::grad_lse, Buffer::grad_lse, group, after);
  }
  b_.exchange(std::move(group));
  b_.add(Wait{});
  add_all(after);
  if (b_.job.backward())
    backward();
  else
    forward();
  return std::move(b_.made);
}

// This rank's rows go out by heads, all ranks' rows come in, each to its place among the group's.
Place AllToAll::scatter(const Headed& t, Exchange& group) {
  const Place whole = b_.workspace(b_.batch * all_ * t.line());
  for (int64_t step = 0; step < parts_; ++step) {
    const int64_t to = peer(step), from = peer(-step);
    const Place columns{t.buffer, head(t, peer_place(step)) * t.dim * t.element_bytes};
    if (step == 0) {
      for (const Range& range : b_.shard)
        for (int64_t b = 0; b < b_.batch; ++b)
          b_.add(Copy{whole + (b * all_ + row_in_group(range)) * t.line(), t.line(),
                      columns + (b * b_.rows + row_in(b_.shard, range.begin)) * t.all_line(), t.all_line(), t.line(),
                      range.rows()});
      continue;
    }
    const Place packed = b_.workspace(b_.batch * b_.rows * t.line());
    b_.add(Copy{packed, t.line(), columns, t.all_line(), t.line(), b_.batch * b_.rows});
    for (const Range& range : b_.shard) b_.move(group.sends, to, packed, b_.shard, range, t.line());
    for (const Range& range : shard(from)) b_.move(group.recvs, from, whole, group_, range, t.line());
  }
  return whole;
}

// lse or its gradient, [batch, heads_q, rows]: a sequence's heads of one rank lie together. To [batch, part, all rows].
Place AllToAll::scatter_lines(Buffer buffer, Buffer only_with, Exchange& group, std::vector<Step>& after) {
  const Place whole = b_.workspace(b_.batch * part_q_ * all_ * 4);
  for (int64_t step = 0; step < parts_; ++step) {
    const int64_t to = peer(step), from = peer(-step);
    const std::vector<Range> ranges = shard(from);
    const int64_t rows = rows_of(ranges), bytes = part_q_ * b_.rows * 4;
    const Place arrived = b_.workspace(b_.batch * part_q_ * rows * 4);
    for (int64_t b = 0; b < b_.batch; ++b) {
      const Place heads{buffer, (b * b_.heads_q + peer_place(step) * part_q_) * b_.rows * 4};
      if (step == 0) {
        after.push_back(Copy{arrived + b * bytes, bytes, heads, bytes, bytes, 1, only_with});
        continue;
      }
      if (bytes > 0) group.sends.push_back({to, heads, bytes, only_with});
      if (rows > 0) group.recvs.push_back({from, arrived + b * part_q_ * rows * 4, part_q_ * rows * 4, only_with});
    }
    for (const Range& range : ranges)
      after.push_back(Copy{whole + row_in_group(range) * 4, all_ * 4, arrived + row_in(ranges, range.begin) * 4,
                           rows * 4, range.rows() * 4, b_.batch * part_q_, only_with});
  }
  return whole;
}

// All rows of this rank's heads go to who holds them, and the other heads of this rank's rows come in.
void AllToAll::gather(const Headed& t, Place from, Exchange& group, std::vector<Step>& after) {
  const bool rounds = t.element_bytes == 4 && b_.job.rounds();
  const int64_t count = b_.batch * b_.rows * t.heads * t.dim;
  const Place home = rounds ? b_.workspace(count * 4) : Place{t.buffer, 0};
  for (int64_t step = 0; step < parts_; ++step) {
    const int64_t to = peer(step), source = peer(-step);
    const Place columns = home + head(t, peer_place(-step)) * t.dim * t.element_bytes;
    if (step == 0) {
      for (const Range& range : b_.shard)
        for (int64_t b = 0; b < b_.batch; ++b)
          after.push_back(Copy{columns + (b * b_.rows + row_in(b_.shard, range.begin)) * t.all_line(), t.all_line(),
                               from + (b * all_ + row_in_group(range)) * t.line(), t.line(), t.line(), range.rows()});
      continue;
    }
    for (const Range& range : shard(to)) b_.move(group.sends, to, from, group_, range, t.line());
    const Place arrived = b_.workspace(b_.batch * b_.rows * t.line());
    for (const Range& range : b_.shard) b_.move(group.recvs, source, arrived, b_.shard, range, t.line());
    after.push_back(Copy{columns, t.all_line(), arrived, t.line(), t.line(), b_.batch * b_.rows});
  }
  if (rounds) after.push_back(Convert{{t.buffer, 0}, home, count});
}

void AllToAll::gather_lse(Place from, Exchange& group, std::vector<Step>& after) {
  const int64_t lines = b_.batch * part_q_;
  const Place home = b_.workspace(b_.batch * b_.heads_q * b_.rows * 4);
  for (int64_t step = 0; step < parts_; ++step) {
    const int64_t to = peer(step), source = peer(-step);
    const std::vector<Range> ranges = shard(to);
    const int64_t rows = rows_of(ranges);
    const Place packed = b_.workspace(lines * rows * 4);
    for (const Range& range : ranges)
      b_.add(Copy{packed + row_in(ranges, range.begin) * 4, rows * 4, from + row_in_group(range) * 4, all_ * 4,
                  range.rows() * 4, lines});
    for (int64_t b = 0; b < b_.batch; ++b) {
      const Place heads = home + (b * b_.heads_q + peer_place(-step) * part_q_) * b_.rows * 4,
                  part = packed + b * part_q_ * rows * 4;
      if (step == 0) {
        after.push_back(Copy{heads, part_q_ * rows * 4, part, part_q_ * rows * 4, part_q_ * rows * 4, 1});
        continue;
      }
      if (rows > 0) group.sends.push_back({to, part, part_q_ * rows * 4});
      if (b_.rows > 0) group.recvs.push_back({source, heads, part_q_ * b_.rows * 4});
    }
  }
  const int64_t bytes = b_.batch * b_.heads_q * b_.rows * 4;
  after.push_back(Copy{{Buffer::lse, 0}, bytes, home, bytes, bytes, 1, Buffer::lse});
}

// dK or dV in f32 of a key head that several ranks share.
void AllToAll::gather_shared(const Headed& t, Place from, Exchange& group, std::vector<Step>& after) {
  const int64_t count = b_.batch * b_.rows * t.dim, sharers = parts_ / t.heads;
  std::vector<Place> arrived(static_cast<size_t>(parts_));
  for (int64_t step = 0; step < parts_; ++step) {
    const int64_t to = peer(step), source = peer(-step);
    const Place slot = arrived[static_cast<size_t>(peer_place(-step))] = b_.workspace(count * 4);
    if (step == 0) {
      for (const Range& range : b_.shard) b_.copy_rows(slot, b_.shard, from, group_, range, t.line());
      continue;
    }
    for (const Range& range : shard(to)) b_.move(group.sends, to, from, group_, range, t.line());
    for (const Range& range : b_.shard) b_.move(group.recvs, source, slot, b_.shard, range, t.line());
  }
  const Place home = b_.target(t.buffer, count * t.heads);
  for (int64_t h = 0; h < t.heads; ++h) {
    const Place sum = arrived[static_cast<size_t>(h * sharers)];
    for (int64_t i = 1; i < sharers; ++i)
      after.push_back(Add{sum, arrived[static_cast<size_t>(h * sharers + i)], count});
    after.push_back(Copy{home + h * t.line(), t.all_line(), sum, t.line(), t.line(), b_.batch * b_.rows});
  }
  if (b_.job.rounds()) after.push_back(Convert{{t.buffer, 0}, home, count * t.heads});
}

// The job between groups, in this rank's heads of the tensors.
void AllToAll::attend() {
  const int64_t first = place_ * part_q_ * 4;
  for (const Buffer list : {Buffer::sink, Buffer::slopes, Buffer::grad_sink}) heads_of(list) = {list, first};
  const int64_t first_kv = head(k(Buffer::k, b_.kv_element), place_) * 4;
  for (const Buffer list : {Buffer::scale_k, Buffer::scale_v}) heads_of(list) = {list, first_kv};
  embed(b_, steps_of(between_, scheme_, b_.rank / parts_), heads_, {parts_, place_});
}

void AllToAll::forward() {
  const int64_t lines = b_.batch * part_q_, element_bytes = b_.job.out_element();
  heads_of(Buffer::o) = b_.workspace(lines * all_ * b_.dim_v * element_bytes);
  heads_of(Buffer::lse) = b_.workspace(lines * all_ * 4);
  attend();
  Exchange group{"heads of o, lse", {}, {}};
  std::vector<Step> after;
  gather(o(Buffer::o, element_bytes), heads_of(Buffer::o), group, after);
  gather_lse(heads_of(Buffer::lse), group, after);
  b_.exchange(std::move(group));
  b_.add(Wait{});
  add_all(after);
}

void AllToAll::backward() {
  const int64_t element_bytes = between_.out_element();
  const Headed tensors[] = {q(Buffer::grad_q, element_bytes), k(Buffer::grad_k, element_bytes),
                            v(Buffer::grad_v, element_bytes)};
  if (b_.whole.sink) b_.add(Fill{{Buffer::grad_sink, 0}, 0, b_.heads_q});
  for (const Headed& t : tensors) heads_of(t.buffer) = b_.workspace(b_.batch * all_ * t.line());
  attend();
  Exchange group{"heads of dq, dk, dv", {}, {}};
  std::vector<Step> after;
  for (const Headed& t : tensors)
    if (shared_ && t.buffer != Buffer::grad_q)
      gather_shared(t, heads_of(t.buffer), group, after);
    else
      gather(t, heads_of(t.buffer), group, after);
  b_.exchange(std::move(group));
  b_.add(Wait{});
  add_all(after);
}

}  // namespace

Steps all_to_all_steps(const Job& job, fh_cp_scheme scheme, int64_t rank) {
  return AllToAll(job, scheme, rank).steps();
}

Steps steps_of(const Job& job, fh_cp_scheme scheme, int64_t rank) {
  if (job.ranks > 1 && scheme == FH_CP_ALL_GATHER && job.chunks.count > 0) return gather_in_chunks_steps(job, rank);
  if (job.ranks == 1 || scheme == FH_CP_ALL_GATHER) return gather_steps(job, rank);
  return scheme == FH_CP_RING ? ring_steps(job, rank) : all_to_all_steps(job, scheme, rank);
}

}  // namespace froghopper::cp
