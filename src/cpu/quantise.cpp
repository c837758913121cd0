// SPDX-License-Identifier: Apache-2.0
// cpu: q, k and v -> numbers of 8 bits and their scales. Tiles of 128 rows of one head of one tensor are handed to
// threads. Where all rows of a sequence share a scale, all tiles are looked at first; before that, where k and v are
// smoothed, each mean is one thread's.
#include <algorithm>
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
  int64_t tiles;       // of the longest sequence, at least one
  int64_t first;       // number of its first tile
  int64_t first_mean;  // number of its first mean
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
    if (p_.scale_rows == 0) largest_.resize(tiles_);
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
    for (int64_t i = 0; i < part->tiles; ++i) {
      const Tile tile = tile_at(part->first + (sequence * part->tiles + i) * heads + head);
      if (tile.rows > 0) kernel_.add(rows_of(tile, scratch), sums);
      rows += tile.rows;
    }
    float* const mean = &means_[number * quantised_dim];
    for (int64_t c = 0; c < dim; ++c)
      mean[c] = rows > 0 ? static_cast<float>(sums[c] / static_cast<double>(rows)) : 0;
  }
  // Of k or v without rows.
  void write_empty_means() const {
    for (const auto& [from, mean] : {std::pair{&views_.k, &views_.mean_k}, {&views_.v, &views_.mean_v}})
      for (int64_t b = 0; mean->data && from->empty() && b < mean->batch; ++b)
        for (int64_t head = 0; head < mean->heads; ++head)
          std::fill_n(mean->as<float>() + mean->at(b, 0, head), mean->dim, 0.0f);
  }

  void look(int64_t number, float* scratch) {
    const Tile tile = tile_at(number);
    if (tile.rows > 0) largest_[number] = kernel_.largest(rows_of(tile, scratch));
  }
  void write(int64_t number, float* scratch) const {
    const Tile tile = tile_at(number);
    const RowsToNarrow rows = rows_of(tile, scratch);
    if (rows.mean && tile.number == 0) write_mean(tile, rows);
    float largest = tile.rows > 0 ? kernel_.largest(rows) : 0;
    if (looks_first()) {
      largest = 0;
      for (int64_t i = 0; i < tile.part->tiles; ++i)
        largest = std::max(largest, largest_[number + (i - tile.number) * tile.part->from->heads]);
    }
    const float scale = largest > 0 ? std::max(largest / largest_of(p_.dtype_kv), smallest_scale) : 1;
    const View& scales = *tile.part->scale;
    if (tile.number < scales.seq) scales.as<float>()[scales.at(tile.sequence, tile.number, tile.head)] = scale;
    if (tile.rows > 0) kernel_.narrow(rows, scale);
  }

 private:
  struct Tile {
    const Part* part;
    int64_t sequence, number, head;  // number: of the tile in its sequence
    int64_t batch, first;            // in memory
    int rows;                        // that count
  };

  void add(const View& from, const View& to, const View& scale, const View* mean, bool of_q, int block) {
    if (from.empty() || !from.data) return;
    if (!p_.smooth) mean = nullptr;
    const int64_t tiles = ceil_div(of_q ? p_.seq_q : p_.seq_kv, quantise_rows);
    parts_.push_back({&from, &to, &scale, mean, of_q, block, tiles, tiles_, mean_count_});
    tiles_ += p_.batch * tiles * from.heads;
    if (mean) mean_count_ += p_.batch * from.heads;
  }

  // Heads of a tile's rows come one after the other, as they lie in memory.
  Tile tile_at(int64_t number) const {
    const Part* part = &parts_.back();
    while (number < part->first) --part;
    number -= part->first;
    const int64_t heads = part->from->heads, of_head = number / heads;
    const Sequence s = sequence_of(p_, views_, of_head / part->tiles);
    Tile tile{part, of_head / part->tiles, of_head % part->tiles, number % heads, s.batch, 0, 0};
    const int64_t row = tile.number * quantise_rows;
    tile.first = (part->of_q ? s.first_q : s.first_kv) + row;
    tile.rows = static_cast<int>(std::clamp<int64_t>((part->of_q ? s.used_q : s.used_kv) - row, 0, quantise_rows));
    return tile;
  }

  // As the copies have it: of rotated rows, rotated.
  void write_mean(const Tile& tile, RowsToNarrow row) const {
    row.from = Dtype::f32, row.rows = 1;
    row.source = row.mean, row.mean = nullptr;
    kernel_.largest(row);
    const View& mean = *tile.part->mean;
    std::copy_n(row.scratch, row.dim, mean.as<float>() + mean.at(tile.sequence, 0, tile.head));
  }

  RowsToNarrow rows_of(const Tile& tile, float* scratch) const {
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
  int64_t tiles_ = 0, mean_count_ = 0;
  std::vector<float> factors_;
  std::vector<float> largest_;  // of each tile, where sequences share a scale
  std::vector<float> means_;    // as they are taken out, before the rotation
};

}  // namespace

Result<void> run_quantise(const Plan& plan, const Views& views) {
  try {
    Parts parts(plan, views);
    const Scratch scratch(std::min(plan.threads, parts.tiles()), plan.scratch_bytes() / sizeof(float));
    if (scratch.threads() > 0 || parts.tiles() == 0) {
      for_each(parts.means(), scratch.threads(),
               [&](int64_t mean, int64_t thread) { parts.take_mean(mean, scratch.of(thread)); });
      if (parts.looks_first())
        for_each(parts.tiles(), scratch.threads(),
                 [&](int64_t tile, int64_t thread) { parts.look(tile, scratch.of(thread)); });
      for_each(parts.tiles(), scratch.threads(),
               [&](int64_t tile, int64_t thread) { parts.write(tile, scratch.of(thread)); });
      parts.write_empty_means();
      return {};
    }
  } catch (const std::bad_alloc&) {}  // nothing has been written: for_each says when it may be thrown
  return Failure{FH_INTERNAL, text("the CPU needs {} KiB of memory a thread{}; the system gives no more. Free some.",
                                   plan.scratch_bytes() / 1024,
                                   plan.problem.scale_rows == 0 ? " and 4 bytes for every 128 rows of a head" : "")};
}

}  // namespace froghopper::cpu
