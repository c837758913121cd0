// SPDX-License-Identifier: Apache-2.0
// cp: all-gather in chunks. All exchanges start at once, and a chunk of keys arrives in each. Meanwhile a rank attends
// to its own keys, and then to each chunk when it is there. Calls on the same rows merge in f32, which costs time, so
// only some rows do this: the last ones of the shard, which attend to most. Other rows have one call, when all their
// keys have arrived; under a window most rows attend to own keys only, and no calls merge. In the backward pass, which
// adds in f32 anyway, there is one chunk. A part of the calls on own keys comes before it, and the others while
// gradients of other ranks' keys go home.
#include <string>
#include <utility>

#include "src/base/environment.hpp"
#include "src/base/text.hpp"
#include "src/cp/builder.hpp"
#include "src/cp/chunks.hpp"
#include "src/cp/grid.hpp"
#include "src/cp/ranges.hpp"

namespace froghopper::cp {
namespace {

constexpr const char* variable = "FROGHOPPER_CP_CHUNKS";
constexpr int64_t most_chunks = 3;  // each is one more merge
constexpr int64_t most_share = 8;

// A rank works out what every rank receives from every other, which takes milliseconds where there are more ranks. So
// many usually have two levels anyway.
constexpr int64_t most_ranks_in_chunks = 16;

// Keys of one owner that follow each other.
struct Arrival {
  Range keys;
  int64_t owner;
};

// What a rank computes and receives.
struct Division {
  std::vector<Range> parts;     // of the shard, in order
  size_t single = 0;            // so many, the first ones, have one call each; the others merge
  std::vector<int64_t> needed;  // of each part: how many rows of `arrivals` must be there for all its keys
  std::vector<Arrival> arrivals;
  int64_t rows = 0;  // of the arrivals
};

// Each rank begins with keys of the rank before it, so no two ask the same one at a time.
void add_arrivals(const Job& job, int64_t rank, Range keys, Division& to) {
  for (int64_t step = 1; step < job.ranks; ++step) {
    const int64_t owner = (rank - step + job.ranks) % job.ranks;
    for (const Range& held : ranges_of(job, owner)) {
      const Range range = common(held, keys);
      if (range.empty()) continue;
      to.arrivals.push_back({range, owner});
      to.rows += range.rows();
    }
  }
}

// Of the rows that merge, the last ones; backward, where all do, of those that have calls of their own in addition to
// others.
int64_t first_merging(const Job& job, const std::vector<Range>& shard) {
  if (job.backward()) return second_half(shard).begin;
  const Range all = job.whole.window_right == 0 ? second_half(shard) : shard.back();
  const int64_t rows = all.rows(), share = job.chunks.share;
  return all.end - (rows <= share ? rows : cut_at(rows / share, rows));
}

Division division_of(const Job& job, int64_t rank) {
  const std::vector<Range> shard = ranges_of(job, rank);
  Division d;
  if (shard.empty()) return d;
  const bool causal = job.whole.window_right == 0, windowed = job.whole.window_left != FH_ALL;
  const int64_t left = windowed ? std::min(job.whole.window_left, job.rows()) : job.rows();
  const int64_t row = windowed ? shard.front().begin + left : first_merging(job, shard);
  d.parts = divided(shard, row);
  int64_t attended = std::max<int64_t>(0, shard.front().begin - left);
  for (const Range& part : d.parts) {
    const int64_t end = causal ? part.end : job.rows();
    if (!windowed || part.begin < row) add_arrivals(job, rank, {attended, end}, d);
    attended = std::max(attended, end);
    d.needed.push_back(windowed && part.begin >= row ? 0 : d.rows);
    d.single += !job.backward() && (windowed || part.begin < row);
  }
  if (d.rows == 0) d.parts = shard, d.single = shard.size(), d.needed.assign(shard.size(), 0);
  return d;
}

// Of `rows` that arrive, those that are there with the first `count` chunks.
int64_t arrived(const Job& job, int64_t rows, int64_t count) {
  const int64_t chunks = job.chunks.count;
  return count == chunks ? rows : cut_at(rows / chunks * count + rows % chunks * count / chunks, rows / chunks);
}

// The arrivals of a chunk.
std::vector<Arrival> chunk_of(const Job& job, const Division& division, int64_t chunk) {
  const Range rows{arrived(job, division.rows, chunk), arrived(job, division.rows, chunk + 1)};
  std::vector<Arrival> pieces;
  int64_t before = 0;
  for (const Arrival& a : division.arrivals) {
    const Range those = common(rows, {before, before + a.keys.rows()});
    const int64_t first = a.keys.begin - before;
    if (!those.empty()) pieces.push_back({{first + those.begin, first + those.end}, a.owner});
    before += a.keys.rows();
  }
  return pieces;
}

class GatherInChunks {
 public:
  GatherInChunks(const Job& job, int64_t rank) : GatherInChunks(job, rank, division_of(job, rank)) {}
  Steps forward();
  Steps backward();

 private:
  GatherInChunks(const Job& job, int64_t rank, Division division)
      : b_(job, rank, division.parts), division_(std::move(division)) {}
  void place_keys();
  void move(std::vector<Transfer>& to, int64_t peer, const KeyPlaces& keys, int64_t at, int64_t rows,
            int64_t element_bytes);
  void fetch(int64_t chunk);
  void send_gradients();
  void add_gradients();
  void copy_own();
  void attend_single(int64_t from, int64_t to);
  Block arrived_in(int64_t chunk) const;
  Block all_keys() const;

  Builder b_;
  Division division_;
  std::vector<Division> readers_;  // in the order in which this rank sends to them
  KeyPlaces gathered_;
  std::vector<std::vector<Part>> placed_;  // of each chunk: where its keys lie, in the order of arrival
  std::vector<Part> own_;                  // likewise own keys with them
  bool copied_ = false;                    // these
  KeyPlaces home_, partial_;               // gradients of own keys, and of those that have arrived
  std::vector<KeyPlaces> from_;            // of own keys by each reader
};

Steps GatherInChunks::forward() {
  const size_t parts = b_.parts.size();
  const bool in_f32 = b_.job.out == FH_F32 && b_.whole.dtype != FH_F32;
  place_keys();
  for (int64_t chunk = 0; chunk < b_.job.chunks.count; ++chunk) fetch(chunk);
  b_.begin(true, in_f32 ? 0 : division_.single);
  for (size_t i = 0; i < parts; ++i)
    if (i >= division_.single || division_.needed[i] == 0) b_.attend_own_part(i);
  for (int64_t chunk = 0, there = 0; chunk < b_.job.chunks.count; ++chunk) {
    b_.add(Wait{});
    b_.attend_parts(division_.single, parts, arrived_in(chunk), gathered_);
    const int64_t before = there;
    attend_single(before, there = arrived(b_.job, division_.rows, chunk + 1));
  }
  b_.end();
  return std::move(b_.made);
}

Steps GatherInChunks::backward() {
  place_keys();
  fetch(0);
  b_.begin(true);
  home_ = b_.home();
  partial_ = b_.keys(division_.rows, 4);
  b_.clear(partial_);
  const size_t parts = b_.parts.size(),
               early = b_.job.chunks.share == 1 ? parts - 1 : 0;  // the part before the chunk
  if (parts > 0) b_.attend_own_part(early, home_);
  b_.add(Wait{});
  b_.attend_parts(0, parts, arrived_in(0), gathered_, partial_);
  send_gradients();
  for (size_t i = 0; i < parts; ++i)
    if (i != early) b_.attend_own_part(i, home_);
  b_.add(Wait{});
  add_gradients();
  b_.convert_home(home_);
  b_.end();
  return std::move(b_.made);
}

// What arrives last lies first, and own keys follow. So the keys that a part attends to lie together, as do those of a
// chunk, and one call attends to them: without a window those of other ranks are attended to in full, in any order;
// under a window this is their own order.
void GatherInChunks::place_keys() {
  for (int64_t step = 1; step < b_.job.ranks; ++step) readers_.push_back(division_of(b_.job, b_.peer(step)));
  int64_t at = division_.rows;
  for (int64_t chunk = 0; chunk < b_.job.chunks.count; ++chunk) {
    placed_.emplace_back();
    for (const Arrival& a : chunk_of(b_.job, division_, chunk))
      placed_.back().push_back({a.keys, at -= a.keys.rows()});
  }
  int64_t end = 0;  // of own keys that parts with one call attend to in addition to others
  for (size_t i = 0; i < division_.single; ++i)
    if (division_.needed[i] > 0) end = b_.whole.window_right == 0 ? division_.parts[i].end : b_.job.rows();
  int64_t rows = division_.rows;
  for (const Range& range : common(b_.shard, std::vector<Range>{{0, end}})) {
    own_.push_back({range, rows});
    rows += range.rows();
  }
  gathered_ = b_.keys(rows, b_.kv_element);
}

// Of K and of V, or their gradients, rows whose elements have so many bytes.
void GatherInChunks::move(std::vector<Transfer>& to, int64_t peer, const KeyPlaces& keys, int64_t at, int64_t rows,
                          int64_t element_bytes) {
  b_.move_rows(to, peer, keys.k, keys.rows, at, rows, b_.k_row(element_bytes));
  b_.move_rows(to, peer, keys.v, keys.rows, at, rows, b_.v_row(element_bytes));
}

void GatherInChunks::fetch(int64_t chunk) {
  Exchange group{"k, v", {}, {}};
  const std::vector<Arrival> mine = chunk_of(b_.job, division_, chunk);
  for (size_t i = 0; i < mine.size(); ++i)
    move(group.recvs, mine[i].owner, gathered_, placed_[static_cast<size_t>(chunk)][i].at, mine[i].keys.rows(),
         b_.kv_element);
  for (int64_t step = 1; step < b_.job.ranks; ++step)
    for (const Arrival& a : chunk_of(b_.job, readers_[static_cast<size_t>(step - 1)], chunk))
      if (a.owner == b_.rank)
        move(group.sends, b_.peer(step), b_.own_keys(), row_in(b_.shard, a.keys.begin), a.keys.rows(), b_.kv_element);
  b_.exchange(std::move(group));
}

Block GatherInChunks::arrived_in(int64_t chunk) const {
  const std::vector<Part>& arrivals = placed_[static_cast<size_t>(chunk)];
  Block block;
  block.parts.assign(arrivals.rbegin(), arrivals.rend());
  return block;
}

// All that is gathered. What goes on in the sequence where it goes on in the buffer is one part, as windows need it.
Block GatherInChunks::all_keys() const {
  std::vector<Part> parts;
  for (size_t chunk = placed_.size(); chunk-- > 0;)
    parts.insert(parts.end(), placed_[chunk].rbegin(), placed_[chunk].rend());
  parts.insert(parts.end(), own_.begin(), own_.end());
  Block block;
  for (const Part& part : parts)
    if (!block.parts.empty() && block.parts.back().keys.end == part.keys.begin)
      block.parts.back().keys.end = part.keys.end;
    else
      block.parts.push_back(part);
  return block;
}

void GatherInChunks::copy_own() {
  if (std::exchange(copied_, true)) return;
  const auto copy = [&](Place to, Place from, const Part& part, int64_t row) {
    const int64_t first = row_in(b_.shard, part.keys.begin);
    b_.add(Copy{to + part.at * row, gathered_.rows * row, from + first * row, b_.rows * row, part.keys.rows() * row,
                b_.batch});
  };
  for (const Part& part : own_) {
    copy(gathered_.k, {Buffer::k, 0}, part, b_.k_row(b_.kv_element));
    copy(gathered_.v, {Buffer::v, 0}, part, b_.v_row(b_.kv_element));
  }
}

// The parts whose last keys are those that have arrived, from row `from` to row `to` of all.
void GatherInChunks::attend_single(int64_t from, int64_t to) {
  const Block keys = all_keys();
  for (size_t i = 0; i < division_.single; ++i) {
    if (division_.needed[i] <= from || division_.needed[i] > to) continue;
    copy_own();
    b_.attend_parts(i, i + 1, keys, gathered_);
  }
}

// The keys of a rank that a reader attends to, in the order in which they arrived there.
std::vector<Arrival> owned(const Division& reader, int64_t rank) {
  std::vector<Arrival> all;
  for (const Arrival& a : reader.arrivals)
    if (a.owner == rank) all.push_back(a);
  return all;
}

void GatherInChunks::send_gradients() {
  Exchange group{"dk, dv", {}, {}};
  for (size_t i = 0; i < division_.arrivals.size(); ++i)
    move(group.sends, division_.arrivals[i].owner, partial_, placed_[0][i].at, division_.arrivals[i].keys.rows(), 4);
  for (int64_t step = 1; step < b_.job.ranks; ++step) {
    const std::vector<Arrival> read = owned(readers_[static_cast<size_t>(step - 1)], b_.rank);
    int64_t rows = 0;
    for (const Arrival& a : read) rows += a.keys.rows();
    const KeyPlaces slot = b_.keys(rows, 4);
    int64_t at = 0;
    for (const Arrival& a : read) {
      move(group.recvs, b_.peer(step), slot, at, a.keys.rows(), 4);
      at += a.keys.rows();
    }
    from_.push_back(slot);
  }
  b_.exchange(std::move(group));
}

// To the own ones, those of rank + 1, rank + 2 and so on, as in the ring.
void GatherInChunks::add_gradients() {
  for (size_t i = 0; i < from_.size(); ++i) {
    int64_t at = 0;
    for (const Arrival& a : owned(readers_[i], b_.rank)) {
      const int64_t row = row_in(b_.shard, a.keys.begin), rows = a.keys.rows();
      const auto add = [&](Place into, Place from, int64_t line) {
        for (int64_t b = 0; b < b_.batch; ++b)
          b_.add(Add{into + (b * b_.rows + row) * line * 4, from + (b * from_[i].rows + at) * line * 4, rows * line});
      };
      add(home_.k, from_[i].k, b_.heads_kv * b_.dim_qk);
      add(home_.v, from_[i].v, b_.heads_kv * b_.dim_v);
      at += rows;
    }
  }
}

// A call that merges needs a mask that says all or nothing of the keys of another rank. Under a window nothing merges,
// and only neighbours' keys are attended to.
bool may_overlap(const Job& job, fh_cp_scheme scheme) {
  if (scheme != FH_CP_ALL_GATHER && scheme != FH_CP_ALL_TO_ALL_GATHER) return false;
  const Job between = job_between_groups(job, heads_parts(job, scheme));
  const fh_problem& p = between.whole;
  const bool plain = p.window_left == FH_ALL && (p.window_right == FH_ALL || p.window_right == 0),
             window = p.window_left != FH_ALL && p.window_right == 0 && job.layout == FH_CP_CONTIGUOUS;
  return (plain || (window && !job.backward())) && !p.alibi && !job.packed() && between.ranks > 1 &&
         between.ranks <= most_ranks_in_chunks;
}

}  // namespace

std::vector<Chunks> chunks_of(const Job& job, fh_cp_scheme scheme) {
  if (!may_overlap(job, scheme)) return {{}};
  if (job.backward() && job.set_chunks) return {{std::min<int64_t>(job.set_chunks->count, 1), job.set_chunks->share}};
  if (job.backward()) return {{}, {1, 1}, {1, 2}};
  const bool windowed = job.whole.window_left != FH_ALL;  // which attends to one chunk in its own order
  if (job.set_chunks) return {windowed ? Chunks{std::min<int64_t>(job.set_chunks->count, 1)} : *job.set_chunks};
  if (windowed) return {{}, {1}};
  return {{}, {1, 8}, {1, 4}, {1, 2}, {1, 1}, {2, 4}, {2, 2}, {2, 1}, {3, 4}, {3, 2}, {3, 1}};
}

// "2", or "1/4" for one chunk and a share of a quarter.
Result<void> take_chunks(Job& job) {
  const std::string value = environment(variable);
  if (value.empty()) return {};
  const auto digit = [&](size_t i) { return value[i] - '0'; };
  const bool count = (value.size() == 1 || (value.size() == 3 && value[1] == '/')) && digit(0) >= 0 &&
                     digit(0) <= most_chunks,
             share = count && (value.size() == 1 || (digit(2) >= 1 && digit(2) <= most_share));
  if (!share)
    return Failure{
        FH_INVALID_PROBLEM,
        text("{} is \"{}\", but must be a number of chunks from 0 to {}, or that, a slash and a part of the "
             "rows from 1 to {}, as in \"1/4\". Unset it for the fastest.",
             variable, value, most_chunks, most_share)};
  job.set_chunks = Chunks{digit(0), value.size() == 1 ? 1 : digit(2)};
  return {};
}

Steps gather_in_chunks_steps(const Job& job, int64_t rank) {
  GatherInChunks gather(job, rank);
  return job.backward() ? gather.backward() : gather.forward();
}

}  // namespace froghopper::cp
