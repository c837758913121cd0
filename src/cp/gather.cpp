// SPDX-License-Identifier: Apache-2.0
// cp: all-gather. The rows of k and v that a rank's rows attend to are brought together in the order of the sequence;
// then each range of its rows is one call, as on one rank. Gradients of k and v go home in one exchange, where the
// owner adds those of rank 0, 1, 2 and so on.
#include "src/cp/builder.hpp"
#include "src/cp/ranges.hpp"

namespace froghopper::cp {
namespace {

// The keys that the rows of a shard attend to, as ranges that neither overlap nor touch.
std::vector<Range> attended_by_shard(const Job& job, const std::vector<Range>& shard) {
  std::vector<Range> all;
  for (const Range& rows : shard)
    if (const auto keys = attended_keys(job, rows, {0, job.rows()})) all.push_back(*keys);
  std::sort(all.begin(), all.end(), [](Range a, Range b) { return a.begin < b.begin; });
  return joined(all);
}

class Gather {
 public:
  Gather(const Job& job, int64_t rank)
      : b_(job, rank), attended_(attended_by_shard(job, b_.shard)), gathered_(b_.own_keys()) {}
  Steps steps();

 private:
  std::vector<Range> attended_by(int64_t reader) const {
    return attended_by_shard(b_.job, ranges_of(b_.job, reader));
  }
  void fetch();
  void send_gradients();

  Builder b_;
  std::vector<Range> attended_;
  KeyPlaces gathered_, partial_;
};

Steps Gather::steps() {
  const bool one_rank = b_.job.ranks == 1;
  const bool in_f32 = b_.job.out == FH_F32 && b_.whole.dtype != FH_F32;
  b_.begin(in_f32 || (b_.job.backward() && !one_rank));
  if (one_rank)
    partial_ = {{Buffer::grad_k, 0}, {Buffer::grad_v, 0}, b_.rows};  // in f32 where calls merge into it
  else
    fetch();
  if (b_.job.backward() && b_.merges) {
    if (!one_rank) partial_ = b_.keys(rows_of(attended_), 4);
    b_.clear(partial_);
  }
  b_.attend(Block(attended_), gathered_, partial_);
  if (b_.job.backward() && !one_rank) send_gradients();
  b_.end();
  return std::move(b_.made);
}

void Gather::fetch() {
  gathered_ = b_.keys(rows_of(attended_), b_.kv_element);
  Exchange group{"k, v", {}, {}};
  for (int64_t step = 1; step < b_.job.ranks; ++step) {
    const int64_t owner = b_.peer(-step), reader = b_.peer(step);
    const std::vector<Range> of_owner = ranges_of(b_.job, owner), of_reader = attended_by(reader);
    b_.move_keys(group.recvs, owner, gathered_, attended_, of_owner, common(of_owner, attended_), b_.kv_element);
    b_.move_keys(group.sends, reader, b_.own_keys(), b_.shard, of_reader, common(b_.shard, of_reader), b_.kv_element);
  }
  b_.exchange(std::move(group));
  b_.copy_keys(gathered_, attended_, b_.own_keys(), b_.shard);
  b_.add(Wait{});
}

void Gather::send_gradients() {
  std::vector<KeyPlaces> from(static_cast<size_t>(b_.job.ranks));
  Exchange group{"dk, dv", {}, {}};
  for (int64_t step = 1; step < b_.job.ranks; ++step) {
    const int64_t owner = b_.peer(-step), reader = b_.peer(step);
    const std::vector<Range> sent = common(ranges_of(b_.job, owner), attended_), of_reader = attended_by(reader),
                             read = common(b_.shard, of_reader);
    b_.move_keys(group.sends, owner, partial_, attended_, sent, sent, 4);
    KeyPlaces& slot = from[static_cast<size_t>(reader)] = b_.keys(rows_of(read), 4);
    b_.move_keys(group.recvs, reader, slot, read, of_reader, read, 4);
  }
  b_.exchange(std::move(group));
  const KeyPlaces home = b_.home();
  b_.add(Wait{});
  for (int64_t reader = 0; reader < b_.job.ranks; ++reader) {
    if (reader == b_.rank)
      b_.add_rows(home, b_.shard, partial_, attended_);
    else
      b_.add_rows(home, b_.shard, from[static_cast<size_t>(reader)], common(b_.shard, attended_by(reader)));
  }
  b_.convert_home(home);
}

}  // namespace

Steps gather_steps(const Job& job, int64_t rank) { return Gather(job, rank).steps(); }

}  // namespace froghopper::cp
