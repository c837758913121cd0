// SPDX-License-Identifier: Apache-2.0
// cpu: q, k and v -> numbers of 8 bits and their scales. Tiles of 128 rows of one head of one tensor are handed to
// threads. Where all rows of a sequence share a scale, all tiles are looked at first; before that, where k and v are
// smoothed, each mean is one thread's.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <new>
#include <vector>

#include "contract/quantise.h"
#include "src/base/ceil_div.hpp"
#include "src/base/text.hpp"
#include "src/cpu/cpu.hpp"
#include "src/cpu/quantise_work.hpp"
#include "src/cpu/scratch.hpp"
#include "src/cpu/sequences.hpp"
#include "src/cpu/threads.hpp"
#include "src/cpu/work.hpp"

namespace froghopper::cpu {
namespace {

constexpr int64_t quantised_dim = 256;  // at most

// One of q, k and v.
struct Part {
  const View *from, *to, *scale;
  const View* mean;  // null: none is taken out
  bool of_q;
  int block;           // of the rotation; 0: none
  int64_t first;       // number of its first tile
  int64_t first_mean;  // number of its first mean
  int64_t first_head;  // of the heads of all sequences
  // Tiles of a head before each sequence: where sequences have lengths of their own, bounds on them may be far above
  // all of them. Else empty, and each has `tiles`.
  std::vector<int64_t> before;
  int64_t tiles;

  int64_t tiles_before(int64_t sequence) const { return before.empty() ? sequence * tiles : before[sequence]; }
  int64_t tiles_of(int64_t sequence) const { return tiles_before(sequence + 1) - tiles_before(sequence); }
  int64_t sequence_of_tile(int64_t tile) const {  // of a head
    if (before.empty()) return tile / tiles;
    return std::upper_bound(before.begin(), before.end(), tile) - before.begin() - 1;
  }
};

class Parts {
 public:
  Parts(const Plan& plan, const Views& views) : p_(plan.problem), kernel_(*plan.kernel), views_(views) {
    const int dim = static_cast<int>(p_.dim_qk), block = p_.rotate ? rotation_block(dim) : 0;
    add(views.q, views.quantised_q, views.scale_q, /*mean=*/nullptr, /*of_q=*/true, block);
    add(views.k, views.quantised_k, views.scale_k, &views.mean_k, /*of_q=*/false, block);
    add(views.v, views.quantised_v, views.scale_v, &views.mean_v, /*of_q=*/false, /*block=*/0);
    for (int column = 0; p_.rotate && column < dim; ++column)
      factors_.push_back((rotation_flips(p_.rotate_seed, column) ? -1.0f : 1.0f) /
                         std::sqrt(static_cast<float>(block)));
    if (p_.scale_rows == 0) largest_ = std::vector<std::atomic<float>>(heads_);
    means_.resize(mean_count_ * quantised_dim);
  }

  int64_t tiles() const { return tiles_; }
  bool looks_first() const { return !largest_.empty(); }
  int64_t means() const { return mean_count_; }

  void take_mean(int64_t number, float* scratch) {
    const Part* part = &parts_.back();
    while (!part->mean || number < part->first_mean) --part;
    const int64_t heads = part->from->heads, dim = part->from->dim;
    const int64_t sequence = (number - part->first_mean) / heads, head = (number - part->first_mean) % heads;
    double sums[quantised_dim] = {};
    int64_t rows = 0;
    for (int64_t i = part->tiles_before(sequence); i < part->tiles_before(sequence + 1); ++i) {
      const Tile tile = tile_at(part->first + i * heads + head);
      if (tile.rows > 0) kernel_.add(rows_of(tile, scratch), sums);
      rows += tile.rows;
    }
    float* const mean = &means_[number * quantised_dim];
    for (int64_t c = 0; c < dim; ++c)
      mean[c] = rows > 0 ? static_cast<float>(sums[c] / static_cast<double>(rows)) : 0;
  }
  // Of q, k or v without rows.
  void write_of_empty() const {
    for (const auto& [from, scale] :
         {std::pair{&views_.q, &views_.scale_q}, {&views_.k, &views_.scale_k}, {&views_.v, &views_.scale_v}})
      if (from->empty()) fill(*scale, 1);
    for (const auto& [from, mean] : {std::pair{&views_.k, &views_.mean_k}, {&views_.v, &views_.mean_v}})
      if (from->empty()) fill(*mean, 0);
  }

  // The largest of all tiles of a head, whatever their order.
  void look(int64_t number, float* scratch) {
    const Tile tile = tile_at(number);
    if (tile.rows == 0) return;
    std::atomic<float>& largest = largest_[tile.of_head];
    const float here = kernel_.largest(rows_of(tile, scratch));
    for (float before = largest; before < here && !largest.compare_exchange_weak(before, here);) {}
  }
  void write(int64_t number, float* scratch) const {
    const Tile tile = tile_at(number);
    const RowsToQuantise rows = rows_of(tile, scratch);
    if (rows.mean && tile.number == 0) write_mean(tile, rows);
    float largest = tile.rows > 0 ? kernel_.largest(rows) : 0;
    if (looks_first()) largest = largest_[tile.of_head];
    const float scale = largest > 0 ? std::max(largest / largest_of(p_.dtype_kv), smallest_scale) : 1;
    const View& scales = *tile.part->scale;
    const auto put = [&](int64_t block, float x) {
      scales.as<float>()[scales.at(tile.sequence, block, tile.head)] = x;
    };
    if (tile.number < scales.seq) put(tile.number, scale);
    // Blocks past the sequence's last row have a scale all the same.
    for (int64_t block = tile.number + 1; tile.last && block < scales.seq; ++block) put(block, 1);
    if (tile.rows > 0) kernel_.quantise(rows, scale);
  }

 private:
  struct Tile {
    const Part* part;
    int64_t sequence, number, head;  // number: of the tile in its sequence
    int64_t of_head;                 // of those of all sequences
    bool last;                       // of the sequence
    int64_t batch, first;            // in memory
    int rows;                        // that count
  };

  void add(const View& from, const View& to, const View& scale, const View* mean, bool of_q, int block) {
    if (from.empty() || !from.data) return;
    if (!p_.smooth) mean = nullptr;
    // A sequence without rows has a tile too, for what is written of it.
    const auto tiles_for = [](int64_t rows) { return std::max<int64_t>(1, ceil_div(rows, quantise_rows)); };
    Part part{&from,
              &to,
              &scale,
              mean,
              of_q,
              block,
              tiles_,
              mean_count_,
              /*first_head=*/heads_,
              {},
              tiles_for(of_q ? p_.seq_q : p_.seq_kv)};
    if (p_.varlen || p_.seqused) {
      part.before.reserve(p_.batch + 1);
      part.before.push_back(0);
      for (int64_t b = 0; b < p_.batch; ++b) {
        const Sequence s = sequence_of(p_, views_, b);
        part.before.push_back(part.before.back() + tiles_for(of_q ? s.used_q : s.used_kv));
      }
    }
    tiles_ += part.tiles_before(p_.batch) * from.heads;
    heads_ += p_.batch * from.heads;
    if (mean) mean_count_ += p_.batch * from.heads;
    parts_.push_back(std::move(part));
  }

  static void fill(const View& to, float x) {
    for (int64_t b = 0; to.data && !to.empty() && b < to.batch; ++b)
      for (int64_t row = 0; row < to.seq; ++row)
        for (int64_t head = 0; head < to.heads; ++head) std::fill_n(to.as<float>() + to.at(b, row, head), to.dim, x);
  }

  // Heads of a tile's rows come one after the other, as they lie in memory.
  Tile tile_at(int64_t number) const {
    const Part* part = &parts_.back();
    while (number < part->first) --part;
    number -= part->first;
    const int64_t heads = part->from->heads, tile_of_head = number / heads, head = number % heads;
    const int64_t sequence = part->sequence_of_tile(tile_of_head);
    const Sequence s = sequence_of(p_, views_, sequence);
    const int64_t in_sequence = tile_of_head - part->tiles_before(sequence), row = in_sequence * quantise_rows;
    return {
        .part = part,
        .sequence = sequence,
        .number = in_sequence,
        .head = head,
        .of_head = part->first_head + sequence * heads + head,
        .last = in_sequence + 1 == part->tiles_of(sequence),
        .batch = s.batch,
        .first = (part->of_q ? s.first_q : s.first_kv) + row,
        .rows = static_cast<int>(std::clamp<int64_t>((part->of_q ? s.used_q : s.used_kv) - row, 0, quantise_rows))};
  }

  // As the copies have it: of rotated rows, rotated.
  void write_mean(const Tile& tile, RowsToQuantise row) const {
    row.from = Dtype::f32, row.rows = 1;
    row.source = row.mean, row.mean = nullptr;
    kernel_.largest(row);
    const View& mean = *tile.part->mean;
    std::copy_n(row.scratch, row.dim, mean.as<float>() + mean.at(tile.sequence, 0, tile.head));
  }

  RowsToQuantise rows_of(const Tile& tile, float* scratch) const {
    const Part& part = *tile.part;
    return {.from = p_.dtype,
            .to = p_.dtype_kv,
            .dim = static_cast<int>(part.from->dim),
            .rows = tile.rows,
            .source = part.from->address(tile.batch, tile.first, tile.head),
            .destination = part.to->address(tile.batch, tile.first, tile.head),
            .stride_from = part.from->stride_seq,
            .stride_to = part.to->stride_seq,
            .block = part.block,
            .factors = factors_.data(),
            .scratch = scratch,
            .mean = part.mean
                        ? &means_[(part.first_mean + tile.sequence * part.from->heads + tile.head) * quantised_dim]
                        : nullptr};
  }

  const Problem& p_;
  const Kernel& kernel_;
  const Views& views_;
  std::vector<Part> parts_;
  int64_t tiles_ = 0, mean_count_ = 0, heads_ = 0;
  std::vector<float> factors_;
  std::vector<std::atomic<float>> largest_;  // of each head, where the rows of a sequence share a scale
  std::vector<float> means_;                 // as they are taken out, before the rotation
};

}  // namespace

Result<void> run_quantise(const Plan& plan, const Views& views, const InterruptWatch& watch) {
  try {
    Parts parts(plan, views);
    const Scratch scratch(std::min(plan.threads, parts.tiles()), plan.scratch_bytes() / sizeof(float));
    if (scratch.threads() > 0 || parts.tiles() == 0) {
      for_each(parts.means(), scratch.threads(), watch,
               [&](int64_t mean, int64_t thread) { parts.take_mean(mean, scratch.of(thread)); });
      if (parts.looks_first())
        for_each(parts.tiles(), scratch.threads(), watch,
                 [&](int64_t tile, int64_t thread) { parts.look(tile, scratch.of(thread)); });
      for_each(parts.tiles(), scratch.threads(), watch,
               [&](int64_t tile, int64_t thread) { parts.write(tile, scratch.of(thread)); });
      parts.write_of_empty();
      return {};
    }
  } catch (const std::bad_alloc&) {}  // nothing has been written: for_each says when it may be thrown
  const Problem& p = plan.problem;
  const int64_t of_sequence = 24 + 4 * (p.heads_q + 2 * p.heads_kv) + (p.smooth ? 8 * p.heads_kv * quantised_dim : 0);
  return Failure{FH_INTERNAL,
                 text("the CPU needs {} KiB of memory a thread and up to {} bytes a sequence; the system "
                      "gives no more. Free some.",
                      plan.scratch_bytes() / 1024, of_sequence)};
}

}  // namespace froghopper::cpu
