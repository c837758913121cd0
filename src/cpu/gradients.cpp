// SPDX-License-Identifier: Apache-2.0
// cpu: a work item of the backward pass: the gradients of one KV tile, Q tile by Q tile, with vectors.
//
//   load     k and v of the KV tile: both transposed, and k in rows
//   for every Q tile with a row that attends to the KV tile:
//     begin    in its first KV tile: grad_q = 0, delta = o grad_o - grad_lse, and grad_gate
//     load     its q and grad_o, by the gate where there is one
//     for every block of keys, and the rows that attend to it:
//       score    s = q k, and the gradient of the weights, grad_o v
//       weigh    weights = e^(s - lse), grad_s = scale weights (gradient of the weights - delta)
//       add      grad_v += weights grad_o, grad_k += grad_s q, grad_q += grad_s k
//     finish   in its last KV tile: grad_q is rounded and stored
//   finish   grad_k and grad_v are transposed to rows, rounded and stored
//
// Keys are lanes, as query rows are in the forward pass: k and v are transposed once for all rows that attend to them,
// and lse and delta of a row are broadcast. Scores are the forward pass's sums in its order, so that where that found a
// weight of 1 among zeros, the backward pass finds it too.
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
#include "src/cpu/pairs-inl.hpp"
#include "src/cpu/rows-inl.hpp"
#include "src/cpu/weigh-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace froghopper::cpu::HWY_NAMESPACE {

template <class Gemm>
class Gradients {
  using Element = typename Gemm::Element;
  static constexpr int per_element = Gemm::per_element;
  static constexpr bool in_floats = per_element == 1;
  // Rows of a sum that begins at 0, and Q tiles of a bunch. Pairs have larger errors anyway, from rounding to bf16.
  static constexpr int rows_together = in_floats ? 64 : q_tile_rows;
  static constexpr int64_t bunch_tiles = in_floats ? 8 : 64;

 public:
  Gradients(const GradientWork& work, QTiles& tiles)
      : w_(work),
        tiles_(tiles),
        free_(work.scratch),
        elements_qk_(work.dim_qk / per_element),
        elements_v_(work.dim_v / per_element),
        qk_row_(row_floats(work.dim_qk)),
        v_row_(row_floats(work.dim_v)),
        q_row_(row_floats(elements_qk_)),
        grad_o_row_(row_floats(elements_v_)) {}

  void run() {
    take_memory();
    load_keys();
    while (const QTile* tile = tiles_.next()) {
      if (tile->first) begin(*tile);
      const int64_t bunch = tile->index / bunch_tiles, before = std::exchange(bunch_, bunch);
      if (before >= 0 && before != bunch) flush_bunch();
      add(*tile);
      if (tile->last) finish(*tile);
    }
    if (any_flushed_) {
      flush_bunch();
      std::swap(grad_k_, total_k_), std::swap(grad_v_, total_v_);
    }
    finish_keys();
  }

 private:
  template <class T = float>
  T* take(int count) {
    static_assert(sizeof(T) == sizeof(float));
    return reinterpret_cast<T*>(std::exchange(free_, free_ + count));
  }

  void take_memory() {
    rows_ = take(4 * dim_max);
    q_ = take<Element>(q_tile_rows * q_row_);
    grad_o_ = take<Element>(q_tile_rows * grad_o_row_);
    s_ = take(q_tile_rows * block_lanes);
    grad_s_ = take(q_tile_rows * block_lanes);
    if constexpr (!in_floats) {
      q_across_ = take<Element>(q_tile_rows / 2 * qk_row_);
      grad_o_across_ = take<Element>(q_tile_rows / 2 * v_row_);
      weights_across_ = take<Element>(q_tile_rows / 2 * block_lanes);
      grad_s_across_ = take<Element>(q_tile_rows / 2 * block_lanes);
      grad_s_along_ = take<Element>(q_tile_rows * block_lanes / 2);
    }
    const int keys = padded(w_.keys);
    k_rows_ = take<Element>(elements(keys, per_element) * qk_row_);
    k_ = take<Element>(keys * elements_qk_);
    v_ = take<Element>(keys * elements_v_);
    grad_k_ = take(keys * w_.dim_qk);
    grad_v_ = take(keys * w_.dim_v);
    total_k_ = take(keys * w_.dim_qk);
    total_v_ = take(keys * w_.dim_v);
    of_kv_tile_ = take(q_tile_rows * qk_row_);
    guarded_ = take(block_lanes * std::max(w_.dim_qk, w_.dim_v));
  }

  int width_of(int block) const { return padded(std::min(block_lanes, w_.keys - block)); }

  void load_keys() {
    std::fill_n(grad_k_, padded(w_.keys) * w_.dim_qk, 0.0f);
    std::fill_n(grad_v_, padded(w_.keys) * w_.dim_v, 0.0f);
    k_finite_ = true;
    auto* const four = reinterpret_cast<Element*>(rows_);
    for (int block = 0; block < w_.keys; block += block_lanes) {
      const int width = width_of(block);
      for (int lane = 0; lane < width; lane += 4) {
        for (int r = 0; r < 4; ++r) load_key(block + lane + r, four + r * dim_max, w_.v, w_.stride_v, w_.dim_v);
        transpose(four, dim_max, 4, elements_v_, v_ + block * elements_v_ + lane, width);
        for (int r = 0; r < 4; ++r) load_key(block + lane + r, four + r * dim_max, w_.k, w_.stride_k, w_.dim_qk);
        transpose(four, dim_max, 4, elements_qk_, k_ + block * elements_qk_ + lane, width);
        for (int r = 0; r < 4; r += per_element) keep_k_rows(four + r * dim_max, block + lane + r);
      }
    }
    for (int j = w_.attended_begin; k_finite_ && j < w_.attended_end; ++j)
      k_finite_ = row_is_finite(row(w_.k, w_.stride_k, j), w_.dtype, w_.dim_qk);
  }

  void keep_k_rows(const Element* rows, int key) {
    Element* const to = k_rows_ + key / per_element * qk_row_;
    if constexpr (in_floats) {
      std::copy_n(rows, w_.dim_qk, to);
    } else {
      across(rows, rows + dim_max, w_.dim_qk, to);
    }
    std::fill(to + w_.dim_qk, to + qk_row_, Element{});
  }

  // Keys to which no row attends, and lanes that fill the last vector, are 0, since memory may hold anything there.
  void load_key(int key, Element* to, const void* from, int64_t stride, int dim) const {
    if (key < w_.attended_begin || key >= w_.attended_end) {
      std::fill_n(to, dim / per_element, Element{});
    } else {
      to_elements(row(from, stride, key), w_.dtype, dim, to);
    }
  }

  void flush_bunch() {  // of Q tiles
    move_to_total(grad_k_, padded(w_.keys) * w_.dim_qk, total_k_, any_flushed_);
    move_to_total(grad_v_, padded(w_.keys) * w_.dim_v, total_v_, any_flushed_);
    any_flushed_ = true;
  }

  void finish_keys() {
    for (int block = 0; block < w_.keys; block += block_lanes) {
      const int width = width_of(block), keys = std::min(block_lanes, w_.keys - block);
      for (int lane = 0; lane < keys; lane += 4) {
        const int count = std::min(4, keys - lane), first = block + lane;
        store_keys(grad_k_ + block * w_.dim_qk + lane, width, w_.dim_qk, first, count, w_.grad_k, w_.stride_grad_k);
        store_keys(grad_v_ + block * w_.dim_v + lane, width, w_.dim_v, first, count, w_.grad_v, w_.stride_grad_v);
      }
    }
  }

  void store_keys(const float* from, int width, int dim, int first, int count, void* to, int64_t stride) const {
    transpose(from, width, dim, 4, rows_, dim_max);
    for (int r = 0; r < count; ++r) store(rows_ + r * dim_max, dim, w_.adds_to_kv, to, stride, first + r);
  }

  Dtype stored(bool adds) const { return adds ? Dtype::f32 : w_.dtype; }
  void store(float* from, int dim, bool adds, void* to, int64_t stride, int64_t index) const {
    store_row(from, dim, stored(adds), adds, row_at(to, stored(adds), stride, index));
  }
  const void* row(const void* first, int64_t stride, int64_t index) const {
    return row_at(first, w_.dtype, stride, index);
  }

  void begin(const QTile& t) const {
    for (int i = 0; i < t.rows; ++i) {
      std::fill_n(t.sum + i * qk_row_, qk_row_, 0.0f);
      t.delta[i] = -t.grad_lse[i];
      if (t.has_o[i])
        t.delta[i] += dot_rows(row(t.o, t.stride_o, i), row(t.grad_o, t.stride_grad_o, i), w_.dtype, w_.dim_v);
      if (t.gate) store_grad_gate(t, i, w_.dtype, w_.dim_v);
    }
  }

  void finish(const QTile& t) const {
    for (int i = 0; i < t.rows; ++i)
      store(t.sum + i * qk_row_, w_.dim_qk, w_.adds_to_q, t.grad_q, t.stride_grad_q, i);
  }

  void add(const QTile& t) {
    bool loaded = false;
    const bool apart = in_floats && w_.keys > block_lanes && !t.of_span;
    row_sums_ = t.of_span ? t.of_span : apart ? of_kv_tile_ : t.sum;
    if (t.of_span && t.span_first) std::fill_n(t.of_span, t.rows * qk_row_, 0.0f);
    for (int block = 0; block < w_.keys; block += block_lanes) {
      const int keys = std::min(block_lanes, w_.keys - block);
      const auto attends = [&](int i) {
        return t.begin[i] < t.end[i] && t.begin[i] < block + keys && t.end[i] > block;
      };
      int first = 0, last = t.rows;
      while (first < last && !attends(first)) ++first;
      while (first < last && !attends(last - 1)) --last;
      if (first == last) continue;
      first -= first % per_element;  // whole elements
      last = std::min(t.rows, last + last % per_element);
      if (!loaded) load_rows(t);
      if (!loaded && apart) std::fill_n(of_kv_tile_, t.rows * qk_row_, 0.0f);
      loaded = true;
      iteration(t, block, first, last);
    }
    if (t.of_span ? t.span_last : loaded && apart) plus(row_sums_, 1, t.rows * qk_row_, t.sum);
  }

  const void* grad_o_of(const QTile& t, int i) { return gated_grad_o(t, i, w_.dtype, w_.dim_v, gated_); }

  // Rows that attend to no key of the KV tile are 0, since memory may hold anything there.
  void load_rows(const QTile& t) {
    rows_checked_ = false;
    for (int i = 0; i < q_tile_rows; ++i) {
      if (i < t.rows && t.begin[i] < t.end[i]) {
        to_elements(row(t.q, t.stride_q, i), w_.dtype, w_.dim_qk, q_ + i * q_row_);
        to_elements(grad_o_of(t, i), w_.dtype, w_.dim_v, grad_o_ + i * grad_o_row_);
      } else {
        std::fill_n(q_ + i * q_row_, elements_qk_, Element{});
        std::fill_n(grad_o_ + i * grad_o_row_, elements_v_, Element{});
      }
    }
    if constexpr (!in_floats) {
      auto* const four = reinterpret_cast<Element*>(rows_);
      lay_across<Gemm::tiles>(q_, q_row_, q_tile_rows, w_.dim_qk, q_across_, qk_row_, four);
      lay_across<Gemm::tiles>(grad_o_, grad_o_row_, q_tile_rows, w_.dim_v, grad_o_across_, v_row_, four);
    }
  }

  void iteration(const QTile& t, int block, int first, int last) {
    const int width = width_of(block), rows = last - first;
    score(q_ + first * q_row_, q_row_, elements_qk_, k_ + block * elements_qk_, s_, rows, width);
    score(grad_o_ + first * grad_o_row_, grad_o_row_, elements_v_, v_ + block * elements_v_, grad_s_, rows, width);
    RowMaskRange mask[q_tile_rows];
    bool boundary = false;
    for (int i = 0; i < rows; ++i) {
      mask[i] = {std::clamp(t.begin[first + i] - block, 0, width), std::clamp(t.end[first + i] - block, 0, width)};
      boundary = boundary || mask[i].begin > 0 || mask[i].end < width;
    }
    weigh({.s = s_,
           .grad_s = grad_s_,
           .rows = rows,
           .width = width,
           .scale = w_.scale,
           .softcap = w_.softcap,
           .lse = t.lse + first,
           .delta = t.delta + first,
           .mask = boundary ? mask : nullptr,
           .slope = t.slope,
           .diagonal = t.diagonal + first - block});
    if (boundary && !(k_finite_ && rows_finite(t))) return add_guarded(t, block, first, last, mask);
    add_to_grad_kv(rounded(s_, rows, width, weights_across_), first, rows, grad_o_, grad_o_across_, v_row_,
                   grad_v_ + block * w_.dim_v, w_.dim_v, width);
    add_to_grad_kv(rounded(grad_s_, rows, width, grad_s_across_), first, rows, q_, q_across_, qk_row_,
                   grad_k_ + block * w_.dim_qk, w_.dim_qk, width);
    add_to_grad_q(block, width, row_sums_ + first * qk_row_, rows);
  }

  static void score(const Element* rows, size_t row, size_t count, const Element* keys, float* out, int row_count,
                    int width) {
    Gemm::product({.a = rows,
                   .a_row = row,
                   .a_step = 1,
                   .b = keys,
                   .b_step = static_cast<size_t>(width),
                   .count = count,
                   .adds = false,
                   .rescale = nullptr,
                   .out = out,
                   .out_row = static_cast<size_t>(width)},
                  row_count, width);
  }

  // Weights, or gradients of scores, as elements of the second factor of a product.
  const Element* rounded(const float* x, int rows, int width, Element* to) const {
    if constexpr (in_floats) return x;
    round_rows_across(x, rows, width, reinterpret_cast<Pair*>(to));
    return to;
  }

  // sum [dim][width] += x [rows][dim], transposed, times weights [rows][width].
  void add_to_grad_kv(const Element* weights, int first, int rows, const Element* x, const Element* x_across,
                      size_t x_row, float* sum, int dim, int width) const {
    const Element* const from = in_floats     ? x + first * x_row
                                : Gemm::tiles ? x_across + first / 2
                                              : x_across + first / 2 * x_row;
    Factors<Element> f{.a = from,
                       .a_row = Gemm::tiles ? q_tile_rows / 2 : 1,
                       .a_step = Gemm::tiles ? 1 : x_row,
                       .b = weights,
                       .b_step = static_cast<size_t>(width),
                       .count = 0,
                       .adds = true,
                       .rescale = nullptr,
                       .out = sum,
                       .out_row = static_cast<size_t>(width)};
    for (int left = rows; left > 0; left -= rows_together, f.a += f.count * f.a_step, f.b += f.count * f.b_step) {
      f.count = static_cast<size_t>(elements(std::min(left, rows_together), per_element));
      Gemm::product(f, dim, width);
    }
  }

  void add_to_grad_q(int block, int width, float* sum, int rows) const {
    const Element* grad_s = grad_s_along_;
    if constexpr (in_floats) {
      grad_s = grad_s_;
    } else {
      floats_to_bf16(grad_s_, rows * width, reinterpret_cast<hwy::bfloat16_t*>(grad_s_along_));
    }
    Gemm::product({.a = grad_s,
                   .a_row = static_cast<size_t>(width / per_element),
                   .a_step = 1,
                   .b = k_rows_ + block / per_element * qk_row_,
                   .b_step = static_cast<size_t>(qk_row_),
                   .count = static_cast<size_t>(width / per_element),
                   .adds = true,
                   .rescale = nullptr,
                   .out = sum,
                   .out_row = static_cast<size_t>(qk_row_)},
                  rows, padded(w_.dim_qk));
  }

  // 0 x inf and 0 x NaN are NaN, so a weight of 0 does not keep a masked key out of a row, nor a row out of a key.
  bool rows_finite(const QTile& t) {
    if (rows_checked_) return rows_finite_;
    rows_checked_ = rows_finite_ = true;
    for (int i = 0; rows_finite_ && i < t.rows; ++i) {
      if (t.begin[i] < t.end[i])
        rows_finite_ = row_is_finite(row(t.q, t.stride_q, i), w_.dtype, w_.dim_qk) &&
                       row_is_finite(grad_o_of(t, i), w_.dtype, w_.dim_v);
    }
    return rows_finite_;
  }

  // In floats, one by one. Sums begin and end where those of the products do, so that other rows keep their bits.
  void add_guarded(const QTile& t, int block, int first, int last, const RowMaskRange* mask) {
    const int width = width_of(block);
    const auto for_keys = [&](const float* weights, const auto& row_of, int dim, float* sum) {
      for (int begin = first; begin < last; begin += rows_together) {
        std::fill_n(guarded_, dim * width, 0.0f);
        for (int i = begin; i < std::min(last, begin + rows_together); ++i)
          add_attended(weights + (i - first) * width, mask[i - first], row_of(i), w_.dtype, dim, guarded_, width);
        plus(guarded_, 1, dim * width, sum);
      }
    };
    for_keys(
        s_, [&](int i) { return grad_o_of(t, i); }, w_.dim_v, grad_v_ + block * w_.dim_v);
    for_keys(
        grad_s_, [&](int i) { return row(t.q, t.stride_q, i); }, w_.dim_qk, grad_k_ + block * w_.dim_qk);
    for (int i = first; i < last; ++i)
      add_attended_keys(grad_s_ + (i - first) * width, mask[i - first], row(w_.k, w_.stride_k, block), w_.stride_k,
                        w_.dtype, w_.dim_qk, row_sums_ + i * qk_row_);
  }

  const GradientWork& w_;
  QTiles& tiles_;
  float* free_;                         // scratch that is not in use yet
  const int elements_qk_, elements_v_;  // of a row of q or k; of o or v
  const int qk_row_, v_row_;            // row strides of k_rows_, sums and what is across
  const int q_row_, grad_o_row_;        // row strides of q_ and grad_o_
  float* rows_;                         // four rows before or after a transposition
  Element *q_, *grad_o_;                // the Q tile, in rows
  Element *q_across_ = nullptr, *grad_o_across_ = nullptr;
  float *s_, *grad_s_;  // [rows][width]: scores, then weights; the gradient of the weights, then of the scores
  Element *weights_across_ = nullptr, *grad_s_across_ = nullptr,
          *grad_s_along_ = nullptr;  // of floats: s_ and grad_s_
  Element* k_rows_;                  // in rows, or across
  Element *k_, *v_;                  // block by block [elements][width]
  float *grad_k_, *grad_v_;          // block by block [dim][width]
  float *total_k_, *total_v_;        // likewise, of earlier bunches
  float* guarded_;                   // [dim][width]
  int64_t bunch_ = -1;
  bool any_flushed_ = false;       // whether total_k_ and total_v_ hold a bunch
  float *of_kv_tile_, *row_sums_;  // grad_q of the Q tile: of this KV tile; what products add to
  bool k_finite_, rows_finite_, rows_checked_;
  float gated_[dim_max];  // the last grad_o_of
};

void differentiate_in_floats(const GradientWork& work, QTiles& tiles) { Gradients<InFloats>(work, tiles).run(); }
void differentiate_in_pairs(const GradientWork& work, QTiles& tiles) { Gradients<InPairs>(work, tiles).run(); }
#if HWY_TARGET == HWY_AVX3  // whose vectors tiles use
void differentiate_in_tiles(const GradientWork& work, QTiles& tiles) {
  Gradients<InTiles<multiply_tiles, true>>(work, tiles).run();
}
void differentiate_in_emulated_tiles(const GradientWork& work, QTiles& tiles) {
  Gradients<InTiles<multiply_emulated_tiles, false>>(work, tiles).run();
}
#endif

}  // namespace froghopper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
