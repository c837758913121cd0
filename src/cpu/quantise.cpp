// SPDX-License-Identifier: Apache-2.0
// cpu: quantises q, k and v to 8 bits, with scales. A work item is a tile: 128 rows of one head of one tensor. Where
// all rows of a sequence share a scale, a first pass finds the largest magnitudes; where k and v are smoothed, a pass
// before that finds the means, each on one thread.
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
struct Tensor {
  const View *from, *to, *scale;
  const View* mean;  // null: no mean is subtracted
  bool of_q;
  int block;           // columns of the rotation; 0: none
  int64_t first;       // index of its first tile
  int64_t first_mean;  // index of its first mean
  int64_t first_head;  // counted over all sequences
  // Tiles of a head before each sequence, where sequences have lengths of their own; seq_q and seq_kv may be far above
  // these. Else empty, and each sequence has `tiles`.
  std::vector<int64_t> before;
  int64_t tiles;

  int64_t tiles_before(int64_t sequence) const { return before.empty() ? sequence * tiles : before[sequence]; }
  int64_t tiles_of(int64_t sequence) const { return tiles_before(sequence + 1) - tiles_before(sequence); }
  int64_t sequence_of_tile(int64_t tile) const {  // of a head
    if (before.empty()) return tile / tiles;
    return std::upper_bound(before.begin(), before.end(), tile) - before.begin() - 1;
  }
};

class Quantiser {
 public:
  Quantiser(const Plan& plan, const Views& views) : p_(plan.problem), kernel_(*plan.kernel), views_(views) {
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
  bool scale_of_sequence() const { return !largest_.empty(); }
  int64_t means() const { return mean_count_; }

  void take_mean(int64_t index, float* scratch) {
    const Tensor* tensor = &tensors_.back();
    while (!tensor->mean || index < tensor->first_mean) --tensor;
    const int64_t heads = tensor->from->heads, dim = tensor->from->dim;
    const int64_t sequence = (index - tensor->first_mean) / heads, head = (index - tensor->first_mean) % heads;
    double sums[quantised_dim] = {};
    int64_t rows = 0;
    for (int64_t i = tensor->tiles_before(sequence); i < tensor->tiles_before(sequence + 1); ++i) {
      const Tile tile = tile_at(tensor->first + i * heads + head);
      if (tile.rows > 0) kernel_.add(rows_of(tile, scratch), sums);
      rows += tile.rows;
    }
    float* const mean = &means_[index * quantised_dim];
    for (int64_t c = 0; c < dim; ++c)
      mean[c] = rows > 0 ? static_cast<float>(sums[c] / static_cast<double>(rows)) : 0;
  }
  // For q, k or v without rows.
  void write_of_empty() const {
    for (const auto& [from, scale] :
         {std::pair{&views_.q, &views_.scale_q}, {&views_.k, &views_.scale_k}, {&views_.v, &views_.scale_v}})
      if (from->empty()) fill(*scale, 1);
    for (const auto& [from, mean] : {std::pair{&views_.k, &views_.mean_k}, {&views_.v, &views_.mean_v}})
      if (from->empty()) fill(*mean, 0);
  }

  // The largest magnitude of all tiles of a head, which is the same in any order.
  void find_largest(int64_t index, float* scratch) {
    const Tile tile = tile_at(index);
    if (tile.rows == 0) return;
    std::atomic<float>& largest = largest_[tile.of_head];
    const float here = kernel_.largest(rows_of(tile, scratch));
    for (float before = largest; before < here && !largest.compare_exchange_weak(before, here);) {}
  }
  void write(int64_t index, float* scratch) const {
    const Tile tile = tile_at(index);
    const RowsToQuantise rows = rows_of(tile, scratch);
    if (rows.mean && tile.index == 0) write_mean(tile, rows);
    float largest = tile.rows > 0 ? kernel_.largest(rows) : 0;
    if (scale_of_sequence()) largest = largest_[tile.of_head];
    const float scale = largest > 0 ? std::max(largest / largest_of(p_.dtype_kv), smallest_scale) : 1;
    const View& scales = *tile.tensor->scale;
    const auto put = [&](int64_t block, float x) {
      scales.as<float>()[scales.at(tile.sequence, block, tile.head)] = x;
    };
    if (tile.index < scales.seq) put(tile.index, scale);
    // Blocks after the last row of the sequence have a scale too.
    for (int64_t block = tile.index + 1; tile.last && block < scales.seq; ++block) put(block, 1);
    if (tile.rows > 0) kernel_.quantise(rows, scale);
  }

 private:
  struct Tile {
    const Tensor* tensor;
    int64_t sequence, index, head;  // index: of the tile in its sequence
    int64_t of_head;                // index of the head, counted over all sequences
    bool last;                      // of the sequence
    int64_t batch, first;           // its first row in memory
    int rows;                       // without padding
  };

  void add(const View& from, const View& to, const View& scale, const View* mean, bool of_q, int block) {
    if (from.empty() || !from.data) return;
    if (!p_.smooth) mean = nullptr;
    // A sequence without rows has a tile too, which writes its scales.
    const auto tiles_for = [](int64_t rows) { return std::max<int64_t>(1, ceil_div(rows, quantise_rows)); };
    Tensor tensor{&from,
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
      tensor.before.reserve(p_.batch + 1);
      tensor.before.push_back(0);
      for (int64_t b = 0; b < p_.batch; ++b) {
        const Sequence s = sequence_of(p_, views_, b);
        tensor.before.push_back(tensor.before.back() + tiles_for(of_q ? s.used_q : s.used_kv));
      }
    }
    tiles_ += tensor.tiles_before(p_.batch) * from.heads;
    heads_ += p_.batch * from.heads;
    if (mean) mean_count_ += p_.batch * from.heads;
    tensors_.push_back(std::move(tensor));
  }

  static void fill(const View& to, float x) {
    for (int64_t b = 0; to.data && !to.empty() && b < to.batch; ++b)
      for (int64_t row = 0; row < to.seq; ++row)
        for (int64_t head = 0; head < to.heads; ++head) std::fill_n(to.as<float>() + to.at(b, row, head), to.dim, x);
  }

  // Tiles with the same rows and different heads follow each other, as they do in memory.
  Tile tile_at(int64_t index) const {
    const Tensor* tensor = &tensors_.back();
    while (index < tensor->first) --tensor;
    index -= tensor->first;
    const int64_t heads = tensor->from->heads, tile_of_head = index / heads, head = index % heads;
    const int64_t sequence = tensor->sequence_of_tile(tile_of_head);
    const Sequence s = sequence_of(p_, views_, sequence);
    const int64_t in_sequence = tile_of_head - tensor->tiles_before(sequence), row = in_sequence * quantise_rows;
    return {
        .tensor = tensor,
        .sequence = sequence,
        .index = in_sequence,
        .head = head,
        .of_head = tensor->first_head + sequence * heads + head,
        .last = in_sequence + 1 == tensor->tiles_of(sequence),
        .batch = s.batch,
        .first = (tensor->of_q ? s.first_q : s.first_kv) + row,
        .rows = static_cast<int>(std::clamp<int64_t>((tensor->of_q ? s.used_q : s.used_kv) - row, 0, quantise_rows))};
  }

  // The mean as the quantised rows lack it: rotated if they are.
  void write_mean(const Tile& tile, RowsToQuantise row) const {
    row.from = Dtype::f32, row.rows = 1;
    row.source = row.mean, row.mean = nullptr;
    kernel_.largest(row);
    const View& mean = *tile.tensor->mean;
    std::copy_n(row.scratch, row.dim, mean.as<float>() + mean.at(tile.sequence, 0, tile.head));
  }

  RowsToQuantise rows_of(const Tile& tile, float* scratch) const {
    const Tensor& tensor = *tile.tensor;
    return {
        .from = p_.dtype,
        .to = p_.dtype_kv,
        .dim = static_cast<int>(tensor.from->dim),
        .rows = tile.rows,
        .source = tensor.from->address(tile.batch, tile.first, tile.head),
        .destination = tensor.to->address(tile.batch, tile.first, tile.head),
        .stride_from = tensor.from->stride_seq,
        .stride_to = tensor.to->stride_seq,
        .block = tensor.block,
        .factors = factors_.data(),
        .scratch = scratch,
        .mean = tensor.mean
                    ? &means_[(tensor.first_mean + tile.sequence * tensor.from->heads + tile.head) * quantised_dim]
                    : nullptr};
  }

  const Problem& p_;
  const Kernel& kernel_;
  const Views& views_;
  std::vector<Tensor> tensors_;
  int64_t tiles_ = 0, mean_count_ = 0, heads_ = 0;
  std::vector<float> factors_;
  std::vector<std::atomic<float>> largest_;  // by head of a sequence, where its rows share a scale
  std::vector<float> means_;                 // before the rotation
};

}  // namespace

Result<void> run_quantise(const Plan& plan, const Views& views, const InterruptWatch& watch) {
  try {
    Quantiser quantiser(plan, views);
    const Scratch scratch(std::min(plan.threads, quantiser.tiles()), plan.scratch_bytes() / sizeof(float));
    if (scratch.threads() > 0 || quantiser.tiles() == 0) {
      for_each(quantiser.means(), scratch.threads(), watch,
               [&](int64_t mean, int64_t thread) { quantiser.take_mean(mean, scratch.of(thread)); });
      if (quantiser.scale_of_sequence())
        for_each(quantiser.tiles(), scratch.threads(), watch,
                 [&](int64_t tile, int64_t thread) { quantiser.find_largest(tile, scratch.of(thread)); });
      for_each(quantiser.tiles(), scratch.threads(), watch,
               [&](int64_t tile, int64_t thread) { quantiser.write(tile, scratch.of(thread)); });
      quantiser.write_of_empty();
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
