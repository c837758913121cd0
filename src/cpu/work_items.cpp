// SPDX-License-Identifier: Apache-2.0
// cpu: forward work items, with split-KV, from a problem and its lengths.
#include "src/cpu/work_items.hpp"

#include <algorithm>

#include "src/base/ceil_div.hpp"
#include "src/cpu/work.hpp"

namespace froghopper::cpu {
namespace {

// Work items per thread. With 8, all threads end within an eighth of the time.
constexpr int64_t items_per_thread = 8;

// Few lanes of a KV head fill one vector, and memory is the limit. A call has about so many splits: two for each thread
// of a large server, with 9 MB of partial results at a head dim of 256. A split reads at least so many bytes: a core
// takes some 60 microseconds for them, and a sleeping thread up to 50 to wake up.
constexpr int64_t few_lanes = 16, splits_per_call = 256, bytes_least = 1 << 20;
// With more lanes the products are the limit. To write and merge a partial result takes 3 % of the time of so many keys
// with AMX, so keys are split only where a large server would be idle.
constexpr int64_t splits_per_call_of_many_lanes = 32, keys_least_of_many_lanes = 4096;

}  // namespace

WorkItems::WorkItems(const Plan& plan, const Views& views)
    : p_(plan.problem),
      views_(views),
      group_(p_.heads_q / std::max<int64_t>(1, p_.heads_kv)),
      block_lanes_(plan.kernel->block_lanes) {
  const int64_t fair = p_.rows_q() * p_.heads_q / (plan.threads * items_per_thread);
  item_lanes_ = std::clamp<int64_t>(fair / block_lanes_ * block_lanes_, block_lanes_, plan.item_lanes_most());
  if (plan.side_by_side && views.k.stride_head < views.k.stride_seq) {  // else a head's rows follow each other
    heads_ = std::min({p_.heads_kv, plan.item_lanes_most() / block_lanes_, int64_t{heads_most}});
    head_keys_ = keys_of_all() * static_cast<double>(p_.heads_kv) / static_cast<double>(2 * plan.threads);
  }
  fair_keys_ = fair_keys();
  if (p_.ragged()) {
    list();
  } else if (p_.batch > 0) {
    const Sequence each = sequence_of(p_, views_, 0);
    if (splits_of(each) == 1) {
      count_ = p_.batch * q_tiles_of(each);
    } else {
      for (int64_t b = 0; b < p_.batch; ++b) append(each);
    }
  }
}

// Sequences with the most work come first, so that no thread gets a long one last.
void WorkItems::list() {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();  // longer ones are alike; their product fits
  list_.reserve(p_.batch + 1);
  for (int64_t b = 0; b < p_.batch; ++b) {
    const Sequence s = sequence_of(p_, views_, b);
    list_.push_back({b, std::min(s.used_q, most) * std::min(s.used_kv, most)});
  }
  std::sort(list_.begin(), list_.end(), [](const Place& a, const Place& b) {
    return a.items_before != b.items_before ? a.items_before > b.items_before : a.sequence < b.sequence;
  });
  if (p_.varlen) list_.push_back({p_.batch, 0});
  for (Place& place : list_) {
    place.items_before = count_;
    append(sequence_of(p_, views_, place.sequence));
  }
}

void WorkItems::append(const Sequence& s) {
  const int64_t splits = splits_of(s), q_tiles = q_tiles_of(s);
  if (splits > 1) {
    split_sequences_.push_back({count_, split_q_tiles_, floats_});
    split_q_tiles_ += q_tiles;
    floats_ += q_tiles * splits * floats_of_partial(s);
  }
  count_ += q_tiles * splits;
}

WorkItem WorkItems::item(int64_t number) const {
  Sequence s;
  int64_t first_item;  // of the sequence
  if (list_.empty()) {
    const int64_t each = count_ / p_.batch;
    s = sequence_of(p_, views_, number / each);
    first_item = number / each * each;
  } else {
    const auto after = [](int64_t n, const Place& place) { return n < place.items_before; };
    const Place& place = *--std::upper_bound(list_.begin(), list_.end(), number, after);
    s = sequence_of(p_, views_, place.sequence);
    first_item = place.items_before;
  }
  const int64_t splits = splits_of(s), q_tile = (number - first_item) / splits;
  const int64_t of_head = items_of_head(s), in_head = q_tile % of_head;
  const int64_t heads = heads_of_item(s), head_kv = q_tile / of_head * heads;
  WorkItem item;
  item.sequence = s;
  item.head_kv = head_kv;
  item.heads = std::min(heads, p_.heads_kv - head_kv);
  // Under a causal bound later rows attend to more keys, and come first.
  item.first = item_lanes_ * (p_.window_right == all_keys ? in_head : of_head - 1 - in_head);
  item.count = std::min(item_lanes_, lanes_of_head(s) - item.first);
  if (splits == 1) return item;

  const auto after = [](int64_t n, const SplitSequence& one) { return n < one.first_item; };
  const SplitSequence& mine = *--std::upper_bound(split_sequences_.begin(), split_sequences_.end(), number, after);
  const Visible all = keys_of(s);
  const int64_t keys = keys_of_split(s);
  item.split = (number - first_item) % splits;
  item.splits = splits;
  item.keys.begin = all.begin + item.split * keys;
  item.keys.end = std::min(item.keys.begin + keys, all.end);
  item.q_tile = mine.first_q_tile + q_tile;
  item.floats = floats_of_partial(s);
  item.memory = mine.memory + q_tile * splits * item.floats;
  return item;
}

double WorkItems::keys_of_all() const {  // of all sequences
  if (!p_.ragged()) return static_cast<double>(p_.batch) * static_cast<double>(p_.seq_kv);
  double keys = 0;
  for (int64_t b = 0; b < p_.batch; ++b) keys += static_cast<double>(sequence_of(p_, views_, b).used_kv);
  return keys;
}

// The keys that some row of the sequence attends to. They begin at a multiple of the rows that share a scale.
Visible WorkItems::keys_of(const Sequence& s) const {
  if (s.used_q == 0 || s.used_kv == 0) return {0, 0};
  const int64_t begin = visible_keys(p_, s.used_q, s.used_kv, 0).begin / scale_block * scale_block;
  return {begin, std::max(begin, visible_keys(p_, s.used_q, s.used_kv, s.used_q - 1).end)};
}

// The keys of a split of few lanes, such that all splits take about as long, whatever the lengths.
int64_t WorkItems::fair_keys() const {
  const auto work = [&](const Sequence& s) {  // keys x blocks of lanes
    const Visible keys = keys_of(s);
    return static_cast<double>(keys.end - keys.begin) *
           static_cast<double>(ceil_div(lanes_of_head(s), block_lanes_) * p_.heads_kv);
  };
  double all = 0;
  if (p_.ragged()) {
    for (int64_t b = 0; b < p_.batch; ++b) all += work(sequence_of(p_, views_, b));
  } else if (p_.batch > 0) {
    all = static_cast<double>(p_.batch) * work(sequence_of(p_, views_, 0));
  }
  constexpr double more_than_any = 0x1p40;  // more keys than any sequence has
  return ceil_div(static_cast<int64_t>(std::min(all / splits_per_call, more_than_any)), scale_block) * scale_block;
}

int64_t WorkItems::keys_of_split(const Sequence& s) const {
  if (lanes_of_head(s) > few_lanes)
    return std::max(fair_keys_ * (splits_per_call / splits_per_call_of_many_lanes), keys_least_of_many_lanes);
  const int64_t least = bytes_least / ((p_.dim_qk + p_.dim_v) * size_of(p_.dtype_kv));
  return std::max(fair_keys_, ceil_div(least, scale_block) * scale_block);
}

int64_t WorkItems::splits_of(const Sequence& s) const {
  if (p_.invariant) return 1;
  const Visible keys = keys_of(s);
  return std::max<int64_t>(1, ceil_div(keys.end - keys.begin, keys_of_split(s)));
}

int64_t WorkItems::floats_of_partial(const Sequence& s) const {
  const int64_t lanes = std::min(item_lanes_, lanes_of_head(s));
  return heads_of_item(s) * partial_floats(p_.dim_v, ceil_div(lanes, lane_group_most) * lane_group_most);
}

int64_t WorkItems::items_of_head(const Sequence& s) const { return ceil_div(lanes_of_head(s), item_lanes_); }

// As many heads as leave two work items a thread. Rows of no sequence may be more than those of a block.
int64_t WorkItems::heads_of_item(const Sequence& s) const {
  if (lanes_of_head(s) > block_lanes_) return 1;
  const int64_t keys = std::min(s.used_kv, keys_of_split(s));
  const double fair = head_keys_ / static_cast<double>(std::max<int64_t>(keys, 1));
  return static_cast<int64_t>(std::clamp(fair, 1.0, static_cast<double>(heads_)));
}

int64_t WorkItems::q_tiles_of(const Sequence& s) const {
  return items_of_head(s) * ceil_div(p_.heads_kv, heads_of_item(s));
}

}  // namespace froghopper::cpu
