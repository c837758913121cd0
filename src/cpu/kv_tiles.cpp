// SPDX-License-Identifier: Apache-2.0
// cpu: the order of KV tiles, and how many KV heads are computed at a time.
#include "src/cpu/kv_tiles.hpp"

#include <algorithm>

#include "src/base/ceil_div.hpp"
#include "src/cpu/gradient_work.hpp"

namespace froghopper::cpu {
namespace {

// Each thread has two slots, so that it finds a head on which no other thread works, but not more memory than this.
// With fewer slots threads work on the same head, one KV tile behind the other, which costs little where a head has
// many KV tiles.
constexpr int64_t slot_bytes_a_thread = 16 << 20;

}  // namespace

KvTiles::KvTiles(const Plan& plan, const Views& views)
    : p_(plan.problem), views_(views), kv_tile_keys_(plan.tile_kv) {
  if (p_.rows_q() + p_.rows_kv() == 0) return;  // the number of sequences is unbounded then
  for (int64_t i = 0; i < (p_.varlen ? sequences() : std::min<int64_t>(sequences(), 1)); ++i) {
    const Sequence s = sequence_of(p_, views_, i);
    kv_tiles_max_ = std::max(kv_tiles_max_, kv_tiles_of(s));
    if (s.used_q > 0 && s.used_kv > 0) q_tiles_max_ = std::max(q_tiles_max_, ceil_div(s.extent_q, q_tile_rows));
  }
  if (p_.seqused && !p_.varlen) q_tiles_max_ = ceil_div(p_.seq_q, q_tile_rows);
  q_tiles_max_ = std::max<int64_t>(q_tiles_max_, 1);
  if (kv_tiles_max_ > 1 && !plan.kernel->bf16_only)
    kv_tiles_of_span_ = std::max<int64_t>(1, span_keys(p_.dim_qk + p_.dim_v) / kv_tile_keys_);
  const int64_t group = p_.heads_q / p_.heads_kv, row = sums_of_row() * row_floats(static_cast<int>(p_.dim_qk)) + 1;
  const int64_t bytes = q_tiles_max_ * q_tile_rows * group * row * static_cast<int64_t>(sizeof(float));
  const int64_t affordable = std::max<int64_t>(1, plan.threads * slot_bytes_a_thread / bytes);
  slots_ = std::min({sequences() * p_.heads_kv, 2 * plan.threads, affordable});
  if (p_.varlen) {
    sort();
  } else {
    count_ = sequences() * p_.heads_kv * kv_tiles_max_;
  }
}

int64_t KvTiles::kv_tiles_of(const Sequence& s) const {
  return std::max<int64_t>(1, ceil_div(s.extent_kv, kv_tile_keys_));  // one without keys, which writes grad_q
}

void KvTiles::sort() {
  order_.resize(sequences());
  for (int64_t i = 0; i < sequences(); ++i) order_[i] = i;
  const auto kv_tiles = [&](int64_t index) { return kv_tiles_of(sequence_of(p_, views_, index)); };
  std::sort(order_.begin(), order_.end(), [&](int64_t a, int64_t b) {
    const int64_t of_a = kv_tiles(a), of_b = kv_tiles(b);
    return of_a != of_b ? of_a > of_b : a < b;
  });
  const int64_t heads = sequences() * p_.heads_kv;
  for (int64_t head = 0; head < heads; head += slots_) {
    first_.push_back(count_);
    count_ += kv_tiles(order_[head / p_.heads_kv]) * std::min(slots_, heads - head);
  }
}

KvTiles::Wave KvTiles::wave(int64_t number) const {
  const int64_t heads = sequences() * p_.heads_kv;
  if (first_.empty()) {
    const int64_t n = number / (slots_ * kv_tiles_max_), first = n * slots_;
    return {first, std::min(slots_, heads - first), kv_tiles_max_, n * slots_ * kv_tiles_max_};
  }
  const int64_t n = std::upper_bound(first_.begin(), first_.end(), number) - first_.begin() - 1, first = n * slots_;
  const int64_t end = n + 1 < static_cast<int64_t>(first_.size()) ? first_[n + 1] : count_;
  const int64_t here = std::min(slots_, heads - first);
  return {first, here, (end - first_[n]) / here, first_[n]};
}

bool KvTiles::find(int64_t number, KvTileId& id) const {
  const Wave wave = this->wave(number);
  const int64_t in_wave = number - wave.number, head = wave.first_head + in_wave % wave.heads;
  id.index = sequence_at(head / p_.heads_kv);
  id.sequence = sequence_of(p_, views_, id.index);
  id.head_kv = head % p_.heads_kv;
  id.kv_tile = in_wave / wave.heads;
  id.kv_tiles = kv_tiles_of(id.sequence);
  id.slot = head % slots_;
  id.wave = head / slots_;
  const int64_t before = head - slots_;
  id.kv_tiles_before = before < 0 ? 0 : kv_tiles_of(sequence_of(p_, views_, sequence_at(before / p_.heads_kv)));
  return id.kv_tile < id.kv_tiles;
}

}  // namespace froghopper::cpu
