// SPDX-License-Identifier: Apache-2.0
// cpu: cuts a problem into pieces of work and hands them to threads.
//
// A piece is a run of lanes (see work.hpp) of one key head of one sequence, and each piece walks over all the keys that
// its lanes see. The lanes of a key head are its query rows, and within a row the query heads that share the key head.
#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <vector>

#include "src/base/ceil_div.hpp"
#include "src/base/text.hpp"
#include "src/cpu/cpu.hpp"
#include "src/cpu/scratch.hpp"
#include "src/cpu/sequences.hpp"
#include "src/cpu/threads.hpp"
#include "src/cpu/work.hpp"
#include "src/problem/mask.hpp"

namespace froghopper::cpu {
namespace {

constexpr float no_sink = -std::numeric_limits<float>::infinity(), nothing_seen = no_sink;

// Pieces for each thread, so that threads end within an eighth of their time of each other.
constexpr int64_t pieces_a_thread = 8;

// All pieces, numbered. Sequences with lengths of their own are in a list; others are all alike and need none.
class Cut {
 public:
  Cut(const Plan& plan, const Views& views)
      : p_(plan.problem), views_(views), block_lanes_(plan.kernel->block_lanes) {
    const int64_t fair = p_.rows_q() * p_.heads_q / (plan.threads * pieces_a_thread);
    piece_lanes_ = std::clamp<int64_t>(fair / block_lanes_ * block_lanes_, block_lanes_, plan.piece_lanes_most());
    group_ = p_.heads_q / std::max<int64_t>(1, p_.heads_kv);
    if (plan.side_by_side && views.k.stride_head < views.k.stride_seq) {  // else a head's rows follow each other
      heads_ = std::min({p_.heads_kv, plan.piece_lanes_most() / block_lanes_, int64_t{heads_most}});
      head_keys_ = keys_of_all() * static_cast<double>(p_.heads_kv) / static_cast<double>(2 * plan.threads);
    }
    if (p_.varlen || p_.seqused) {
      list();
    } else if (p_.batch > 0) {
      pieces_ = p_.batch * pieces_of(sequence_of(p_, views_, 0));
    }
  }

  struct Piece {
    Sequence sequence;
    int64_t head_kv, heads;  // the first of so many key heads
    int64_t first, count;    // lanes of each head
  };

  int64_t pieces() const { return pieces_; }
  int64_t group() const { return group_; }
  int64_t heads() const { return heads_; }  // of a piece, at most

  Piece piece(int64_t index) const {
    Sequence s;
    if (list_.empty()) {
      const int64_t each = pieces_ / p_.batch;
      s = sequence_of(p_, views_, index / each);
      index %= each;
    } else {
      const auto after = [](int64_t n, const Place& place) { return n < place.pieces_before; };
      const Place& place = *--std::upper_bound(list_.begin(), list_.end(), index, after);
      s = sequence_of(p_, views_, place.sequence);
      index -= place.pieces_before;
    }
    const int64_t of_head = pieces_of_head(s), number = index % of_head;
    // Under a bound that grows with the row, later rows see more keys: they come first.
    const int64_t first = piece_lanes_ * (p_.window_right == all_keys ? number : of_head - 1 - number);
    const int64_t heads = heads_of_piece(s), head_kv = index / of_head * heads;
    return {s, head_kv, std::min(heads, p_.heads_kv - head_kv), first,
            std::min(piece_lanes_, s.extent_q * group_ - first)};
  }

 private:
  struct Place {
    int64_t sequence;
    int64_t pieces_before;  // of the places before it; before they are known, how much work the sequence is
  };

  double keys_of_all() const {  // sequences
    if (!p_.varlen && !p_.seqused) return static_cast<double>(p_.batch) * static_cast<double>(p_.seq_kv);
    double keys = 0;
    for (int64_t b = 0; b < p_.batch; ++b) keys += static_cast<double>(sequence_of(p_, views_, b).used_kv);
    return keys;
  }

  int64_t pieces_of_head(const Sequence& s) const { return ceil_div(s.extent_q * group_, piece_lanes_); }
  // As many as leave two pieces a thread. Rows of no sequence may be more than a block's.
  int64_t heads_of_piece(const Sequence& s) const {
    if (s.extent_q * group_ > block_lanes_) return 1;
    const double fair = head_keys_ / static_cast<double>(std::max<int64_t>(s.used_kv, 1));
    return static_cast<int64_t>(std::clamp(fair, 1.0, static_cast<double>(heads_)));
  }
  int64_t pieces_of(const Sequence& s) const { return pieces_of_head(s) * ceil_div(p_.heads_kv, heads_of_piece(s)); }

  // Sequences with most work come first, so that no thread gets a long one last.
  void list() {
    constexpr int64_t most = std::numeric_limits<int32_t>::max();  // longer ones are alike; their product fits
    list_.reserve(p_.batch + 1);
    for (int64_t b = 0; b < p_.batch; ++b) {
      const Sequence s = sequence_of(p_, views_, b);
      list_.push_back({b, std::min(s.used_q, most) * std::min(s.used_kv, most)});
    }
    std::sort(list_.begin(), list_.end(), [](const Place& a, const Place& b) {
      return a.pieces_before != b.pieces_before ? a.pieces_before > b.pieces_before : a.sequence < b.sequence;
    });
    if (p_.varlen) list_.push_back({p_.batch, 0});
    for (Place& place : list_) {
      place.pieces_before = pieces_;
      pieces_ += pieces_of(sequence_of(p_, views_, place.sequence));
    }
  }

  const Problem& p_;
  const Views& views_;
  int64_t group_;  // query heads of a key head
  const int64_t block_lanes_;
  int64_t piece_lanes_;
  int64_t heads_ = 1;     // of a piece, at most
  double head_keys_ = 0;  // keys x key heads of a piece that has several heads
  int64_t pieces_ = 0;
  std::vector<Place> list_;
};

class Pieces {
 public:
  Pieces(const Plan& plan, const Views& views, const Cut& cut)
      : p_(plan.problem),
        kernel_(*plan.kernel),
        views_(views),
        cut_(cut),
        tile_kv_(static_cast<int>(plan.tile_kv)),
        largest_(p_.max_logit ? cut.pieces() * heads_of_pieces() : 0, nothing_seen) {}

  void attend(int64_t index, float* scratch) {
    const Cut::Piece piece = cut_.piece(index);
    const Sequence& s = piece.sequence;
    const bool keys = s.used_kv > 0;  // without one, k and v may be empty, and their strides anything
    Lane lanes[lanes_max];
    float* const largest = p_.max_logit ? &largest_[index * heads_of_pieces()] : nullptr;
    OfHead of_heads[heads_most];
    for (int64_t h = 0; h < piece.heads; ++h) {
      const int64_t head = piece.head_kv + h;
      of_heads[h] = {.scales_k = {p_, keys ? views_.scale_k : View{}, s.index, head},
                     .scales_v = {p_, keys ? views_.scale_v : View{}, s.index, head},
                     .mean_k = mean_of(views_.mean_k, s, head),
                     .mean_v = mean_of(views_.mean_v, s, head)};
      for (int64_t i = 0; i < piece.count; ++i)
        lanes[h * piece.count + i] = lane(s, head, piece.first + i, largest ? largest + h * cut_.group() : nullptr);
    }
    kernel_.attend({.dtype = p_.dtype,
                    .dtype_kv = p_.dtype_kv,
                    .dtype_o = p_.dtype_o,
                    .dim_qk = static_cast<int>(p_.dim_qk),
                    .dim_v = static_cast<int>(p_.dim_v),
                    .scale = p_.scale,
                    .softcap = p_.softcap,
                    .alibi = p_.alibi,
                    .invariant = p_.invariant,
                    .merges = p_.merges(),
                    .k = keys ? views_.k.address(s.batch, s.first_kv, piece.head_kv) : nullptr,
                    .v = keys ? views_.v.address(s.batch, s.first_kv, piece.head_kv) : nullptr,
                    .stride_k = views_.k.stride_seq,
                    .stride_v = views_.v.stride_seq,
                    .head_k = views_.k.stride_head,
                    .head_v = views_.v.stride_head,
                    .heads = static_cast<int>(piece.heads),
                    .tile_kv = tile_kv_,
                    .of_heads = of_heads,
                    .lanes = lanes,
                    .lane_count = static_cast<int>(piece.heads * piece.count),
                    .scratch = scratch});
  }

  // Once all pieces are there: the largest of those of each sequence and head. In any order, so with any threads the
  // same.
  void put_max_logit() const {
    if (!p_.max_logit) return;
    auto* const to = views_.max_logit.as<float>();
    if (!p_.merges()) std::fill_n(to, p_.batch * p_.heads_q, nothing_seen);
    for (int64_t index = 0; index < cut_.pieces(); ++index) {
      const Cut::Piece piece = cut_.piece(index);
      if (piece.sequence.index >= p_.batch) continue;  // rows of no sequence
      float* const of_group = to + piece.sequence.index * p_.heads_q + piece.head_kv * cut_.group();
      for (int64_t h = 0; h < piece.heads * cut_.group(); ++h)
        of_group[h] = std::max(of_group[h], largest_[index * heads_of_pieces() + h]);
    }
  }

 private:
  int64_t heads_of_pieces() const { return cut_.heads() * cut_.group(); }  // query heads, at most

  static const float* mean_of(const View& means, const Sequence& s, int64_t head) {
    return means.data && s.used_kv > 0 ? means.as<float>() + means.at(s.index, 0, head) : nullptr;
  }

  // largest: of each head of the group; null: not wanted.
  Lane lane(const Sequence& s, int64_t head_kv, int64_t index, float* largest) const {
    const int64_t i = index / cut_.group(), head = head_kv * cut_.group() + index % cut_.group();
    const int64_t row = s.first_q + i;
    const Visible visible = i < s.used_q ? visible_keys(p_, s.used_q, s.used_kv, i) : Visible{0, 0};
    return {.q = views_.q.address(s.batch, row, head),
            .o = views_.o.address(s.batch, row, head),
            .lse = views_.lse.data ? reinterpret_cast<float*>(views_.lse.address(s.batch, row, head)) : nullptr,
            .max_logit = largest ? largest + index % cut_.group() : nullptr,
            .begin = visible.begin,
            .end = visible.end,
            .scale_q = i < s.used_q ? Scales(p_, views_.scale_q, s.index, head).at(i, 0) : 1,
            .slope = p_.alibi ? views_.alibi_slopes.as<float>()[views_.alibi_slopes.at(slopes_of(s), 0, head)] : 0,
            .level = i + p_.diagonal(s.used_q, s.used_kv),
            .sink = i < s.used_q ? logit_beside(s, row, head) : no_sink};
  }

  // Rows of no sequence see nothing; any slope will do.
  int64_t slopes_of(const Sequence& s) const { return s.index < p_.batch ? s.index : 0; }

  float logit_beside(const Sequence& s, int64_t row, int64_t head) const {
    if (p_.merges()) return views_.lse.as<float>()[views_.lse.at(s.batch, row, head)];
    return p_.sink ? views_.sink.as<float>()[head] : no_sink;
  }

  const Problem& p_;
  const Kernel& kernel_;
  const Views& views_;
  const Cut& cut_;
  const int tile_kv_;
  std::vector<float> largest_;  // scores of each piece, by query head
};

}  // namespace

Result<void> run_forward(const Plan& plan, const Views& views) {
  try {
    const Cut cut(plan, views);
    const Scratch scratch(std::min(plan.threads, cut.pieces()), plan.scratch_bytes() / sizeof(float));
    if (scratch.threads() > 0 || cut.pieces() == 0) {
      Pieces pieces(plan, views, cut);
      for_each(cut.pieces(), scratch.threads(),
               [&](int64_t piece, int64_t thread) { pieces.attend(piece, scratch.of(thread)); });
      pieces.put_max_logit();
      return {};
    }
  } catch (const std::bad_alloc&) {}  // nothing has been computed: for_each says when it may be thrown
  return Failure{FH_INTERNAL, text("the CPU needs {} KiB of memory a thread{}; the system gives no more. Free some.",
                                   plan.scratch_bytes() / 1024,
                                   plan.problem.varlen || plan.problem.seqused ? " and 16 bytes a sequence" : "")};
}

}  // namespace froghopper::cpu
