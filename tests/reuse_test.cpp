// SPDX-License-Identifier: Apache-2.0
// How often rows of Q, grad_o and grad_q's sums come from memory in a causal backward pass: CTAs take the work items of
// a plan in its order, each when it is free, and walk their turns on their way (device/bwd/schedule.cuh). What was used
// last is in L2, of which 26 MiB are counted, about half of an H100's.
#include <gtest/gtest.h>

#include <functional>
#include <list>
#include <queue>
#include <unordered_map>

#include "src/base/ceil_div.hpp"
#include "src/base/text.hpp"
#include "src/plan/plan.hpp"
#include "tests/support/planned.hpp"

namespace froghopper {
namespace {

constexpr size_t l2_bytes = size_t{26} << 20;

class LeastRecentlyUsed {
 public:
  explicit LeastRecentlyUsed(size_t capacity) : capacity_(capacity) {}
  void use(int64_t key) {
    if (const auto found = places_.find(key); found != places_.end()) {
      keys_.erase(found->second);
    } else {
      ++loads;
      if (keys_.size() == capacity_) {
        places_.erase(keys_.back());
        keys_.pop_back();
      }
    }
    keys_.push_front(key);
    places_[key] = keys_.begin();
  }
  int64_t loads = 0;

 private:
  size_t capacity_;
  std::list<int64_t> keys_;
  std::unordered_map<int64_t, std::list<int64_t>::iterator> places_;
};

Plan plan_of(const std::string& line) { return test::planned(line, "h100"); }
const BackwardStep& step_of(const Plan& plan) { return std::get<BackwardStep>(plan.launches.at(1).step); }

// Loads of a q tile of a head, on average. A turn takes one unit of time.
double loads_of(const std::string& line) {
  const Plan plan = plan_of(line);
  const BackwardStep& step = step_of(plan);
  const Problem& p = plan.problem;
  const BwdVariant& v = step.variant;
  const int heads = static_cast<int>(p.heads_q / p.heads_kv), tile_q = v.tiles.q;
  const int q_tiles = static_cast<int>(ceil_div(p.seq_q, tile_q));
  const int64_t tile_bytes = tile_q * ((p.dim_qk + p.dim_v) * 2 + p.dim_qk * 4);
  LeastRecentlyUsed l2(l2_bytes / tile_bytes);

  struct Cta {
    double now;
    ItemOfPair item;
    int turn;
    bool operator>(const Cta& other) const { return now > other.now; }
  };
  std::priority_queue<Cta, std::vector<Cta>, std::greater<>> ctas;
  int next = 0;
  const auto draw = [&](double now) {
    if (next < step.order.items) ctas.push({now, item_in_dq_order(step.order, next++, step.pairs_light_first), 0});
  };
  const int count = plan.launches.at(1).grid / bwd_ctas(v);
  for (int i = 0; i < count; ++i) draw(i * 1e-4);
  while (!ctas.empty()) {
    Cta cta = ctas.top();
    ctas.pop();
    const int first = cta.item.index_in_pair * v.tiles.kv / tile_q,
              tiles = q_tiles - first;  // its items are kv tiles
    const bool by_heads = step.same_traversal == 0 && !v.deterministic;
    const int head = by_heads ? cta.turn / tiles : cta.turn % heads,
              place = by_heads ? cta.turn % tiles : cta.turn / heads;
    const bool lightest_first = v.deterministic && cta.item.pair < step.pairs_light_first;
    const bool rows_falling =
        step.same_traversal > 0 ? cta.item.pair / step.same_traversal % 2 == 0 : v.deterministic && !lightest_first;
    const int q_tile = rows_falling ? q_tiles - 1 - place : first + place;
    l2.use((int64_t{cta.item.pair} * heads + head) * q_tiles + q_tile);
    cta.now += 1;
    if (++cta.turn < tiles * heads)
      ctas.push(cta);
    else
      draw(cta.now + 0.8);
  }
  return static_cast<double>(l2.loads) / (p.batch * p.heads_q * q_tiles);
}

TEST(RowsStayInL2, WhereEveryQueryHeadHasItsKeys) {
  for (int seq : {512, 1024, 2048, 4096, 8192, 16384})
    EXPECT_LT(loads_of(text("bwd bf16 b{} hq16 hkv16 sq{} skv{} d128 causal", 16384 / seq, seq, seq)), 1.4) << seq;
}

TEST(RowsStayInL2, WhereQueryHeadsShareKeys) {
  for (const char* heads : {"hq64 hkv8 d128", "hq32 hkv8 d128", "hq32 hkv4 d64"})
    for (int seq : {512, 1024, 2048, 4096, 8192, 16384})
      EXPECT_LT(loads_of(text("bwd bf16 b{} {} sq{} skv{} causal", 16384 / seq, heads, seq, seq)), 3) << heads << seq;
}

TEST(RowsStayInL2, WhereShortPairsAreAddedToInOrder) {
  for (const char* heads : {"hq64 hkv8 d128", "hq32 hkv8 d128", "hq32 hkv4 d64"})
    for (int seq : {512, 1024, 2048, 4096})
      EXPECT_LT(loads_of(text("bwd bf16 b{} {} sq{} skv{} causal det", 16384 / seq, heads, seq, seq)), 3)
          << heads << seq;
}

// There and back, where many heads share keys: with fewer the CTAs would wait for each other.
TEST(RowsStayInL2, WhereLongPairsOfManyHeadsAreAddedToInOrder) {
  for (int seq : {8192, 16384})
    EXPECT_LT(loads_of(text("bwd bf16 b{} hq64 hkv8 sq{} skv{} d128 causal det", 16384 / seq, seq, seq)), 3) << seq;
  EXPECT_GT(loads_of("bwd bf16 b1 hq32 hkv8 sq16384 skv16384 d128 causal det"), 3);
}

// The longest of packed sequences walk as sequences of one length do, where those go there and back.
TEST(RowsStayInL2, WhereLongSequencesArePacked) {
  for (const char* more : {"", " det"})
    for (int seq : {8192, 16384}) {
      const Plan packed = plan_of(text("bwd bf16 b65 hq64 hkv8 sq{} skv{} d128 varlen tq{} tkv{} causal{}", seq, seq,
                                       seq + 8192, seq + 8192, more));
      const Plan alone = plan_of(text("bwd bf16 b65 hq64 hkv8 sq{} skv{} d128 causal{}", seq, seq, more));
      EXPECT_EQ(step_of(packed).same_traversal, 16384 / seq) << seq << more;
      EXPECT_EQ(step_of(packed).same_traversal, step_of(alone).same_traversal) << seq << more;
      EXPECT_EQ(step_of(packed).order.section, step_of(alone).order.section) << seq << more;
    }
  EXPECT_EQ(
      step_of(plan_of("bwd bf16 b65 hq64 hkv8 sq4096 skv4096 d128 varlen tq12288 tkv12288 causal")).same_traversal,
      0);
}

}  // namespace
}  // namespace froghopper
