// SPDX-License-Identifier: Apache-2.0
// cp: all-gather. What a rank's rows see of k and v is brought together in the order of the sequence; then each range
// of its rows is one call, as on one rank. Gradients of k and v go home in one exchange, where the owner adds those of
// rank 0, 1, 2 and so on.
#include "src/cp/builder.hpp"

namespace froghopper::cp {
namespace {

// What the rows of a shard see, as ranges that neither overlap nor touch.
std::vector<Range> seen_by_shard(const Job& job, const std::vector<Range>& shard) {
  std::vector<Range> all;
  for (const Range& rows : shard)
    if (const auto keys = seen(job, rows, {0, job.rows()})) all.push_back(*keys);
  std::sort(all.begin(), all.end(), [](Range a, Range b) { return a.begin < b.begin; });
  std::vector<Range> joined;
  for (const Range& range : all)
    if (!joined.empty() && range.begin <= joined.back().end)
      joined.back().end = std::max(joined.back().end, range.end);
    else
      joined.push_back(range);
  return joined;
}

std::vector<Range> both(const std::vector<Range>& a, const std::vector<Range>& b) {
  std::vector<Range> all;
  for (const Range& x : a)
    for (const Range& y : b)
      if (const Range r = common(x, y); !r.empty()) all.push_back(r);
  return all;
}

class Gather {
 public:
  Gather(const Job& job, int64_t rank)
      : b_(job, rank), seen_(seen_by_shard(job, b_.shard)), gathered_(b_.own_keys()) {}
  Steps steps();

 private:
  std::vector<Range> seen_of(int64_t owner) const { return both(ranges_of(b_.job, owner), seen_); }
  std::vector<Range> seen_by(int64_t reader) const {
    return both(b_.shard, seen_by_shard(b_.job, ranges_of(b_.job, reader)));
  }
  void fetch();
  void send_gradients();

  Builder b_;
  std::vector<Range> seen_;
  KeyPlaces gathered_, partial_;
};

Steps Gather::steps() {
  const bool alone = b_.job.ranks == 1;
  const bool in_f32 = b_.job.out == FH_F32 && b_.whole.dtype != FH_F32;
  b_.begin(in_f32 || (b_.job.backward() && !alone));
  if (alone)
    partial_ = {{Buffer::grad_k, 0}, {Buffer::grad_v, 0}, b_.rows};  // in f32 where calls merge into it
  else
    fetch();
  if (b_.job.backward() && b_.merges) {
    if (!alone) partial_ = b_.keys(rows_of(seen_), 4);
    b_.clear(partial_);
  }
  b_.attend(Block(seen_), gathered_, partial_);
  if (b_.job.backward() && !alone) send_gradients();
  b_.end();
  return std::move(b_.made);
}

void Gather::fetch() {
  gathered_ = b_.keys(rows_of(seen_), b_.element);
  Exchange group{"k, v", {}, {}};
  for (int64_t step = 1; step < b_.job.ranks; ++step) {
    const int64_t owner = b_.peer(-step), reader = b_.peer(step);
    b_.move_keys(group.recvs, owner, gathered_, seen_, seen_of(owner), b_.element);
    b_.move_keys(group.sends, reader, b_.own_keys(), b_.shard, seen_by(reader), b_.element);
  }
  b_.exchange(std::move(group));
  for (const Range& range : seen_of(b_.rank)) {
    b_.copy_rows(gathered_.k, seen_, {Buffer::k, 0}, b_.shard, range, b_.k_row(b_.element));
    b_.copy_rows(gathered_.v, seen_, {Buffer::v, 0}, b_.shard, range, b_.v_row(b_.element));
  }
  b_.add(Wait{});
}

void Gather::send_gradients() {
  std::vector<KeyPlaces> from(static_cast<size_t>(b_.job.ranks));
  Exchange group{"dk, dv", {}, {}};
  for (int64_t step = 1; step < b_.job.ranks; ++step) {
    const int64_t owner = b_.peer(-step), reader = b_.peer(step);
    b_.move_keys(group.sends, owner, partial_, seen_, seen_of(owner), 4);
    const std::vector<Range> read = seen_by(reader);
    KeyPlaces& slot = from[static_cast<size_t>(reader)] = b_.keys(rows_of(read), 4);
    b_.move_keys(group.recvs, reader, slot, read, read, 4);
  }
  b_.exchange(std::move(group));
  const KeyPlaces home = b_.home();
  b_.add(Wait{});
  for (int64_t reader = 0; reader < b_.job.ranks; ++reader) {
    if (reader == b_.rank)
      b_.add_rows(home, b_.shard, partial_, seen_);
    else
      b_.add_rows(home, b_.shard, from[static_cast<size_t>(reader)], seen_by(reader));
  }
  b_.convert_home(home);
}

}  // namespace

Steps gather_steps(const Job& job, int64_t rank) { return Gather(job, rank).steps(); }

}  // namespace froghopper::cp
