// SPDX-License-Identifier: Apache-2.0
// cpu: the gradients of one chunk of keys, tile by tile of query rows, with vectors.
//
//   load     k and v of the chunk: k transposed, v transposed, k in rows
//   for every tile of query rows that sees a key of the chunk:
//     begin    the first chunk that has it: grad_q = 0, delta = o grad_o - grad_lse
//     load     its q and grad_o
//     for every block of keys, by the rows that see one of it:
//       score    s = q k, and the gradient of the weights, grad_o v
//       weigh    weights = e^(s - lse), grad_s = scale weights (gradient of the weights - delta)
//       add      grad_v += weights grad_o, grad_k += grad_s q, grad_q += grad_s k
//     finish   the last chunk that has it: grad_q rounded, in its place
//   finish   grad_k and grad_v back in rows, rounded, in their place
//
// Keys are lanes, as query rows are in the forward pass: k and v are transposed once for all rows that see them, and a
// row's lse and delta are one number for a vector. Scores come out of the same sums in the same order as in the
// forward pass, so that where that found one weight of 1 and others of 0, the backward pass finds the same.
#include "src/cpu/gradient_work.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#define HWY_IS_DEBUG_BUILD 0
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/cpu/gradients.cpp"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
#include "src/cpu/convert-inl.hpp"
#include "src/cpu/multiply-inl.hpp"
#include "src/cpu/weigh-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace froghopper::cpu::HWY_NAMESPACE {

class Gradients {
 public:
  Gradients(const KeyChunk& chunk, RowTiles& tiles) : c_(chunk), tiles_(tiles), free_(chunk.scratch) {}

  void run() {
    take_memory();
    load_keys();
    while (const RowTile* tile = tiles_.next()) {
      if (tile->fresh) begin(*tile);
      add(*tile);
      if (tile->last) finish(*tile);
    }
    finish_keys();
  }

 private:
  float* take(int floats) { return std::exchange(free_, free_ + floats); }

  void take_memory() {
    qk_row_ = row_floats(c_.dim_qk);
    v_row_ = row_floats(c_.dim_v);
    four_ = take(4 * 256);
    q_ = take(tile_rows * qk_row_);
    grad_o_ = take(tile_rows * v_row_);
    s_ = take(tile_rows * block_lanes);
    grad_s_ = take(tile_rows * block_lanes);
    const int keys = padded(c_.keys);
    k_rows_ = take(keys * qk_row_);
    k_ = take(keys * c_.dim_qk);
    v_ = take(keys * c_.dim_v);
    grad_k_ = take(keys * c_.dim_qk);
    grad_v_ = take(keys * c_.dim_v);
  }

  // Lanes are loaded and stored four at a time, and in whole vectors.
  static int padded(int keys) {
    constexpr int lane_group = std::max(4, vector_lanes);
    return (keys + lane_group - 1) / lane_group * lane_group;
  }
  int width_of(int block) const { return padded(std::min(block_lanes, c_.keys - block)); }

  // ---- Keys ----

  void load_keys() {
    std::fill_n(grad_k_, padded(c_.keys) * c_.dim_qk, 0.0f);
    std::fill_n(grad_v_, padded(c_.keys) * c_.dim_v, 0.0f);
    k_finite_ = true;
    for (int block = 0; block < c_.keys; block += block_lanes) {
      const int width = width_of(block);
      for (int lane = 0; lane < width; lane += 4) {
        for (int r = 0; r < 4; ++r) load_key(block + lane + r, four_ + r * 256, c_.v, c_.stride_v, c_.dim_v);
        transpose(four_, 256, 4, c_.dim_v, v_ + block * c_.dim_v + lane, width);
        float* const rows = k_rows_ + (block + lane) * qk_row_;
        for (int r = 0; r < 4; ++r) {
          load_key(block + lane + r, rows + r * qk_row_, c_.k, c_.stride_k, c_.dim_qk);
          std::fill(rows + r * qk_row_ + c_.dim_qk, rows + (r + 1) * qk_row_, 0.0f);
          k_finite_ = k_finite_ && all_finite(rows + r * qk_row_, c_.dim_qk);
        }
        transpose(rows, qk_row_, 4, c_.dim_qk, k_ + block * c_.dim_qk + lane, width);
      }
    }
  }

  // Keys that no row sees, and lanes that fill up the last vector, are 0: what lies there may be anything.
  void load_key(int key, float* to, const void* from, int64_t stride, int dim) const {
    if (key < c_.seen_begin || key >= c_.seen_end) {
      std::fill_n(to, dim, 0.0f);
    } else {
      to_floats(row(from, c_.dtype, stride, key), c_.dtype, dim, to);
    }
  }

  void finish_keys() {
    for (int block = 0; block < c_.keys; block += block_lanes) {
      const int width = width_of(block), keys = std::min(block_lanes, c_.keys - block);
      for (int lane = 0; lane < keys; lane += 4) {
        const int count = std::min(4, keys - lane), first = block + lane;
        store_keys(grad_k_ + block * c_.dim_qk + lane, width, c_.dim_qk, first, count, c_.grad_k, c_.stride_grad_k);
        store_keys(grad_v_ + block * c_.dim_v + lane, width, c_.dim_v, first, count, c_.grad_v, c_.stride_grad_v);
      }
    }
  }

  void store_keys(const float* from, int width, int dim, int first, int count, void* to, int64_t stride) const {
    transpose(from, width, dim, 4, four_, 256);
    for (int r = 0; r < count; ++r) store(four_ + r * 256, dim, row(to, stored(), stride, first + r));
  }

  Dtype stored() const { return c_.accumulate ? Dtype::f32 : c_.dtype; }

  void store(float* from, int dim, void* to) const {
    if (c_.accumulate) {
      const Eight d;
      const float* const before = static_cast<const float*>(to);
      for (int i = 0; i < dim; i += eight)
        hn::StoreU(hn::Add(hn::LoadU(d, before + i), hn::LoadU(d, from + i)), d, from + i);
    }
    from_floats(from, stored(), dim, to);
  }

  template <class Void>
  static Void* row(Void* first, Dtype dtype, int64_t stride, int64_t index) {
    using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
    return static_cast<Byte*>(first) + index * stride * size_of(dtype);
  }

  // ---- Rows ----

  void begin(const RowTile& t) const {
    for (int i = 0; i < t.rows; ++i) {
      std::fill_n(t.sum + i * qk_row_, qk_row_, 0.0f);
      t.delta[i] =
          (t.blind[i] ? 0 : product(row(t.o, c_.dtype, t.stride_o, i), row(t.grad_o, c_.dtype, t.stride_grad_o, i))) -
          t.grad_lse[i];
    }
  }

  float product(const void* o, const void* grad_o) const {
    to_floats(o, c_.dtype, c_.dim_v, four_);
    to_floats(grad_o, c_.dtype, c_.dim_v, four_ + 256);
    const Eight d;
    auto sum = hn::Zero(d);
    for (int i = 0; i < c_.dim_v; i += eight)
      sum = hn::MulAdd(hn::LoadU(d, four_ + i), hn::LoadU(d, four_ + 256 + i), sum);
    return hn::GetLane(hn::SumOfLanes(d, sum));
  }

  void finish(const RowTile& t) const {
    for (int i = 0; i < t.rows; ++i)
      store(t.sum + i * qk_row_, c_.dim_qk, row(t.grad_q, stored(), t.stride_grad_q, i));
  }

  void add(const RowTile& t) {
    bool loaded = false;
    for (int block = 0; block < c_.keys; block += block_lanes) {
      const int keys = std::min(block_lanes, c_.keys - block);
      const auto sees = [&](int i) { return t.begin[i] < t.end[i] && t.begin[i] < block + keys && t.end[i] > block; };
      int first = 0, last = t.rows;
      while (first < last && !sees(first)) ++first;
      while (first < last && !sees(last - 1)) --last;
      if (first == last) continue;
      if (!loaded) load_rows(t);
      loaded = true;
      turn(t, block, first, last);
    }
  }

  // Rows that see no key of the chunk are 0: what lies there may be anything.
  void load_rows(const RowTile& t) const {
    for (int i = 0; i < t.rows; ++i) {
      if (t.begin[i] < t.end[i]) {
        to_floats(row(t.q, c_.dtype, t.stride_q, i), c_.dtype, c_.dim_qk, q_ + i * qk_row_);
        to_floats(row(t.grad_o, c_.dtype, t.stride_grad_o, i), c_.dtype, c_.dim_v, grad_o_ + i * v_row_);
      } else {
        std::fill_n(q_ + i * qk_row_, c_.dim_qk, 0.0f);
        std::fill_n(grad_o_ + i * v_row_, c_.dim_v, 0.0f);
      }
    }
  }

  void turn(const RowTile& t, int block, int first, int last) {
    const int width = width_of(block), rows = last - first;
    score(q_ + first * qk_row_, qk_row_, c_.dim_qk, k_ + block * c_.dim_qk, s_, rows, width);
    score(grad_o_ + first * v_row_, v_row_, c_.dim_v, v_ + block * c_.dim_v, grad_s_, rows, width);
    RowSight sight[tile_rows];
    bool cut = false;
    for (int i = 0; i < rows; ++i) {
      sight[i] = {std::clamp(t.begin[first + i] - block, 0, width), std::clamp(t.end[first + i] - block, 0, width)};
      cut = cut || sight[i].begin > 0 || sight[i].end < width;
    }
    weigh({.s = s_,
           .grad_s = grad_s_,
           .rows = rows,
           .width = width,
           .scale = c_.scale,
           .softcap = c_.softcap,
           .lse = t.lse + first,
           .delta = t.delta + first,
           .sight = cut ? sight : nullptr});
    if (cut && !finite(first, last)) return add_guarded(t, block, first, last, sight);
    add_for_keys(s_, grad_o_ + first * v_row_, v_row_, rows, grad_v_ + block * c_.dim_v, c_.dim_v, width);
    add_for_keys(grad_s_, q_ + first * qk_row_, qk_row_, rows, grad_k_ + block * c_.dim_qk, c_.dim_qk, width);
    add_for_rows(k_rows_ + block * qk_row_, width, t.sum + first * qk_row_, rows);
  }

  static void score(const float* rows, size_t row, size_t dim, const float* keys, float* out, int count, int width) {
    multiply({.a = rows,
              .a_row = row,
              .a_step = 1,
              .b = keys,
              .b_step = static_cast<size_t>(width),
              .count = dim,
              .adds = false,
              .age = nullptr,
              .out = out,
              .out_row = static_cast<size_t>(width)},
             count, width);
  }

  // sum [dim][width] += x [rows][dim], transposed, times weights [rows][width].
  static void add_for_keys(const float* weights, const float* x, size_t x_row, size_t rows, float* sum, int dim,
                           int width) {
    multiply({.a = x,
              .a_row = 1,
              .a_step = x_row,
              .b = weights,
              .b_step = static_cast<size_t>(width),
              .count = rows,
              .adds = true,
              .age = nullptr,
              .out = sum,
              .out_row = static_cast<size_t>(width)},
             dim, width);
  }

  void add_for_rows(const float* k, int width, float* sum, int rows) const {
    multiply({.a = grad_s_,
              .a_row = static_cast<size_t>(width),
              .a_step = 1,
              .b = k,
              .b_step = static_cast<size_t>(qk_row_),
              .count = static_cast<size_t>(width),
              .adds = true,
              .age = nullptr,
              .out = sum,
              .out_row = static_cast<size_t>(qk_row_)},
             rows, padded(c_.dim_qk));
  }

  // 0 x inf and 0 x NaN are NaN, so that a weight of 0 does not hide a key from a row, nor a row from a key.
  bool finite(int first, int last) const {
    bool all = k_finite_;
    for (int i = first; all && i < last; ++i)
      all = all_finite(q_ + i * qk_row_, c_.dim_qk) && all_finite(grad_o_ + i * v_row_, c_.dim_v);
    return all;
  }

  void add_guarded(const RowTile& t, int block, int first, int last, const RowSight* sight) {
    const int width = width_of(block);
    for (int i = first; i < last; ++i) {
      const int at = (i - first) * width;
      const RowSight seen = sight[i - first];
      add_seen(s_ + at, seen, grad_o_ + i * v_row_, c_.dim_v, grad_v_ + block * c_.dim_v, width);
      add_seen(grad_s_ + at, seen, q_ + i * qk_row_, c_.dim_qk, grad_k_ + block * c_.dim_qk, width);
      float* const sum = t.sum + i * qk_row_;
      for (int j = seen.begin; j < seen.end; ++j) {
        const float* const k = k_rows_ + (block + j) * qk_row_;
        for (int c = 0; c < c_.dim_qk; ++c) sum[c] += grad_s_[at + j] * k[c];
      }
    }
  }

  static void add_seen(const float* weights, RowSight seen, const float* x, int dim, float* sum, int width) {
    for (int c = 0; c < dim; ++c) {
      for (int j = seen.begin; j < seen.end; ++j) sum[c * width + j] += weights[j] * x[c];
    }
  }

  const KeyChunk& c_;
  RowTiles& tiles_;
  float* free_;              // scratch not yet taken
  int qk_row_, v_row_;       // floats from row to row
  float* four_;              // rows on their way in or out
  float *q_, *grad_o_;       // a tile's, in rows
  float *s_, *grad_s_;       // [rows][width]: scores, then weights; the gradient of the weights, then of the scores
  float* k_rows_;            // in rows
  float *k_, *v_;            // block by block [dim][width]
  float *grad_k_, *grad_v_;  // the same
  bool k_finite_;
};

void differentiate(const KeyChunk& chunk, RowTiles& tiles) { Gradients(chunk, tiles).run(); }

}  // namespace froghopper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
