// SPDX-License-Identifier: Apache-2.0
// cpu: the backward pass: distributes KV tiles to threads, and orders their additions to the same grad_q.
//
// The gradients of a key are summed in one KV tile, in the order of the rows. Those of a row are summed over the KV
// tiles, in the order of the keys: a KV tile takes a Q tile after the KV tile before it has finished that Q tile.
// Threads take KV tiles in rising order, so the one before is finished or running, and no thread waits for work that
// has not begun. Each sum thus has one order, and any number of threads gives the same bits.
//
// The first KV tile that takes a Q tile begins its sums, and the last one writes them to grad_q.
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
#include "src/cpu/gradient_work.hpp"
#include "src/cpu/kv_tiles.hpp"
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

// The least i of [0, count) for which is(i) holds, if it also holds for all i after that; count if there is none.
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
  SequenceMask(const Problem& p, const Sequence& s, int64_t kv_tile_keys)
      : p_(p), s_(s), kv_tile_keys_(kv_tile_keys) {}

  Visible keys_of(int64_t row) const {
    return row < s_.used_q ? visible_keys(p_, s_.used_q, s_.used_kv, row) : Visible{0, 0};
  }

  // Keys that some row attends to.
  Range attended_keys() const {
    const Range rows = rows_of(0, s_.used_kv);
    if (rows.begin >= rows.end) return {0, 0};
    return {keys_of(rows.begin).begin, keys_of(rows.end - 1).end};
  }

  // The Q tiles that a KV tile takes: those with a row that attends to one of its keys. Q tiles without such a row go
  // to the first KV tile, the last one, or the one after the gap, so that consecutive KV tiles take each Q tile. Both
  // ends of the range rise with the KV tile.
  Range q_tiles_of(int64_t kv_tile, int64_t kv_tiles) const {
    const int64_t end = kv_tile + 1 == kv_tiles ? q_tiles() : own_q_tiles(kv_tile).end;
    if (kv_tile == 0) return {0, end};
    return {std::min(own_q_tiles(kv_tile).begin, own_q_tiles(kv_tile - 1).end), end};
  }

  int64_t q_tiles() const { return ceil_div(s_.extent_q, q_tile_rows); }

 private:
  Range own_q_tiles(int64_t kv_tile) const {
    const Range rows = rows_of(kv_tile * kv_tile_keys_, std::min((kv_tile + 1) * kv_tile_keys_, s_.used_kv));
    const int64_t begin = rows.begin / q_tile_rows;
    return {begin, std::max(begin, ceil_div(rows.end, q_tile_rows))};
  }

  // Rows that attend to a key of [first, last).
  Range rows_of(int64_t first, int64_t last) const {
    return {first_that(s_.used_q, [&](int64_t i) { return keys_of(i).end > first; }),
            first_that(s_.used_q, [&](int64_t i) { return keys_of(i).begin >= last; })};
  }

  const Problem& p_;
  const Sequence& s_;
  int64_t kv_tile_keys_;
};

// What the threads of a call share.
class Shared {
 public:
  Shared(const Plan& plan, const Views& views, const InterruptWatch& watch)
      : p(plan.problem),
        views(views),
        watch(watch),
        kv_tile_keys(plan.tile_kv),
        kv_tiles(plan, views),
        group(p.heads_q / p.heads_kv),
        sum_row(row_floats(static_cast<int>(p.dim_qk))),
        slot_rows(group * kv_tiles.q_tiles_max() * q_tile_rows),
        done_(kv_tiles.slots() * kv_tiles.kv_tiles_max()) {
    sums_.reset(new (std::align_val_t{64}) float[kv_tiles.slots() * slot_rows * kv_tiles.sums_of_row() * sum_row]);
    deltas_.resize(kv_tiles.slots() * slot_rows);
    if (p.sink) sink_partials.resize(p.heads_q * (p.rows_q() == 0 ? 0 : p.batch));
  }

  float* sums(int64_t slot) const { return sums_.get() + slot * slot_rows * sum_row; }
  float* sums_of_span(int64_t slot) const {
    return kv_tiles.kv_tiles_of_span() > 1 ? sums(kv_tiles.slots() + slot) : nullptr;
  }
  float* deltas(int64_t slot) { return deltas_.data() + slot * slot_rows; }

  // The progress of each KV tile, in Q tiles of all its query heads, plus the counts of earlier waves of its slot.
  void wait(const KvTileId& id, int64_t kv_tile, int64_t tiles, int64_t wave) {
    std::atomic<int64_t>& done = done_[id.slot * kv_tiles.kv_tiles_max() + kv_tile];
    const int64_t wanted = wave * counts_of_wave() + tiles;
    for (int64_t now = done.load(); now < wanted; now = done.load()) done.wait(now);
  }
  void publish(const KvTileId& id, int64_t tiles) {
    std::atomic<int64_t>& done = done_[id.slot * kv_tiles.kv_tiles_max() + id.kv_tile];
    done.store(id.wave * counts_of_wave() + tiles);
    done.notify_all();
  }
  int64_t all_done() const { return group * most_tiles() + 1; }  // and so are the KV tiles before it

  const Problem& p;
  const Views& views;
  const InterruptWatch& watch;
  const int64_t kv_tile_keys;
  const KvTiles kv_tiles;
  const int64_t group;  // query heads of a KV head
  const int64_t sum_row, slot_rows;
  std::vector<double> sink_partials;  // [batch][heads_q]: grad_sink

 private:
  int64_t most_tiles() const { return p.extent_q() / q_tile_rows + 1; }
  int64_t counts_of_wave() const { return all_done() + 1; }

  struct Freed {
    void operator()(float* x) const { ::operator delete[](x, std::align_val_t{64}); }
  };
  std::unique_ptr<float[], Freed> sums_;
  std::vector<float> deltas_;
  std::vector<std::atomic<int64_t>> done_;
};

// The Q tiles of one KV tile, of each query head that shares the KV head.
class QTilesOfKvTile final : public QTiles {
 public:
  QTilesOfKvTile(Shared& shared, const KvTileId& id)
      : sh_(shared),
        id_(id),
        s_(id_.sequence),
        mask_(shared.p, s_, shared.kv_tile_keys),
        tiles_(mask_.q_tiles_of(id.kv_tile, id.kv_tiles)),
        before_(id.kv_tile == 0 ? Range{0, 0} : mask_.q_tiles_of(id.kv_tile - 1, id.kv_tiles)),
        after_(id.kv_tile + 1 == id.kv_tiles ? Range{mask_.q_tiles(), 0}
                                             : mask_.q_tiles_of(id.kv_tile + 1, id.kv_tiles)) {
    if (id_.kv_tile == 0 && id_.kv_tiles_before > 0)
      sh_.wait(id_, id_.kv_tiles_before - 1, sh_.all_done(), id_.wave - 1);
  }

  const QTile* next() override {
    if (head_ < 0) {
      head_ = 0, tile_ = tiles_.begin;
    } else {
      done();
      ++tile_;
    }
    if (tile_ >= tiles_.end) ++head_, tile_ = tiles_.begin;
    if (tiles_.begin >= tiles_.end || head_ == sh_.group || sh_.watch.asked()) return nullptr;
    if (id_.kv_tile > 0)
      sh_.wait(id_, id_.kv_tile - 1, head_ * mask_.q_tiles() + std::min(tile_ + 1, before_.end), id_.wave);
    fill();
    return &t_;
  }

  // After this another KV head may use the slot.
  void finish() {
    if (id_.kv_tile > 0) sh_.wait(id_, id_.kv_tile - 1, sh_.all_done(), id_.wave);
    sh_.publish(id_, sh_.all_done());
  }

  GradientWork keys(float* scratch) const {
    const Problem& p = sh_.p;
    const View& k = sh_.views.k;
    const View& v = sh_.views.v;
    const int64_t first = first_key(), row = s_.first_kv + first;
    const int64_t count = std::min(sh_.kv_tile_keys, s_.extent_kv - first);
    const Range attended = mask_.attended_keys();
    GradientWork c{};
    c.dtype = p.dtype;
    c.dim_qk = static_cast<int>(p.dim_qk), c.dim_v = static_cast<int>(p.dim_v);
    c.scale = p.scale, c.softcap = p.softcap;
    c.adds_to_q = p.adds_to_grad_q(), c.adds_to_kv = p.accumulate;
    c.scratch = scratch;
    if (count <= 0) return c;  // k and v may be empty then, and their strides anything
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
  int64_t first_key() const { return id_.kv_tile * sh_.kv_tile_keys; }
  int64_t head() const { return id_.head_kv * sh_.group + head_; }

  void done() {
    if (t_.first && sh_.p.sink && s_.used_q > 0) add_to_sink();
    sh_.publish(id_, head_ * mask_.q_tiles() + (tile_ + 1 == tiles_.end ? mask_.q_tiles() : tile_ + 1));
  }

  void fill() {
    const Views& views = sh_.views;
    const int64_t first = tile_ * q_tile_rows, row = s_.first_q + first;
    t_.rows = static_cast<int>(std::min<int64_t>(q_tile_rows, s_.extent_q - first));
    t_.q = views.q.address(s_.batch, row, head()), t_.stride_q = views.q.stride_seq;
    t_.o = views.o.address(s_.batch, row, head()), t_.stride_o = views.o.stride_seq;
    t_.grad_o = views.grad_o.address(s_.batch, row, head()), t_.stride_grad_o = views.grad_o.stride_seq;
    t_.grad_q = views.grad_q.address(s_.batch, row, head()), t_.stride_grad_q = views.grad_q.stride_seq;
    t_.gate = sh_.p.gate ? views.gate.address(s_.batch, row, head()) : nullptr,
    t_.stride_gate = views.gate.stride_seq;
    t_.grad_gate = views.grad_gate.address(s_.batch, row, head()), t_.stride_grad_gate = views.grad_gate.stride_seq;
    const View& slopes = views.alibi_slopes;  // rows of no sequence attend to nothing, and have none
    const bool sloped = sh_.p.alibi && s_.index < sh_.p.batch;
    t_.slope = sloped ? within_steepest(slopes.as<float>()[slopes.at(s_.index, 0, head())]) : 0;
    t_.diagonal = first + sh_.p.diagonal(s_.used_q, s_.used_kv) - first_key();
    t_.first = tile_ >= before_.end;
    t_.last = tile_ < after_.begin;
    // Where no row of a sequence attends to a key, one KV tile takes all Q tiles, which can share memory.
    const bool empty = s_.used_q == 0 || s_.used_kv == 0;
    const int64_t place = empty ? 0 : (head_ * mask_.q_tiles() + tile_) * q_tile_rows;
    t_.sum = sh_.sums(id_.slot) + place * sh_.sum_row;
    float* const of_spans = sh_.sums_of_span(id_.slot);
    t_.of_span = of_spans ? of_spans + place * sh_.sum_row : nullptr;
    t_.span_first = t_.first || id_.kv_tile % sh_.kv_tiles.kv_tiles_of_span() == 0;
    t_.span_last = t_.last || (id_.kv_tile + 1) % sh_.kv_tiles.kv_tiles_of_span() == 0;
    t_.index = head_ * mask_.q_tiles() + tile_;
    t_.delta = sh_.deltas(id_.slot) + place;
    for (int i = 0; i < t_.rows; ++i) fill_row(i, first + i);
  }

  void fill_row(int i, int64_t row) {
    const View& lse = sh_.views.lse;
    const View& grad_lse = sh_.views.grad_lse;
    const Visible keys = mask_.keys_of(row);
    const int64_t at = s_.first_q + row, end = std::min(first_key() + sh_.kv_tile_keys, s_.extent_kv);
    const bool attends = keys.begin < keys.end, may_in_others = sh_.p.adds_to_grad_q() && row < s_.used_q;
    t_.lse[i] = attends || may_in_others ? lse.as<float>()[lse.at(s_.batch, at, head())] : -infinity;
    t_.has_o[i] = t_.lse[i] != -infinity;
    t_.fully_masked[i] = !attends || !t_.has_o[i];
    if (t_.fully_masked[i]) t_.lse[i] = infinity;
    t_.grad_lse[i] = row < s_.used_q && grad_lse.data ? grad_lse.as<float>()[grad_lse.at(s_.batch, at, head())] : 0;
    const auto of_kv_tile = [&](int64_t key) {
      return t_.fully_masked[i] ? 0 : static_cast<int32_t>(std::clamp(key, first_key(), end) - first_key());
    };
    t_.begin[i] = of_kv_tile(keys.begin);
    t_.end[i] = of_kv_tile(keys.end);
  }

  // Rows are added in rising order, since Q tiles begin in rising order. In a row that attends to no key, the sink is
  // the whole denominator.
  void add_to_sink() {
    const double sink = sh_.views.sink.as<float>()[head()];
    double& sum = sh_.sink_partials[id_.index * sh_.p.heads_q + head()];
    for (int i = 0; i < t_.rows; ++i) {
      const int64_t row = tile_ * q_tile_rows + i;
      if (row >= s_.used_q || sink == -infinity) continue;
      const Visible keys = mask_.keys_of(row);
      const bool attends_to_none = keys.begin >= keys.end;
      const View& lses = sh_.views.lse;  // over all keys: those of other calls too
      const double lse = attends_to_none && !sh_.p.adds_to_grad_q()
                             ? sink
                             : lses.as<float>()[lses.at(s_.batch, s_.first_q + row, head())];
      if (lse == -infinity) continue;  // all its keys have weight 0
      sum -= std::exp(std::min(0.0, sink - lse)) * t_.delta[i];
    }
  }

  Shared& sh_;
  const KvTileId id_;
  const Sequence& s_;
  const SequenceMask mask_;
  const Range tiles_, before_, after_;  // the Q tiles of this KV tile, of the one before, of the one after
  int64_t head_ = -1, tile_ = 0;
  QTile t_;
};

void write_sink(const Shared& sh) {
  float* const grad_sink = sh.views.grad_sink.as<float>();
  for (int64_t head = 0; head < sh.p.heads_q; ++head) {
    double sum = sh.p.adds_to_grad_q() ? grad_sink[head] : 0;
    for (size_t i = head; i < sh.sink_partials.size(); i += sh.p.heads_q) sum += sh.sink_partials[i];
    grad_sink[head] = static_cast<float>(sum);
  }
}

}  // namespace

Result<void> run_backward(const Plan& plan, const Views& views, const InterruptWatch& watch) {
  try {
    Shared shared(plan, views, watch);
    const int64_t count = shared.kv_tiles.count();
    const Scratch scratch(std::min(plan.threads, count), plan.scratch_bytes() / sizeof(float));
    if (scratch.threads() > 0 || count == 0) {
      for_each(count, scratch.threads(), watch, [&](int64_t number, int64_t thread) {
        KvTileId id;
        if (!shared.kv_tiles.find(number, id)) return;
        QTilesOfKvTile tiles(shared, id);
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
