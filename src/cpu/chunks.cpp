// SPDX-License-Identifier: Apache-2.0
// cpu: the order of chunks, and how many pairs are in work at a time.
#include "src/cpu/chunks.hpp"

#include <algorithm>

#include "src/base/ceil_div.hpp"
#include "src/cpu/gradient_work.hpp"

namespace froghopper::cpu {
namespace {

// Two pairs for each thread, so that a thread finds one on which nobody works, but not more memory than this for each
// thread: then threads work on the same pair, one chunk behind the other, which costs them little where a pair has
// many chunks.
constexpr int64_t slot_bytes_a_thread = 16 << 20;

}  // namespace

Chunks::Chunks(const Plan& plan, const Views& views) : p_(plan.problem), views_(views), chunk_keys_(plan.tile_kv) {
  if (p_.rows_q() + p_.rows_kv() == 0) return;  // then there may be any number of sequences
  for (int64_t i = 0; i < (p_.varlen ? sequences() : std::min<int64_t>(sequences(), 1)); ++i) {
    const Sequence s = sequence_of(p_, views_, i);
    chunks_max_ = std::max(chunks_max_, chunks_of(s));
    if (s.used_q > 0 && s.used_kv > 0) tiles_max_ = std::max(tiles_max_, ceil_div(s.extent_q, tile_rows));
  }
  if (p_.seqused && !p_.varlen) tiles_max_ = ceil_div(p_.seq_q, tile_rows);
  tiles_max_ = std::max<int64_t>(tiles_max_, 1);
  if (chunks_max_ > 1 && !plan.kernel->bf16_only)
    chunks_of_span_ = std::max<int64_t>(1, span_keys(p_.dim_qk + p_.dim_v) / chunk_keys_);
  const int64_t group = p_.heads_q / p_.heads_kv, row = sums_of_row() * row_floats(static_cast<int>(p_.dim_qk)) + 1;
  const int64_t bytes = tiles_max_ * tile_rows * group * row * static_cast<int64_t>(sizeof(float));
  const int64_t affordable = std::max<int64_t>(1, plan.threads * slot_bytes_a_thread / bytes);
  slots_ = std::min({sequences() * p_.heads_kv, 2 * plan.threads, affordable});
  if (p_.varlen) {
    sort();
  } else {
    count_ = sequences() * p_.heads_kv * chunks_max_;
  }
}

int64_t Chunks::chunks_of(const Sequence& s) const {
  return std::max<int64_t>(1, ceil_div(s.extent_kv, chunk_keys_));  // without keys, for what is written for rows
}

void Chunks::sort() {
  order_.resize(sequences());
  for (int64_t i = 0; i < sequences(); ++i) order_[i] = i;
  const auto chunks = [&](int64_t index) { return chunks_of(sequence_of(p_, views_, index)); };
  std::sort(order_.begin(), order_.end(), [&](int64_t a, int64_t b) {
    const int64_t of_a = chunks(a), of_b = chunks(b);
    return of_a != of_b ? of_a > of_b : a < b;
  });
  const int64_t pairs = sequences() * p_.heads_kv;
  for (int64_t pair = 0; pair < pairs; pair += slots_) {
    first_.push_back(count_);
    count_ += chunks(order_[pair / p_.heads_kv]) * std::min(slots_, pairs - pair);
  }
}

Chunks::Wave Chunks::wave(int64_t number) const {
  const int64_t pairs = sequences() * p_.heads_kv;
  if (first_.empty()) {
    const int64_t n = number / (slots_ * chunks_max_), first = n * slots_;
    return {first, std::min(slots_, pairs - first), chunks_max_, n * slots_ * chunks_max_};
  }
  const int64_t n = std::upper_bound(first_.begin(), first_.end(), number) - first_.begin() - 1, first = n * slots_;
  const int64_t end = n + 1 < static_cast<int64_t>(first_.size()) ? first_[n + 1] : count_;
  const int64_t here = std::min(slots_, pairs - first);
  return {first, here, (end - first_[n]) / here, first_[n]};
}

bool Chunks::find(int64_t number, ChunkId& id) const {
  const Wave wave = this->wave(number);
  const int64_t in_wave = number - wave.number, pair = wave.first_pair + in_wave % wave.pairs;
  id.index = sequence_at(pair / p_.heads_kv);
  id.sequence = sequence_of(p_, views_, id.index);
  id.head_kv = pair % p_.heads_kv;
  id.chunk = in_wave / wave.pairs;
  id.chunks = chunks_of(id.sequence);
  id.slot = pair % slots_;
  id.wave = pair / slots_;
  const int64_t before = pair - slots_;
  id.chunks_before = before < 0 ? 0 : chunks_of(sequence_of(p_, views_, sequence_at(before / p_.heads_kv)));
  return id.chunk < id.chunks;
}

}  // namespace froghopper::cpu
