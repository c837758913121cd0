// SPDX-License-Identifier: Apache-2.0
// cpu: attention of one piece of work, tile by tile, with vectors.
//
//   pack     q of every block of lanes, transposed
//   for every tile of keys that a lane sees:
//     load   its k and v, as floats
//     for every block of lanes that sees a key of it:
//       score    s = k q
//       softmax  weights = e^(s - largest so far), see softmax-inl.hpp
//       output   o = o aged + weights v
//   finish   o divided by the sum of weights, rounded, back in rows, merged with what was there if so asked; lse
//   again    with smaller weights, for what became too large for a float before it was divided
//
// Sums and the softmax are in fp32. So are products, also of f16 and bf16, but for kernels that multiply pairs of bf16
// numbers or tiles of them: these round the weights to bf16. 8-bit numbers are multiplied by their scales when they are
// loaded.
#include "src/cpu/work.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

// Highway's parts that are in its headers are enough: what its library adds is the choice of a target and debug traps.
#define HWY_IS_DEBUG_BUILD 0
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/cpu/kernel.cpp"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
#include "src/cpu/block-inl.hpp"
#include "src/cpu/convert-inl.hpp"
#include "src/cpu/finish-inl.hpp"
#include "src/cpu/multiply-inl.hpp"
#include "src/cpu/pairs-inl.hpp"
#include "src/cpu/row-inl.hpp"
#include "src/cpu/softmax-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace froghopper::cpu::HWY_NAMESPACE {

// Sums of weights times v may pass the largest float where o does not: 35 equal keys are enough for v = 10^37. With
// weights 2^32 times smaller they cannot, since a sequence has fewer than 2^31 keys. What that takes from the smallest
// floats does not matter next to sums of 2^128.
inline constexpr int less_when_too_large = 32;

// AMX adds up 16 pairs before it adds them to what is there: sums are the same only where these begin at the same key.
inline constexpr int keys_together = 32;

template <class Numbers>
class Attention {
  using Unit = typename Numbers::Unit;
  using Block = HWY_NAMESPACE::Block<Unit>;
  static constexpr int per_unit = Numbers::per_unit;
  static constexpr bool in_floats = per_unit == 1;

 public:
  explicit Attention(const Work& work)
      : w_(work),
        tile_kv_(work.tile_kv),
        lanes_of_head_(work.lane_count / work.heads),
        units_qk_(work.dim_qk / per_unit),
        free_(work.scratch),
        finish_(work) {}

  void run() {
    finish_.rows = rows_ = take(4 * dim_max);
    pack();
    k_tile_ = take<Unit>(tile_kv_ * units_qk_);
    v_tile_ = take<Unit>(tile_kv_ / per_unit * w_.dim_v);
    finish_.spare = s_ = take(std::max(tile_kv_ * block_lanes, dim_max));  // scores are not needed any more then
    weights_ = in_floats ? reinterpret_cast<Unit*>(s_) : take<Unit>(tile_kv_ / per_unit * block_lanes);
    v_floats_ = in_floats ? reinterpret_cast<float*>(v_tile_) : take(tile_kv_ * w_.dim_v);
    walk(0);
    if (finish_.too_large) walk(less_when_too_large);
  }

 private:
  // One query row without others that read its keys: see row-inl.hpp. All keys of a tile are seen then.
  bool one_row() const { return in_floats && lanes_of_head_ == 1 && !w_.invariant; }

  template <class T = float>
  T* take(int count) {
    static_assert(sizeof(T) == sizeof(float));
    return reinterpret_cast<T*>(std::exchange(free_, free_ + count));
  }

  void pack() {
    blocks_ = 0;
    begin_ = std::numeric_limits<int64_t>::max();
    end_ = 0;
    for (int first = 0; first < w_.lane_count; first += std::min(block_lanes, lanes_of_head_)) {
      Block& b = block_[blocks_++];
      b.lanes = w_.lanes + first;
      b.head = first / lanes_of_head_;
      b.count = std::min(block_lanes, (b.head + 1) * lanes_of_head_ - first);
      b.width = (b.count + lane_group - 1) / lane_group * lane_group;
      b.q = take<Unit>(units_qk_ * block_lanes);
      b.o = take(w_.dim_v * block_lanes);
      b.known = {take(block_lanes), take(block_lanes), take(block_lanes), 0};
      b.find_keys();
      pack_q(b);
      begin_ = std::min(begin_, b.begin);
      end_ = std::max(end_, b.end);
    }
    if (w_.invariant) begin_ -= begin_ % tile_kv_;  // tiles lie where they lie for other lanes
  }

  void pack_q(const Block& b) {
    if (one_row()) return load_q(b.lanes[0], b.q);
    auto* const rows = reinterpret_cast<Unit*>(rows_);
    for (int i = 0; i < b.width; i += 4) {
      for (int r = 0; r < 4; ++r) load_q(b.lane(i + r), rows + r * dim_max);
      transpose(rows, dim_max, 4, units_qk_, b.q + i, b.width);
    }
  }

  void load_q(const Lane& lane, Unit* to) {
    to_units(lane.q, w_.dtype, w_.dim_qk, to);
    if constexpr (in_floats) {
      if (lane.scale_q != 1) times(lane.scale_q, w_.dim_qk, to);
    }
  }

  void walk(int less) {
    for (int b = 0; b < blocks_; ++b) {
      block_[b].fresh = true;
      block_[b].known.less = less;
      std::fill_n(block_[b].known.largest, block_lanes, minus_infinity);
      std::fill_n(block_[b].known.sum, block_lanes, 0.0f);
    }
    for (int64_t begin = begin_; begin < end_; begin += tile_kv_) {
      const int64_t end = std::min(begin + tile_kv_, end_);
      if (w_.heads == 1) load(0, begin, static_cast<int>(end - begin));
      ask_for(end, static_cast<int>(std::min<int64_t>(tile_kv_, end_ - end)));
      for (int b = 0; b < blocks_; ++b) {
        if (w_.heads > 1) load(block_[b].head, begin, static_cast<int>(end - begin));
        int64_t first = std::max(begin, block_[b].begin), last = std::min(end, block_[b].end);
        first -= (first - begin) % (w_.invariant ? keys_together : per_unit);  // lanes do not see what that adds
        last = std::min(end, last + (last - begin) % per_unit);
        if (first < last) turn(block_[b], begin, first, static_cast<int>(last - first));
      }
    }
    for (int b = 0; b < blocks_; ++b) finish_.block(block_[b], one_row());
  }

  // k of fp32 is read where it lies. v is walked along columns, which in the user's strides would often fall on the
  // same few lines of the cache, so it gets a tile of its own, but for one row, which walks along rows.
  void load(int head, int64_t begin, int keys) {
    k_bytes_ = static_cast<const char*>(w_.k) + (head * w_.head_k + begin * w_.stride_k) * size_of(w_.dtype_kv);
    v_bytes_ = static_cast<const char*>(w_.v) + (head * w_.head_v + begin * w_.stride_v) * size_of(w_.dtype_kv);
    of_head_ = w_.of_heads + head;
    first_key_ = begin;
    keys_ = keys;
    v_floats_loaded_ = in_floats;
    v_finite_.reset();
    if (one_row() && !is_8_bit(w_.dtype_kv)) return;  // it reads them where they lie
    if constexpr (in_floats)
      load_v_floats();
    else
      load_v_pairs();
    load_k();
  }

  // The next tile's rows lie far apart, so that no processor guesses that they will be read: it is told, while this
  // tile is computed.
  void ask_for(int64_t begin, int keys) const {
    const auto ask = [&](const void* rows, int64_t stride, int64_t head_stride, int dim) {
      const int64_t row_bytes = stride * size_of(w_.dtype_kv), head_bytes = head_stride * size_of(w_.dtype_kv);
      const char* row = static_cast<const char*>(rows) + begin * row_bytes;
      for (int j = 0; j < keys; ++j, row += row_bytes)
        for (int head = 0; head < w_.heads; ++head)
          for (int at = 0; at < dim * size_of(w_.dtype_kv); at += 64)
            __builtin_prefetch(row + head * head_bytes + at, 0, 2);
    };
    ask(w_.k, w_.stride_k, w_.head_k, w_.dim_qk);
    ask(w_.v, w_.stride_v, w_.head_v, w_.dim_v);
  }

  const void* v_row(int j) const { return v_bytes_ + j * w_.stride_v * size_of(w_.dtype_kv); }

  void load_k() {
    if (in_floats && w_.dtype_kv == Dtype::f32) {
      k_ = reinterpret_cast<const Unit*>(k_bytes_);
      k_row_ = w_.stride_k;
      return;
    }
    for (int j = 0; j < keys_; ++j) {
      to_units(k_bytes_ + j * w_.stride_k * size_of(w_.dtype_kv), w_.dtype_kv, w_.dim_qk, k_tile_ + j * units_qk_);
      if constexpr (in_floats) scale_row(of_head_->scales_k, of_head_->mean_k, j, w_.dim_qk, k_tile_ + j * units_qk_);
    }
    k_ = k_tile_;
    k_row_ = units_qk_;
  }

  void load_v_floats() {
    for (int j = 0; j < keys_; ++j) {
      to_floats(v_row(j), w_.dtype_kv, w_.dim_v, v_floats_ + j * w_.dim_v);
      scale_row(of_head_->scales_v, of_head_->mean_v, j, w_.dim_v, v_floats_ + j * w_.dim_v);
    }
  }

  // Of k or v, key j of the tile.
  void scale_row(const Scales& scales, const float* mean, int j, int dim, float* row) const {
    if (!scales) return;
    const float* const scale = scales.of_row(first_key_ + j);
    if (scales.by_column()) {
      times(scale, dim, row);
    } else {
      times(*scale, dim, row);
    }
    if (mean) plus(mean, dim, row);
  }

  // Across, [keys / 2][dim_v]; for tiles transposed, [dim_v][tile_kv_ / 2]. A last key without a partner gets zeros.
  void load_v_pairs() {
    auto* const four = reinterpret_cast<Pair*>(rows_);
    const auto pair_row = [&](int j, Pair* to) {
      const uint16_t zeros[dim_max] = {};
      across(j < keys_ ? v_row(j) : zeros, j + 1 < keys_ ? v_row(j + 1) : zeros, w_.dim_v, to);
    };
    if constexpr (Numbers::tiles) {
      int j = 0;
#if HWY_TARGET == HWY_AVX3
      for (; w_.dim_v % 16 == 0 && j + 32 <= keys_; j += 32)
        for (int c = 0; c < w_.dim_v; c += 16)
          pairs_of_columns(static_cast<const char*>(v_row(j)) + c * 2, w_.stride_v * 2,
                           v_tile_ + c * (tile_kv_ / 2) + j / 2, tile_kv_ / 2);
#endif
      for (; j < keys_; j += 8) {
        for (int r = 0; r < 4; ++r) pair_row(j + 2 * r, four + r * dim_max);
        transpose(four, dim_max, 4, w_.dim_v, v_tile_ + j / 2, tile_kv_ / 2);
      }
    } else {
      for (int j = 0; j < keys_; j += 2) pair_row(j, v_tile_ + j / 2 * w_.dim_v);
    }
  }

  // keys of the tile that begins at key `tile`, from `first` on.
  void turn(Block& b, int64_t tile, int64_t first, int keys) {
    if constexpr (in_floats) {
      if (one_row()) return turn_of_row(b, tile, first, keys);
    }
    score(b, k_ + (first - tile) * k_row_, keys);
    LaneSight some;
    const LaneSight* sight = nullptr;
    if (first < b.all_begin || first + keys > b.all_end) sight = &look(b, first, keys, some);
    LaneSlopes lanes;
    const LaneSlopes* const slopes = w_.alibi ? &b.slopes(first, lanes) : nullptr;
    // 0 x inf and 0 x NaN are NaN: then weights are wanted as floats, and v is looked at lane by lane.
    const bool guarded = sight && !v_is_finite();
    softmax<Numbers::rounds_by_instruction>(s_, keys, b.width, w_.scale, w_.softcap, sight, slopes, b.known,
                                            rounded(guarded));
    if (guarded) {
      output_guarded(b, v_floats() + (first - tile) * w_.dim_v, keys, *sight);
    } else {
      output(b, static_cast<int>(first - tile), keys);
    }
    b.fresh = false;
  }

  // Of one_row(), which sees all of these keys.
  void turn_of_row(Block& b, int64_t tile, int64_t first, int keys) {
    const auto with = [&](const auto* k, int64_t k_row, const auto* v, int64_t v_row) {
      const Lane& lane = b.lanes[0];
      score_row(b.q, k + (first - tile) * k_row, k_row, keys, w_.dim_qk, s_);
      weigh_row(s_, keys, w_.scale, w_.softcap, lane.slope, static_cast<float>(lane.level - first), b.known);
      output_row(s_, v + (first - tile) * v_row, v_row, keys, w_.dim_v, b.fresh ? 0 : b.known.age[0], b.o);
    };
    const auto in_place = [&]<class T>(const T*) {
      with(reinterpret_cast<const T*>(k_bytes_), w_.stride_k, reinterpret_cast<const T*>(v_bytes_), w_.stride_v);
    };
    switch (w_.dtype_kv) {
      case Dtype::f32: in_place(static_cast<const float*>(nullptr)); break;
      case Dtype::f16: in_place(static_cast<const hwy::float16_t*>(nullptr)); break;
      case Dtype::bf16: in_place(static_cast<const hwy::bfloat16_t*>(nullptr)); break;
      case Dtype::e4m3:
      case Dtype::e5m2: with(k_, k_row_, v_floats_, w_.dim_v); break;
    }
    b.fresh = false;
  }

  static const LaneSight& look(const Block& b, int64_t first, int keys, LaneSight& sight) {
    for (int i = 0; i < b.width; ++i) {
      sight.begin[i] = static_cast<int32_t>(std::clamp<int64_t>(b.lane(i).begin - first, 0, keys));
      sight.end[i] = static_cast<int32_t>(std::clamp<int64_t>(b.lane(i).end - first, 0, keys));
    }
    return sight;
  }

  void score(const Block& b, const Unit* k, int keys) {
    Numbers::product({.a = k,
                      .a_row = static_cast<size_t>(k_row_),
                      .a_step = 1,
                      .b = b.q,
                      .b_step = static_cast<size_t>(b.width),
                      .count = static_cast<size_t>(units_qk_),
                      .adds = false,
                      .age = nullptr,
                      .out = s_,
                      .out_row = static_cast<size_t>(b.width)},
                     keys, b.width);
  }

  // Where weights in pairs go; null: they are wanted as floats.
  Pair* rounded(bool guarded) const {
    if constexpr (!in_floats) return guarded ? nullptr : weights_;
    return nullptr;
  }

  void output(const Block& b, int first, int keys) {
    const int begin = first / per_unit;
    const size_t columns = w_.dim_v;
    Numbers::product({.a = v_tile_ + (Numbers::tiles ? begin : begin * w_.dim_v),
                      .a_row = Numbers::tiles ? tile_kv_ / 2 : 1,
                      .a_step = Numbers::tiles ? 1 : columns,
                      .b = weights_,
                      .b_step = static_cast<size_t>(b.width),
                      .count = static_cast<size_t>(units(keys, per_unit)),
                      .adds = !b.fresh,
                      .age = b.fresh ? nullptr : b.known.age,
                      .out = b.o,
                      .out_row = static_cast<size_t>(b.width)},
                     w_.dim_v, b.width);
  }

  // Of the tile; asked only where a mask cuts it.
  bool v_is_finite() {
    if (!v_finite_) {
      v_finite_ = true;
      for (int j = 0; j < keys_ && *v_finite_; ++j)
        v_finite_ = in_floats ? all_finite(v_floats_ + j * w_.dim_v, w_.dim_v) : all_finite_bf16(v_row(j), w_.dim_v);
    }
    return *v_finite_;
  }

  const float* v_floats() {
    if (!v_floats_loaded_) load_v_floats();
    v_floats_loaded_ = true;
    return v_floats_;
  }

  // 0 x inf and 0 x NaN are NaN, so that a lane's weight of 0 does not hide a value which it must not see.
  void output_guarded(const Block& b, const float* v, int keys, const LaneSight& sight) {
    const Floats d;
    for (int lane = 0; lane < b.width; lane += vector_lanes) {
      for (int c = 0; c < w_.dim_v; ++c) {
        float* const o = b.o + c * b.width + lane;
        Vector sum = b.fresh ? hn::Zero(d) : hn::Mul(hn::Load(d, o), hn::Load(d, b.known.age + lane));
        for (int j = 0; j < keys; ++j) {
          const Vector weight = hn::Load(d, s_ + j * b.width + lane);
          sum = seen(sight, j, lane, hn::MulAdd(weight, hn::Set(d, v[j * w_.dim_v + c]), sum), sum);
        }
        hn::Store(sum, d, o);
      }
    }
  }

  const Work& w_;
  const int tile_kv_, lanes_of_head_;
  const int units_qk_;  // of a row
  float* free_;         // scratch not yet taken
  float *rows_, *s_;
  Unit *k_tile_, *v_tile_;
  Unit* weights_;    // of floats: s
  float* v_floats_;  // of the tile; where v_tile is in pairs, for numbers that are not finite
  bool v_floats_loaded_;
  std::optional<bool> v_finite_;    // of the tile, once it was asked
  const char *k_bytes_, *v_bytes_;  // the tile's first rows, as the user has them
  const OfHead* of_head_;           // whose tile it is
  int64_t first_key_;               // of the tile
  int keys_;                        // of the tile
  const Unit* k_;                   // the tile's first row of k
  int64_t k_row_;                   // units to the next
  Block block_[lanes_max / block_lanes];
  int blocks_;
  int64_t begin_, end_;  // keys that some lane sees
  Finish<Unit> finish_;
};

void attend_in_floats(const Work& work) { Attention<InFloats>(work).run(); }
void attend_in_pairs(const Work& work) { Attention<InPairs>(work).run(); }
#if HWY_TARGET == HWY_AVX3  // the vectors for tiles
void attend_in_tiles(const Work& work) { Attention<InTiles<multiply_tiles>>(work).run(); }
void attend_in_emulated_tiles(const Work& work) { Attention<InTiles<multiply_emulated_tiles>>(work).run(); }
#endif

}  // namespace froghopper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
