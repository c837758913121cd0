// SPDX-License-Identifier: Apache-2.0
// cp: all-to-all over heads (Ulysses). Rank p gets all rows of the p-th part of the query heads and of the key heads
// that go with them, computes as on one rank, and sends every row home. Where there are fewer key heads than ranks,
// several ranks have the same one, and a row's owner adds their gradients in the order of ranks.
#include "src/cp/builder.hpp"

namespace froghopper::cp {
namespace {

// A tensor [batch, rows, heads, dim] of which every rank computes some heads.
struct Headed {
  Buffer buffer;
  int64_t heads, part, dim, number;                          // of all ranks, of one; bytes of a number
  int64_t line() const { return part * dim * number; }       // bytes of a row's part
  int64_t all_line() const { return heads * dim * number; }  // of a whole row
};

class AllToAll {
 public:
  AllToAll(const Job& job, int64_t rank)
      : b_(job, rank),
        ranks_(job.ranks),
        part_q_(job.whole.heads_q / ranks_),
        part_kv_(std::max<int64_t>(1, job.whole.heads_kv / ranks_)),
        shared_(job.whole.heads_kv % ranks_ != 0),
        everything_({{0, job.rows()}}) {}
  Steps steps();

 private:
  Place scatter(const Headed& t, Exchange& group);
  Place scatter_lines(Buffer buffer, Buffer only_with, Exchange& group, std::vector<Step>& after);
  void gather(const Headed& t, Place from, Exchange& group, std::vector<Step>& after);
  void gather_lse(Place from, Exchange& group, std::vector<Step>& after);
  void gather_shared(const Headed& t, Place from, Exchange& group, std::vector<Step>& after);
  void attend(const std::vector<Place>& in, const std::vector<Place>& out, Place lse, Place grad_lse);
  void forward(const std::vector<Place>& in);
  void backward(const std::vector<Place>& in, Place lse, Place grad_lse);
  // The head that a rank's part begins with.
  int64_t head(const Headed& t, int64_t rank) const { return t.heads * rank / ranks_; }
  std::vector<Range> shard(int64_t rank) const { return ranges_of(b_.job, rank); }
  void add_all(std::vector<Step>& steps) {
    for (Step& step : steps) b_.add(std::move(step));
  }
  Headed q(Buffer buffer, int64_t number) const { return {buffer, b_.heads_q, part_q_, b_.dim_qk, number}; }
  Headed o(Buffer buffer, int64_t number) const { return {buffer, b_.heads_q, part_q_, b_.dim_v, number}; }
  Headed k(Buffer buffer, int64_t number) const { return {buffer, b_.heads_kv, part_kv_, b_.dim_qk, number}; }
  Headed v(Buffer buffer, int64_t number) const { return {buffer, b_.heads_kv, part_kv_, b_.dim_v, number}; }

  Builder b_;
  const int64_t ranks_, part_q_, part_kv_;
  const bool shared_;
  const std::vector<Range> everything_;
};

Steps AllToAll::steps() {
  Exchange group{"heads of q, k, v", {}, {}};
  std::vector<Step> after;
  const int64_t e = b_.element;
  std::vector<Place> in = {scatter(q(Buffer::q, e), group), scatter(k(Buffer::k, e), group),
                           scatter(v(Buffer::v, e), group)};
  Place lse, grad_lse;
  if (b_.job.backward()) {
    in.push_back(scatter(o(Buffer::o, e), group));
    in.push_back(scatter(o(Buffer::grad_o, e), group));
    lse = scatter_lines(Buffer::lse, Buffer::none, group, after);
    grad_lse = scatter_lines(Buffer::grad_lse, Buffer::grad_lse, group, after);
  }
  b_.exchange(std::move(group));
  b_.add(Wait{});
  add_all(after);
  if (b_.job.backward())
    backward(in, lse, grad_lse);
  else
    forward(in);
  return std::move(b_.made);
}

// This rank's rows go out by heads, all ranks' rows come in, each to its place in the sequence.
Place AllToAll::scatter(const Headed& t, Exchange& group) {
  const Place whole = b_.workspace(b_.batch * b_.job.rows() * t.line());
  for (int64_t step = 0; step < ranks_; ++step) {
    const int64_t to = b_.peer(step), from = b_.peer(-step);
    const Place columns{t.buffer, head(t, to) * t.dim * t.number};
    if (step == 0) {
      for (const Range& range : b_.shard)
        for (int64_t b = 0; b < b_.batch; ++b)
          b_.add(Copy{whole + (b * b_.job.rows() + range.begin) * t.line(), t.line(),
                      columns + (b * b_.rows + row_in(b_.shard, range.begin)) * t.all_line(), t.all_line(), t.line(),
                      range.rows()});
      continue;
    }
    const Place packed = b_.workspace(b_.batch * b_.rows * t.line());
    b_.add(Copy{packed, t.line(), columns, t.all_line(), t.line(), b_.batch * b_.rows});
    for (const Range& range : b_.shard) b_.move(group.sends, to, packed, b_.shard, range, t.line());
    for (const Range& range : shard(from)) b_.move(group.recvs, from, whole, everything_, range, t.line());
  }
  return whole;
}

// lse or its gradient, [batch, heads_q, rows]: a sequence's heads of one rank lie together. To [batch, part, all rows].
Place AllToAll::scatter_lines(Buffer buffer, Buffer only_with, Exchange& group, std::vector<Step>& after) {
  const int64_t all = b_.job.rows();
  const Place whole = b_.workspace(b_.batch * part_q_ * all * 4);
  for (int64_t step = 0; step < ranks_; ++step) {
    const int64_t to = b_.peer(step), from = b_.peer(-step);
    const std::vector<Range> ranges = shard(from);
    const int64_t rows = rows_of(ranges), bytes = part_q_ * b_.rows * 4;
    const Place arrived = b_.workspace(b_.batch * part_q_ * rows * 4);
    for (int64_t b = 0; b < b_.batch; ++b) {
      const Place heads{buffer, (b * b_.heads_q + to * part_q_) * b_.rows * 4};
      if (step == 0) {
        after.push_back(Copy{arrived + b * bytes, bytes, heads, bytes, bytes, 1, only_with});
        continue;
      }
      if (bytes > 0) group.sends.push_back({to, heads, bytes, only_with});
      if (rows > 0) group.recvs.push_back({from, arrived + b * part_q_ * rows * 4, part_q_ * rows * 4, only_with});
    }
    for (const Range& range : ranges)
      after.push_back(Copy{whole + range.begin * 4, all * 4, arrived + row_in(ranges, range.begin) * 4, rows * 4,
                           range.rows() * 4, b_.batch * part_q_, only_with});
  }
  return whole;
}

// All rows of this rank's heads go to who holds them, and the other heads of this rank's rows come in.
void AllToAll::gather(const Headed& t, Place from, Exchange& group, std::vector<Step>& after) {
  const bool rounds = t.number == 4 && b_.job.rounds();
  const int64_t count = b_.batch * b_.rows * t.heads * t.dim;
  const Place home = rounds ? b_.workspace(count * 4) : Place{t.buffer, 0};
  for (int64_t step = 0; step < ranks_; ++step) {
    const int64_t to = b_.peer(step), peer = b_.peer(-step);
    const Place columns = home + head(t, peer) * t.dim * t.number;
    if (step == 0) {
      for (const Range& range : b_.shard)
        for (int64_t b = 0; b < b_.batch; ++b)
          after.push_back(Copy{columns + (b * b_.rows + row_in(b_.shard, range.begin)) * t.all_line(), t.all_line(),
                               from + (b * b_.job.rows() + range.begin) * t.line(), t.line(), t.line(),
                               range.rows()});
      continue;
    }
    for (const Range& range : shard(to)) b_.move(group.sends, to, from, everything_, range, t.line());
    const Place arrived = b_.workspace(b_.batch * b_.rows * t.line());
    for (const Range& range : b_.shard) b_.move(group.recvs, peer, arrived, b_.shard, range, t.line());
    after.push_back(Copy{columns, t.all_line(), arrived, t.line(), t.line(), b_.batch * b_.rows});
  }
  if (rounds) after.push_back(Convert{{t.buffer, 0}, home, count});
}

void AllToAll::gather_lse(Place from, Exchange& group, std::vector<Step>& after) {
  const int64_t all = b_.job.rows(), lines = b_.batch * part_q_;
  const Place home = b_.workspace(b_.batch * b_.heads_q * b_.rows * 4);
  for (int64_t step = 0; step < ranks_; ++step) {
    const int64_t to = b_.peer(step), peer = b_.peer(-step);
    const std::vector<Range> ranges = shard(to);
    const int64_t rows = rows_of(ranges);
    const Place packed = b_.workspace(lines * rows * 4);
    for (const Range& range : ranges)
      b_.add(Copy{packed + row_in(ranges, range.begin) * 4, rows * 4, from + range.begin * 4, all * 4,
                  range.rows() * 4, lines});
    for (int64_t b = 0; b < b_.batch; ++b) {
      const Place heads = home + (b * b_.heads_q + peer * part_q_) * b_.rows * 4,
                  part = packed + b * part_q_ * rows * 4;
      if (step == 0) {
        after.push_back(Copy{heads, part_q_ * rows * 4, part, part_q_ * rows * 4, part_q_ * rows * 4, 1});
        continue;
      }
      if (rows > 0) group.sends.push_back({to, part, part_q_ * rows * 4});
      if (b_.rows > 0) group.recvs.push_back({peer, heads, part_q_ * b_.rows * 4});
    }
  }
  const int64_t bytes = b_.batch * b_.heads_q * b_.rows * 4;
  after.push_back(Copy{{Buffer::lse, 0}, bytes, home, bytes, bytes, 1, Buffer::lse});
}

// dK or dV in f32 of a key head that ranks / heads_kv ranks share.
void AllToAll::gather_shared(const Headed& t, Place from, Exchange& group, std::vector<Step>& after) {
  const int64_t count = b_.batch * b_.rows * t.dim, sharers = ranks_ / t.heads;
  std::vector<Place> arrived(static_cast<size_t>(ranks_));
  for (int64_t step = 0; step < ranks_; ++step) {
    const int64_t to = b_.peer(step), peer = b_.peer(-step);
    const Place slot = arrived[static_cast<size_t>(peer)] = b_.workspace(count * 4);
    if (step == 0) {
      for (const Range& range : b_.shard) b_.copy_rows(slot, b_.shard, from, everything_, range, t.line());
      continue;
    }
    for (const Range& range : shard(to)) b_.move(group.sends, to, from, everything_, range, t.line());
    for (const Range& range : b_.shard) b_.move(group.recvs, peer, slot, b_.shard, range, t.line());
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

void AllToAll::attend(const std::vector<Place>& in, const std::vector<Place>& out, Place lse, Place grad_lse) {
  const int64_t rows = b_.job.rows();
  if (rows == 0) return;
  Attend a{};
  fh_problem p;
  if (b_.job.packed()) {
    const std::vector<Run> runs = runs_of(b_.job, everything_, everything_, false);
    const Run& all = runs.front();
    p = problem_of(b_.whole, all);
    a.rows = all.used_rows(), a.pairs = all.pairs();
    b_.add_tables(all, a);
  } else {
    const Piece all = pieces_of(b_.whole, everything_, Block(everything_).parts).front();
    p = problem_of(b_.whole, all);
    a.rows = b_.batch * all.rows, a.pairs = all.pairs();
  }
  p.heads_q = part_q_, p.heads_kv = part_kv_;
  p.accumulate = b_.merges;
  if (b_.merges && !b_.job.backward()) p.sink = 0;
  a.q = {in[0], rows}, a.k = {in[1], rows}, a.v = {in[2], rows};
  a.lse = lse, a.grad_lse = grad_lse;
  const int64_t first = b_.rank * part_q_ * 4;
  if (p.sink) a.sink = {Buffer::sink, first};
  if (p.alibi) a.slopes = {Buffer::slopes, first};
  if (b_.job.backward()) {
    a.o = {in[3], rows}, a.grad_o = {in[4], rows};
    a.grad_q = {out[0], rows}, a.grad_k = {out[1], rows}, a.grad_v = {out[2], rows};
    if (p.sink) a.grad_sink = {Buffer::grad_sink, first};
  } else {
    a.o = {out[0], rows};
  }
  a.problem = b_.problem(p);
  b_.add(a);
}

void AllToAll::forward(const std::vector<Place>& in) {
  b_.merges = b_.job.out == FH_F32 && b_.whole.dtype != FH_F32;
  const int64_t lines = b_.batch * part_q_, rows = b_.job.rows(), number = b_.job.out_element();
  const Place out = b_.workspace(rows * lines * b_.dim_v * number), lse = b_.workspace(lines * rows * 4);
  if (b_.merges) {
    b_.add(Fill{out, 0, rows * lines * b_.dim_v});
    b_.begin_lse(lse, b_.rank * part_q_, part_q_, rows);
  }
  attend(in, {out}, lse, {});
  Exchange group{"heads of o, lse", {}, {}};
  std::vector<Step> after;
  gather(o(Buffer::o, number), out, group, after);
  gather_lse(lse, group, after);
  b_.exchange(std::move(group));
  b_.add(Wait{});
  add_all(after);
}

void AllToAll::backward(const std::vector<Place>& in, Place lse, Place grad_lse) {
  b_.merges = shared_ || (b_.job.out == FH_F32 && b_.whole.dtype != FH_F32);
  const int64_t number = b_.merges ? 4 : b_.job.out_element(), rows = b_.batch * b_.job.rows();
  const Headed tensors[] = {q(Buffer::grad_q, number), k(Buffer::grad_k, number), v(Buffer::grad_v, number)};
  std::vector<Place> out;
  if (b_.whole.sink) b_.add(Fill{{Buffer::grad_sink, 0}, 0, b_.heads_q});
  for (const Headed& t : tensors) {
    out.push_back(b_.workspace(rows * t.line()));
    if (b_.merges) b_.add(Fill{out.back(), 0, rows * t.part * t.dim});
  }
  attend(in, out, lse, grad_lse);
  Exchange group{"heads of dq, dk, dv", {}, {}};
  std::vector<Step> after;
  gather(tensors[0], out[0], group, after);
  for (int i = 1; i < 3; ++i)
    if (shared_)
      gather_shared(tensors[i], out[static_cast<size_t>(i)], group, after);
    else
      gather(tensors[i], out[static_cast<size_t>(i)], group, after);
  b_.exchange(std::move(group));
  b_.add(Wait{});
  add_all(after);
}

}  // namespace

Steps all_to_all_steps(const Job& job, int64_t rank) { return AllToAll(job, rank).steps(); }

Steps steps_of(const Job& job, fh_cp_scheme scheme, int64_t rank) {
  if (job.ranks == 1 || scheme == FH_CP_ALL_GATHER) return gather_steps(job, rank);
  return scheme == FH_CP_RING ? ring_steps(job, rank) : all_to_all_steps(job, rank);
}

}  // namespace froghopper::cp
