// SPDX-License-Identifier: Apache-2.0
// cpu: the backward pass: chunks of keys for threads, and the order in which they add to the same grad_q.
//
// The gradients of a key come from one chunk, in the order of the rows. Those of a row come from all chunks that it
// attends to, in the order of the keys: a chunk takes a tile of rows when the chunk before it has done that tile.
// Chunks are taken by threads in rising order, so the one before is done or in work, and nobody waits for what is not
// begun. So each sum has one order, whatever the number of threads, and a result is the same to the last bit.
//
// The first chunk that takes a tile begins its sums, the last one writes them to grad_q.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "contract/alibi.h"
#include "src/base/ceil_div.hpp"
#include "src/base/text.hpp"
#include "src/cpu/chunks.hpp"
#include "src/cpu/gradient_work.hpp"
#include "src/cpu/scratch.hpp"
#include "src/cpu/threads.hpp"
#include "src/cpu/work.hpp"
#include "src/problem/mask.hpp"

namespace froghopper::cpu {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

struct Range {
  int64_t begin, end;
};

// The least i of [0, count) for which is(i) holds, where it holds for all after that; count: none.
template <class Is>
int64_t first_that(int64_t count, const Is& is) {
  int64_t low = 0;
  while (low < count) {
    const int64_t middle = low + (count - low) / 2;
    if (is(middle)) {
      count = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// The mask of one sequence. Both bounds of the keys that a row attends to grow with the row.
class SequenceMask {
 public:
  SequenceMask(const Problem& p, const Sequence& s, int64_t chunk_keys) : p_(p), s_(s), chunk_keys_(chunk_keys) {}

  Visible keys_of(int64_t row) const {
    return row < s_.used_q ? visible_keys(p_, s_.used_q, s_.used_kv, row) : Visible{0, 0};
  }

  // Keys that some row attends to.
  Range attended_keys() const {
    const Range rows = rows_of(0, s_.used_kv);
    if (rows.begin >= rows.end) return {0, 0};
    return {keys_of(rows.begin).begin, keys_of(rows.end - 1).end};
  }

  // The tiles of rows that chunk number `chunk` of `chunks` takes: those with a row that attends to a key of it. Tiles
  // without such a row go to the first chunk, the last one, or the one after the gap, so that every tile is taken, by
  // chunks that follow upon each other. Begins and ends rise from chunk to chunk.
  Range tiles(int64_t chunk, int64_t chunks) const {
    const int64_t end = chunk + 1 == chunks ? all_tiles() : own_tiles(chunk).end;
    if (chunk == 0) return {0, end};
    return {std::min(own_tiles(chunk).begin, own_tiles(chunk - 1).end), end};
  }

  int64_t all_tiles() const { return ceil_div(s_.extent_q, tile_rows); }

 private:
  Range own_tiles(int64_t chunk) const {
    const Range rows = rows_of(chunk * chunk_keys_, std::min((chunk + 1) * chunk_keys_, s_.used_kv));
    const int64_t begin = rows.begin / tile_rows;
    return {begin, std::max(begin, ceil_div(rows.end, tile_rows))};
  }

  // Rows that attend to a key of [first, last).
  Range rows_of(int64_t first, int64_t last) const {
    return {first_that(s_.used_q, [&](int64_t i) { return keys_of(i).end > first; }),
            first_that(s_.used_q, [&](int64_t i) { return keys_of(i).begin >= last; })};
  }

  const Problem& p_;
  const Sequence& s_;
  int64_t chunk_keys_;
};

// What the threads of a call share.
class Shared {
 public:
  Shared(const Plan& plan, const Views& views, const InterruptWatch& watch)
      : p(plan.problem),
        views(views),
        watch(watch),
        chunk_keys(plan.tile_kv),
        chunks(plan, views),
        group(p.heads_q / p.heads_kv),
        sum_row(row_floats(static_cast<int>(p.dim_qk))),
        slot_rows(group * chunks.tiles_max() * tile_rows),
        done_(chunks.slots() * chunks.chunks_max()) {
    sums_.reset(new (std::align_val_t{64}) float[chunks.slots() * slot_rows * chunks.sums_of_row() * sum_row]);
    deltas_.resize(chunks.slots() * slot_rows);
    if (p.sink) sink_partials.resize(p.heads_q * (p.rows_q() == 0 ? 0 : p.batch));
  }

  float* sums(int64_t slot) const { return sums_.get() + slot * slot_rows * sum_row; }
  float* sums_of_span(int64_t slot) const {
    return chunks.chunks_of_span() > 1 ? sums(chunks.slots() + slot) : nullptr;
  }
  float* deltas(int64_t slot) { return deltas_.data() + slot * slot_rows; }

  // How far each chunk is, counted in tiles of all its query heads, plus the counts of earlier waves of its slot.
  void wait(const ChunkId& id, int64_t chunk, int64_t tiles, int64_t wave) {
    std::atomic<int64_t>& done = done_[id.slot * chunks.chunks_max() + chunk];
    const int64_t wanted = wave * counts_of_wave() + tiles;
    for (int64_t now = done.load(); now < wanted; now = done.load()) done.wait(now);
  }
  void publish(const ChunkId& id, int64_t tiles) {
    std::atomic<int64_t>& done = done_[id.slot * chunks.chunks_max() + id.chunk];
    done.store(id.wave * counts_of_wave() + tiles);
    done.notify_all();
  }
  int64_t all_done() const { return group * most_tiles() + 1; }  // also the chunks before it

  const Problem& p;
  const Views& views;
  const InterruptWatch& watch;
  const int64_t chunk_keys;
  const Chunks chunks;
  const int64_t group;  // query heads of a key head
  const int64_t sum_row, slot_rows;
  std::vector<double> sink_partials;  // [batch][heads_q]: grad_sink

 private:
  int64_t most_tiles() const { return p.extent_q() / tile_rows + 1; }
  int64_t counts_of_wave() const { return all_done() + 1; }

  struct Freed {
    void operator()(float* x) const { ::operator delete[](x, std::align_val_t{64}); }
  };
  std::unique_ptr<float[], Freed> sums_;
  std::vector<float> deltas_;
  std::vector<std::atomic<int64_t>> done_;
};

// The tiles of one chunk: of each query head that shares the key head, those of its rows that attend to the chunk.
class TilesOfChunk final : public RowTiles {
 public:
  TilesOfChunk(Shared& shared, const ChunkId& id)
      : sh_(shared),
        id_(id),
        s_(id_.sequence),
        mask_(shared.p, s_, shared.chunk_keys),
        tiles_(mask_.tiles(id.chunk, id.chunks)),
        before_(id.chunk == 0 ? Range{0, 0} : mask_.tiles(id.chunk - 1, id.chunks)),
        after_(id.chunk + 1 == id.chunks ? Range{mask_.all_tiles(), 0} : mask_.tiles(id.chunk + 1, id.chunks)) {
    if (id_.chunk == 0 && id_.chunks_before > 0) sh_.wait(id_, id_.chunks_before - 1, sh_.all_done(), id_.wave - 1);
  }

  const RowTile* next() override {
    if (head_ < 0) {
      head_ = 0, tile_ = tiles_.begin;
    } else {
      done();
      ++tile_;
    }
    if (tile_ >= tiles_.end) ++head_, tile_ = tiles_.begin;
    if (tiles_.begin >= tiles_.end || head_ == sh_.group || sh_.watch.asked()) return nullptr;
    if (id_.chunk > 0)
      sh_.wait(id_, id_.chunk - 1, head_ * mask_.all_tiles() + std::min(tile_ + 1, before_.end), id_.wave);
    fill();
    return &t_;
  }

  // Then the slot may be another pair's.
  void finish() {
    if (id_.chunk > 0) sh_.wait(id_, id_.chunk - 1, sh_.all_done(), id_.wave);
    sh_.publish(id_, sh_.all_done());
  }

  KeyChunk keys(float* scratch) const {
    const Problem& p = sh_.p;
    const View& k = sh_.views.k;
    const View& v = sh_.views.v;
    const int64_t first = first_key(), row = s_.first_kv + first;
    const int64_t count = std::min(sh_.chunk_keys, s_.extent_kv - first);
    const Range attended = mask_.attended_keys();
    KeyChunk c{};
    c.dtype = p.dtype;
    c.dim_qk = static_cast<int>(p.dim_qk), c.dim_v = static_cast<int>(p.dim_v);
    c.scale = p.scale, c.softcap = p.softcap;
    c.accumulate = p.accumulate;
    c.scratch = scratch;
    if (count <= 0) return c;  // then k and v may be empty, and their strides anything
    c.k = k.address(s_.batch, row, id_.head_kv), c.v = v.address(s_.batch, row, id_.head_kv);
    c.stride_k = k.stride_seq, c.stride_v = v.stride_seq;
    c.grad_k = sh_.views.grad_k.address(s_.batch, row, id_.head_kv);
    c.grad_v = sh_.views.grad_v.address(s_.batch, row, id_.head_kv);
    c.stride_grad_k = sh_.views.grad_k.stride_seq, c.stride_grad_v = sh_.views.grad_v.stride_seq;
    c.keys = static_cast<int>(count);
    c.attended_begin = static_cast<int>(std::clamp<int64_t>(attended.begin - first, 0, count));
    c.attended_end = static_cast<int>(std::clamp<int64_t>(attended.end - first, 0, count));
    return c;
  }

 private:
  int64_t first_key() const { return id_.chunk * sh_.chunk_keys; }
  int64_t head() const { return id_.head_kv * sh_.group + head_; }

  void done() {
    if (t_.fresh && sh_.p.sink && s_.used_q > 0) add_to_sink();
    sh_.publish(id_, head_ * mask_.all_tiles() + (tile_ + 1 == tiles_.end ? mask_.all_tiles() : tile_ + 1));
  }

  void fill() {
    const Views& views = sh_.views;
    const int64_t first = tile_ * tile_rows, row = s_.first_q + first;
    t_.rows = static_cast<int>(std::min<int64_t>(tile_rows, s_.extent_q - first));
    t_.q = views.q.address(s_.batch, row, head()), t_.stride_q = views.q.stride_seq;
    t_.o = views.o.address(s_.batch, row, head()), t_.stride_o = views.o.stride_seq;
    t_.grad_o = views.grad_o.address(s_.batch, row, head()), t_.stride_grad_o = views.grad_o.stride_seq;
    t_.grad_q = views.grad_q.address(s_.batch, row, head()), t_.stride_grad_q = views.grad_q.stride_seq;
    const View& slopes = views.alibi_slopes;  // for rows of no sequence, which attend to nothing, there are none
    const bool sloped = sh_.p.alibi && s_.index < sh_.p.batch;
    t_.slope = sloped ? within_steepest(slopes.as<float>()[slopes.at(s_.index, 0, head())]) : 0;
    t_.level = first + sh_.p.diagonal(s_.used_q, s_.used_kv) - first_key();
    t_.fresh = tile_ >= before_.end;
    t_.last = tile_ < after_.begin;
    // Rows of sequences of which none attends to a key pass through one chunk and need no place of their own.
    const bool alone = s_.used_q == 0 || s_.used_kv == 0;
    const int64_t place = alone ? 0 : (head_ * mask_.all_tiles() + tile_) * tile_rows;
    t_.sum = sh_.sums(id_.slot) + place * sh_.sum_row;
    float* const of_spans = sh_.sums_of_span(id_.slot);
    t_.of_span = of_spans ? of_spans + place * sh_.sum_row : nullptr;
    t_.span_fresh = t_.fresh || id_.chunk % sh_.chunks.chunks_of_span() == 0;
    t_.span_last = t_.last || (id_.chunk + 1) % sh_.chunks.chunks_of_span() == 0;
    t_.number = head_ * mask_.all_tiles() + tile_;
    t_.delta = sh_.deltas(id_.slot) + place;
    for (int i = 0; i < t_.rows; ++i) fill_row(i, first + i);
  }

  void fill_row(int i, int64_t row) {
    const View& lse = sh_.views.lse;
    const View& grad_lse = sh_.views.grad_lse;
    const Visible keys = mask_.keys_of(row);
    const int64_t at = s_.first_q + row, end = std::min(first_key() + sh_.chunk_keys, s_.extent_kv);
    t_.lse[i] = keys.begin < keys.end ? lse.as<float>()[lse.at(s_.batch, at, head())] : -infinity;
    t_.fully_masked[i] = t_.lse[i] == -infinity;
    if (t_.fully_masked[i]) t_.lse[i] = infinity;
    t_.grad_lse[i] = row < s_.used_q && grad_lse.data ? grad_lse.as<float>()[grad_lse.at(s_.batch, at, head())] : 0;
    const auto of_chunk = [&](int64_t key) {
      return t_.fully_masked[i] ? 0 : static_cast<int32_t>(std::clamp(key, first_key(), end) - first_key());
    };
    t_.begin[i] = of_chunk(keys.begin);
    t_.end[i] = of_chunk(keys.end);
  }

  // Rows are added in rising order, since tiles are begun in rising order. A row that attends to no key has the sink
  // alone in its denominator.
  void add_to_sink() {
    const double sink = sh_.views.sink.as<float>()[head()];
    double& sum = sh_.sink_partials[id_.index * sh_.p.heads_q + head()];
    for (int i = 0; i < t_.rows; ++i) {
      const int64_t row = tile_ * tile_rows + i;
      if (row >= s_.used_q || sink == -infinity) continue;
      const Visible keys = mask_.keys_of(row);
      const bool attends_to_none = keys.begin >= keys.end;
      if (t_.fully_masked[i] && !attends_to_none)
        continue;  // its lse is -infinity: all that it attends to has weight 0
      sum -= (attends_to_none ? 1 : std::exp(std::min(0.0, sink - t_.lse[i]))) * t_.delta[i];
    }
  }

  Shared& sh_;
  const ChunkId id_;
  const Sequence& s_;
  const SequenceMask mask_;
  const Range tiles_, before_, after_;  // this chunk's, and those of its neighbours
  int64_t head_ = -1, tile_ = 0;
  RowTile t_;
};

void write_sink(const Shared& sh) {
  float* const grad_sink = sh.views.grad_sink.as<float>();
  for (int64_t head = 0; head < sh.p.heads_q; ++head) {
    double sum = sh.p.accumulate ? grad_sink[head] : 0;
    for (size_t i = head; i < sh.sink_partials.size(); i += sh.p.heads_q) sum += sh.sink_partials[i];
    grad_sink[head] = static_cast<float>(sum);
  }
}

}  // namespace

Result<void> run_backward(const Plan& plan, const Views& views, const InterruptWatch& watch) {
  try {
    Shared shared(plan, views, watch);
    const int64_t count = shared.chunks.count();
    const Scratch scratch(std::min(plan.threads, count), plan.scratch_bytes() / sizeof(float));
    if (scratch.threads() > 0 || count == 0) {
      for_each(count, scratch.threads(), watch, [&](int64_t number, int64_t thread) {
        ChunkId id;
        if (!shared.chunks.find(number, id)) return;
        TilesOfChunk tiles(shared, id);
        plan.kernel->differentiate(tiles.keys(scratch.of(thread)), tiles);
        tiles.finish();
      });
      if (plan.problem.sink) write_sink(shared);
      return {};
    }
  } catch (const std::bad_alloc&) {}  // nothing has been computed: for_each says when it may be thrown
  return Failure{
      FH_INTERNAL,
      text("the CPU needs {} KiB of memory a thread, and for sums of grad_q 16 MiB a thread or as much as one "
           "sequence and key head takes; the system gives no more. Free some.",
           plan.scratch_bytes() / 1024)};
}

}  // namespace froghopper::cpu
