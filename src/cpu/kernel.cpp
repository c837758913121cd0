// SPDX-License-Identifier: Apache-2.0
// cpu: attention of one forward work item, tile by tile, with vectors.
//
//   prologue  q of every block of lanes, transposed
//   for every KV tile that a lane attends to:
//     load    its k and v, as floats or pairs
//     for every block of lanes that attends to a key of it:
//       score    s = k q
//       softmax  weights = e^(s - row_max), see softmax-inl.hpp
//       output   o = rescale o + weights v
//   epilogue  o / row_sum, merged with earlier calls, rounded and in rows; lse. See epilogue-inl.hpp
//   again     with smaller weights, or in larger units of scores, where a sum or a score exceeds the largest float
//
// Sums and the softmax are in fp32, and products too, except that kernels of pairs or tiles of bf16 round the weights
// to bf16. The scales of 8-bit q and k are applied to the scores, those of v to the weights or to o.
#include "src/cpu/work.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

// Highway's headers are enough; its library adds the choice of a target and debug traps.
#define HWY_IS_DEBUG_BUILD 0
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/cpu/kernel.cpp"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
#include "src/cpu/block-inl.hpp"
#include "src/cpu/convert-inl.hpp"
#include "src/cpu/epilogue-inl.hpp"
#include "src/cpu/key_tile-inl.hpp"
#include "src/cpu/multiply-inl.hpp"
#include "src/cpu/pairs-inl.hpp"
#include "src/cpu/partials-inl.hpp"
#include "src/cpu/row-inl.hpp"
#include "src/cpu/softmax-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace froghopper::cpu::HWY_NAMESPACE {

// Sums of weights times v may exceed the largest float where o does not: 35 equal keys with v = 10^37 are enough. With
// weights 2^32 times smaller they cannot, since a sequence has fewer than 2^31 keys.
inline constexpr int weight_shift_when_too_large = 32;

// AMX adds up 16 pairs before it adds them to the sum: sums are equal only if these 32 keys begin at the same key.
inline constexpr int keys_together = 32;

// So that errors do not grow with the number of tiles, sums of so many keys, counted from key 0, are set aside.
inline constexpr int64_t keys_set_aside = 4096;

template <class Gemm>
class Attention {
  using Element = typename Gemm::Element;
  using Block = HWY_NAMESPACE::Block<Element>;
  static constexpr int per_element = Gemm::per_element;
  static constexpr bool in_floats = per_element == 1;

 public:
  explicit Attention(const Work& work)
      : w_(work),
        tile_kv_(work.tile_kv),
        lanes_of_head_(work.lane_count / work.heads),
        elements_qk_(work.dim_qk / per_element),
        free_(work.scratch),
        tile_(work, one_row()),
        epilogue_(work) {}

  void run() {
    prepare();
    const bool split = w_.partials || w_.partial_count > 0;  // all splits need the same score unit
    if (split) scale_scores();
    if (w_.partial_count > 0) {
      merge();
    } else {
      main_loop(0);
      if (!split && scores_overflow() && scale_scores()) main_loop(0);
      if (w_.partials)
        return each_partial(w_.partials, [](const Partial<Element>& partial, Block& b) { partial.save(b); });
    }
    finish();
    if (!epilogue_.too_large) return;
    main_loop(weight_shift_when_too_large);
    finish();
  }

 private:
  bool scores_overflow() const {
    return std::any_of(block_, block_ + blocks_, [](const Block& b) { return b.scores_overflow(); });
  }

  // From here on scores are in score units. false: these are 1.
  bool scale_scores() {
    bool scaled = false;
    for (int b = 0; b < blocks_; ++b) {
      if (w_.softcap == 0) block_[b].state.score_unit = score_unit_for(block_[b].scale, w_.alibi);
      scaled |= block_[b].state.score_unit != 1;
    }
    return scaled;
  }

  void merge() {
    reset(0);
    for (int i = 0; i < w_.partial_count; ++i)
      each_partial(w_.partials + i * w_.partial_stride,
                   [](const Partial<Element>& partial, Block& b) { partial.merge_into(b); });
  }

  void prepare() {
    epilogue_.rows = rows_ = take(4 * dim_max);
    make_blocks();
    auto* const k = take<Element>(tile_kv_ * elements_qk_);
    auto* const v = take<Element>(tile_kv_ / per_element * w_.dim_v);
    auto* const v_floats = in_floats ? reinterpret_cast<float*>(v) : take(tile_kv_ * w_.dim_v);
    auto* const scales_k = take(tile_kv_);
    auto* const scales_v = take(tile_kv_);
    float* const paged_k = w_.paged ? take(static_cast<int64_t>(gathered_floats(w_.dim_qk, tile_kv_))) : nullptr;
    float* const paged_v = w_.paged ? take(static_cast<int64_t>(gathered_floats(w_.dim_v, tile_kv_))) : nullptr;
    tile_.place({k, v, v_floats, scales_k, scales_v, reinterpret_cast<Element*>(rows_), paged_k, paged_v});
    // The memory of the scores is reused for a product that is added to o, and for a row of o.
    epilogue_.spare = s_ = take(std::max(std::max(tile_kv_, w_.dim_v) * block_lanes, dim_max));
    weights_ = in_floats ? reinterpret_cast<Element*>(s_) : take<Element>(tile_kv_ / per_element * block_lanes);
    set_aside_ = free_;
  }

  // Calls what(partial result in memory, block) for every block.
  template <class Do>
  void each_partial(float* memory, const Do& what) {
    for (int b = 0; b < blocks_; ++b) {
      what(Partial<Element>(block_[b], w_.dim_v, one_row(), memory), block_[b]);
      memory += partial_floats(w_.dim_v, block_[b].width);
    }
  }

  // Saves the state of all blocks, merged with what is set aside. last: restores it instead.
  void set_aside(bool last) {
    each_partial(set_aside_, [&](const Partial<Element>& partial, Block& b) {
      if (any_set_aside_) partial.merge_into(b);
      if (last) return;
      partial.save(b);
      std::fill_n(b.state.row_sum, block_lanes, 0.0f);
      b.fresh = true;
    });
    any_set_aside_ = !last;
  }

  // A single query row that shares its keys with no other: see row-inl.hpp. It attends to all keys of a tile.
  bool one_row() const { return in_floats && lanes_of_head_ == 1 && !w_.invariant; }

  template <class T = float>
  T* take(int count) {
    static_assert(sizeof(T) == sizeof(float));
    return reinterpret_cast<T*>(std::exchange(free_, free_ + count));
  }

  void make_blocks() {
    blocks_ = 0;
    begin_ = std::numeric_limits<int64_t>::max();
    end_ = 0;
    for (int first = 0; first < w_.lane_count; first += std::min(block_lanes, lanes_of_head_)) {
      Block& b = block_[blocks_++];
      b.lanes = w_.lanes + first;
      b.head = first / lanes_of_head_;
      b.count = std::min(block_lanes, (b.head + 1) * lanes_of_head_ - first);
      b.width = (b.count + lane_group - 1) / lane_group * lane_group;
      b.q = take<Element>(elements_qk_ * block_lanes);
      b.o = take(w_.dim_v * block_lanes);
      b.state = {.row_max = take(block_lanes),
                 .row_sum = take(block_lanes),
                 .rescale = take(block_lanes),
                 .weight_shift = 0};
      b.scales_q = take(block_lanes);
      b.mean_scores = take(block_lanes);
      b.scale = w_.scale;
      b.descales = false;
      b.find_keys();
      transpose_q(b);
      if (w_.of_heads[b.head].scales_k) find_scales(b);
      begin_ = std::min(begin_, b.begin);
      end_ = std::max(end_, b.end);
    }
    if (w_.invariant) begin_ -= begin_ % tile_kv_;                        // as for any other lanes
    if (w_.of_heads->scales_v.by_rows()) begin_ -= begin_ % per_element;  // no pair has two scales
  }

  void transpose_q(const Block& b) {
    if (one_row()) return load_q(b.lanes[0], b.q);
    auto* const rows = reinterpret_cast<Element*>(rows_);
    for (int i = 0; i < b.width; i += 4) {
      for (int r = 0; r < 4; ++r) load_q(b.lane(i + r), rows + r * dim_max);
      transpose(rows, dim_max, 4, elements_qk_, b.q + i, b.width);
    }
  }

  void load_q(const Lane& lane, Element* to) { to_elements(lane.q, w_.dtype, w_.dim_qk, to); }

  void find_scales(Block& b) {
    const auto& [scales_k, scales_v, mean, mean_v] = w_.of_heads[b.head];
    b.scale = static_cast<float>(double{w_.scale} * *scales_k.of_row(0) * b.lanes[0].scale_q);
    // With `invariant` the rounding must not depend on whether all lanes have the same scales.
    b.descales = w_.invariant || mean || scales_k.by_rows() || !std::isnormal(b.scale);
    for (int i = 0; i < b.width; ++i) {
      const Lane& lane = b.lane(i);
      b.scales_q[i] = lane.scale_q;
      b.descales |= lane.scale_q != b.lanes[0].scale_q;
      b.mean_scores[i] = 0;
      if (!mean) continue;
      to_floats(lane.q, w_.dtype, w_.dim_qk, rows_);
      b.mean_scores[i] = lane.scale_q * dot(rows_, mean, w_.dim_qk);
    }
    if (b.descales) b.scale = w_.scale;
  }

  void reset(int weight_shift) {
    for (int b = 0; b < blocks_; ++b) {
      block_[b].fresh = true;
      block_[b].state.weight_shift = weight_shift;
      std::fill_n(block_[b].state.row_max, block_lanes, minus_infinity);
      std::fill_n(block_[b].state.row_sum, block_lanes, 0.0f);
    }
  }

  void finish() {
    for (int b = 0; b < blocks_; ++b) epilogue_.block(block_[b], one_row());
  }

  void main_loop(int weight_shift) {
    reset(weight_shift);
    for (int64_t begin = begin_; begin < end_ && !w_.watch->asked(); begin += tile_kv_) {
      if (begin > begin_ && begin / keys_set_aside != (begin - tile_kv_) / keys_set_aside) set_aside(/*last=*/false);
      const int64_t end = std::min(begin + tile_kv_, end_);
      if (w_.heads == 1) tile_.load(0, begin, static_cast<int>(end - begin));
      tile_.prefetch(end, static_cast<int>(std::min<int64_t>(tile_kv_, end_ - end)));
      for (int b = 0; b < blocks_; ++b) {
        if (w_.heads > 1) tile_.load(block_[b].head, begin, static_cast<int>(end - begin));
        int64_t first = std::max(begin, block_[b].begin), last = std::min(end, block_[b].end);
        first -= (first - begin) % (w_.invariant ? keys_together : per_element);  // masked keys
        last = std::min(end, last + (last - begin) % per_element);
        if (first < last) iteration(block_[b], static_cast<int>(first - begin), static_cast<int>(last - first));
      }
    }
    if (any_set_aside_) set_aside(/*last=*/true);
  }

  // The iteration over the keys of the tile from its key `at` on.
  void iteration(Block& b, int at, int keys) {
    if constexpr (in_floats) {
      if (one_row()) return row_iteration(b, at, keys);
    }
    const int64_t first = tile_.first_key() + at;
    score(b, at, keys);
    if (b.descales) descale(s_, keys, b.width, tile_.scales_k() + at, b.scales_q, b.mean_scores);
    LaneMaskRange ranges;
    const LaneMaskRange* mask = nullptr;
    if (first < b.all_begin || first + keys > b.all_end) mask = &b.mask_range(first, keys, ranges);
    LaneSlopes lanes;
    const LaneSlopes* const slopes = w_.alibi ? &b.slopes(first, lanes) : nullptr;
    // 0 x inf and 0 x NaN are NaN: v is multiplied lane by lane then, with weights in floats.
    const Scales& scales = w_.of_heads[b.head].scales_v;
    const bool guarded = mask && !tile_.v_is_finite(), scaled = scales.by_rows(), by_token = scales.by_token();
    softmax<Gemm::rounds_by_instruction>(s_, keys, b.width, b.scale / b.state.score_unit, w_.softcap, mask, slopes,
                                         b.state, rounded(guarded || by_token));
    if (scaled && (guarded || in_floats || by_token)) scale_rows(s_, keys, b.width, tile_.scales_v() + at);
    if (guarded) {
      output_guarded(b, tile_.v_floats() + at * w_.dim_v, keys, *mask);
    } else if (scaled && !in_floats) {
      if constexpr (!in_floats) output_by_scales(b, at, keys);
    } else {
      output(b, at, keys, weights_, b.o, b.fresh ? nullptr : b.state.rescale, !b.fresh);
    }
    b.fresh = false;
  }

  // one_row() attends to all of these keys.
  void row_iteration(Block& b, int at, int keys) {
    const auto with = [&](const auto* k, int64_t k_row, const auto* v, int64_t v_row) {
      const Lane& lane = b.lanes[0];
      score_row(b.q, k, k_row, keys, w_.dim_qk, s_);
      if (b.descales) descale_row(s_, keys, tile_.scales_k() + at, *b.scales_q, *b.mean_scores);
      weigh_row(s_, keys, b.scale / b.state.score_unit, w_.softcap, lane.slope / b.state.score_unit,
                static_cast<float>(lane.diagonal - tile_.first_key() - at), b.state);
      if (w_.of_heads[b.head].scales_v.by_rows()) times_row(s_, keys, tile_.scales_v() + at);
      output_row(s_, v, v_row, keys, w_.dim_v, b.fresh ? 0 : b.state.rescale[0], b.o);
    };
    const auto in_place = [&]<class T>(const T*) {
      with(static_cast<const T*>(tile_.stored_k(at)), tile_.stride_k(), static_cast<const T*>(tile_.stored_v(at)),
           tile_.stride_v());
    };
    switch (w_.dtype_kv) {
      case Dtype::f32: in_place(static_cast<const float*>(nullptr)); break;
      case Dtype::f16: in_place(static_cast<const hwy::float16_t*>(nullptr)); break;
      case Dtype::bf16: in_place(static_cast<const hwy::bfloat16_t*>(nullptr)); break;
      case Dtype::e4m3: in_place(static_cast<const EightBits<Dtype::e4m3>*>(nullptr)); break;
      case Dtype::e5m2: in_place(static_cast<const EightBits<Dtype::e5m2>*>(nullptr)); break;
    }
    b.fresh = false;
  }

  void score(const Block& b, int first, int keys) {
    Gemm::product({.a = tile_.k() + first * tile_.k_row(),
                   .a_row = static_cast<size_t>(tile_.k_row()),
                   .a_step = 1,
                   .b = b.q,
                   .b_step = static_cast<size_t>(b.width),
                   .count = static_cast<size_t>(elements_qk_),
                   .adds = false,
                   .rescale = nullptr,
                   .out = s_,
                   .out_row = static_cast<size_t>(b.width)},
                  keys, b.width);
  }

  // The memory for weights in pairs; null: weights stay floats.
  Pair* rounded(bool guarded) const {
    if constexpr (!in_floats) return guarded ? nullptr : weights_;
    return nullptr;
  }

  // Weights in bf16 have too few digits for a scale, so each block of rows with one scale has a product of its own.
  // Where each row has its own, weights have it before they are rounded.
  void output_by_scales(const Block& b, int first, int keys) {
    const Scales& scales = w_.of_heads[b.head].scales_v;
    const float of_all = scales.by_token() ? round_scaled(s_, keys, b.width, tile_.scales_v() + first, weights_) : 0;
    bool adds = !b.fresh;
    const float* rescale = adds ? b.state.rescale : nullptr;
    for (int at = first, end; at < first + keys; at = end) {
      const int64_t beyond = scales.end_of_block(tile_.first_key() + at) - tile_.first_key();
      end = of_all > 0 ? first + keys : static_cast<int>(std::min<int64_t>(beyond, first + keys));
      output(b, at, end - at, weights_ + (at - first) / per_element * b.width, s_, nullptr, /*adds=*/false);
      add_scaled(s_, of_all > 0 ? of_all : tile_.scales_v()[at], w_.dim_v, b.width, adds,
                 std::exchange(rescale, nullptr), b.o);
      adds = true;
    }
  }

  // out = rescale out + v weights, for the keys of the tile from `first` on. weights: of these keys.
  void output(const Block& b, int first, int keys, const Element* weights, float* out, const float* rescale,
              bool adds) {
    const int begin = first / per_element;
    const size_t columns = w_.dim_v;
    Gemm::product({.a = tile_.v() + (Gemm::tiles ? begin : begin * w_.dim_v),
                   .a_row = Gemm::tiles ? tile_kv_ / 2 : 1,
                   .a_step = Gemm::tiles ? 1 : columns,
                   .b = weights,
                   .b_step = static_cast<size_t>(b.width),
                   .count = static_cast<size_t>(elements(keys, per_element)),
                   .adds = adds,
                   .rescale = rescale,
                   .out = out,
                   .out_row = static_cast<size_t>(b.width)},
                  w_.dim_v, b.width);
  }

  void output_guarded(const Block& b, const float* v, int keys, const LaneMaskRange& mask) {
    const Floats d;
    for (int lane = 0; lane < b.width; lane += vector_lanes) {
      for (int c = 0; c < w_.dim_v; ++c) {
        float* const o = b.o + c * b.width + lane;
        Vector sum = hn::Zero(d);
        for (int j = 0; j < keys; ++j) {
          const Vector weight = hn::Load(d, s_ + j * b.width + lane);
          sum = where_attended(mask, j, lane, hn::MulAdd(weight, hn::Set(d, v[j * w_.dim_v + c]), sum), sum);
        }
        if (!b.fresh) sum = hn::MulAdd(hn::Load(d, b.state.rescale + lane), hn::Load(d, o), sum);
        hn::Store(sum, d, o);
      }
    }
  }

  const Work& w_;
  const int tile_kv_, lanes_of_head_;
  const int elements_qk_;  // of a row of q or k
  float* free_;            // scratch that is not in use yet
  float *rows_, *s_;
  Element* weights_;  // where elements are floats: s
  float* set_aside_;  // partial results of all blocks
  bool any_set_aside_ = false;
  KeyTile<Gemm> tile_;
  Block block_[lanes_max / block_lanes];
  int blocks_;
  int64_t begin_, end_;  // keys that some lane attends to
  Epilogue<Element> epilogue_;
};

void attend_in_floats(const Work& work) { Attention<InFloats>(work).run(); }
void attend_in_pairs(const Work& work) { Attention<InPairs>(work).run(); }
#if HWY_TARGET == HWY_AVX3  // whose vectors tiles use
void attend_in_tiles(const Work& work) { Attention<InTiles<multiply_tiles, true>>(work).run(); }
void attend_in_emulated_tiles(const Work& work) { Attention<InTiles<multiply_emulated_tiles, false>>(work).run(); }
#endif

}  // namespace froghopper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
