// SPDX-License-Identifier: Apache-2.0
// tests: split-KV on the CPU. Splits are as short as they get with heads of 512: 256 keys in f32, 512 of 16 bits.
#include <string>

#include "src/cpu/work_items.hpp"
#include "tests/support/cpu_problems.hpp"

namespace froghopper {
namespace {

using namespace test;

Problem few_rows(const std::string& sizes_and_options) {
  const auto p = Problem::parse("fwd " + sizes_and_options + " d512");
  EXPECT_TRUE(p) << p.failure().text;
  return *p;
}

int64_t most_splits(const Problem& p, const Views& views = {}) {
  const auto plan = cpu::plan(p);
  const cpu::WorkItems items(*plan, views);
  int64_t splits = 0;
  for (int64_t number = 0; number < items.count(); ++number) splits = std::max(splits, items.item(number).splits);
  return splits;
}

TEST(CpuSplitKv, FollowFromTheProblemAndNotFromThreads) {
  for (const char* threads : {"", " sms1", " sms3"}) {
    EXPECT_EQ(most_splits(few_rows(std::string("f32 b1 hq1 hkv1 sq1 skv1000") + threads)), 4);
    EXPECT_EQ(most_splits(few_rows(std::string("f32 b1 hq8 hkv8 sq1 skv1000") + threads)), 4);
    EXPECT_EQ(most_splits(few_rows(std::string("bf16 b1 hq4 hkv1 sq4 skv1000") + threads)), 2);
    EXPECT_EQ(most_splits(few_rows(std::string("f32 b1 hq1 hkv1 sq1 skv1000 invariant") + threads)), 1);
    EXPECT_EQ(most_splits(few_rows(std::string("f32 b1 hq1 hkv1 sq1 skv1000 window400,0") + threads)), 2);
    EXPECT_EQ(most_splits(few_rows(std::string("f32 b1 hq1 hkv1 sq200 skv1000") + threads)), 1);
    // Enough work items without.
    EXPECT_EQ(most_splits(few_rows(std::string("f32 b512 hq1 hkv1 sq1 skv300") + threads)), 1);
  }
  // One long sequence among short ones.
  const Lengths used{{}, {}, {}, {1, 0, 2000, 100}};
  const HandMade t(few_rows("f32 b4 hq2 hkv2 sq1 skv2000 seqused"), used);
  EXPECT_EQ(most_splits(t.problem, t.views), 8);
}

// Every split of the keys of every Q tile, once, in memory of its own.
TEST(CpuSplitKv, AllKeysOnceInMemoryOfTheirOwn) {
  const Lengths lengths{{0, 1, 3, 3, 7}, {0, 900, 901, 901, 2000}, {}, {}};
  HandMade t(few_rows("f32 b4 hq6 hkv3 sq4 skv1100 varlen tq8 tkv2010 causal"), lengths);
  const auto plan = cpu::plan(t.problem);
  const cpu::WorkItems items(*plan, t.views);
  std::vector<int64_t> reached(items.split_q_tiles(), 0), splits(items.split_q_tiles(), 0);
  std::vector<bool> taken(items.floats(), false);
  for (int64_t number = 0; number < items.count(); ++number) {
    const cpu::WorkItem item = items.item(number);
    if (item.splits == 1) continue;
    EXPECT_EQ(item.keys.begin, reached[item.q_tile]);
    EXPECT_LT(item.keys.begin, item.keys.end);
    EXPECT_EQ(item.split, splits[item.q_tile]++);
    reached[item.q_tile] = item.keys.end;
    EXPECT_EQ(item.keys.end == item.sequence.used_kv, item.split + 1 == item.splits);
    for (int64_t i = 0; i < item.floats; ++i) {
      EXPECT_FALSE(taken[item.memory + item.split * item.floats + i]);
      taken[item.memory + item.split * item.floats + i] = true;
    }
  }
  EXPECT_GE(items.split_q_tiles(), 2);
  EXPECT_EQ(std::count(taken.begin(), taken.end(), false), 0);
}

TEST(CpuSplitKv, AreRight) {
  for (const char* problem :
       {"f32 b1 hq1 hkv1 sq1 skv1000", "f32 b2 hq4 hkv2 sq3 skv1001 causal sink", "bf16 b1 hq8 hkv1 sq1 skv1500",
        "f16 b1 hq2 hkv2 sq1 skv1500 softcap20", "f32 b1 hq3 hkv1 sq5 skv1000 window300,0 topleft",
        "f32 b1 hq3 hkv1 sq5 skv1000 window300,0 alibi", "bf16 b1 hq4 hkv4 sq2 skv1300 chunk=700"})
    expect_right(few_rows(problem));
  const Lengths packed{{0, 1, 3, 3, 7}, {0, 900, 901, 901, 2000}, {}, {}};
  for (const char* type : {"f32", "bf16"})
    expect_right(few_rows(std::string(type) + " b4 hq6 hkv3 sq4 skv1100 varlen tq8 tkv2010 causal"), packed);
  for (const char* scales : {"", " scales128", " vcolumns"}) {
    const auto p = Problem::parse(std::string("fwd e4m3 b1 hq4 hkv2 sq2 skv4500 d256 causal") + scales);
    ASSERT_GT(most_splits(*p), 1);
    expect_right(*p);
  }
}

TEST(CpuSplitKv, ThreadsDoNotChangeTheResult) {
  for (const char* problem :
       {"f32 b1 hq4 hkv4 sq1 skv1000", "bf16 b1 hq8 hkv2 sq2 skv1500 causal", "f16 b2 hq2 hkv1 sq1 skv1500 sink"}) {
    Problem p = few_rows(problem);
    p.max_sms = 1;
    HandMade one(p);
    run(one);
    for (const int64_t threads : {2, 3, 1000}) {
      for (int again = 0; again < 5; ++again) {
        p.max_sms = threads;
        HandMade t(p);
        run(t);
        for (int64_t i = 0; i < p.rows_q() * p.heads_q * p.dim_v; ++i) ASSERT_EQ(t.o(i), one.o(i)) << p.line();
        ASSERT_EQ(t.lse, one.lse) << p.line();
      }
    }
  }
}

// A NaN that one row attends to, in k or in v, changes no bit of the others, whose partial results are merged by the
// same thread.
TEST(CpuSplitKv, NaNStaysInItsRows) {
  for (const Dtype dtype : {Dtype::f32, Dtype::f16}) {
    for (View Views::*spoiled : {&Views::k, &Views::v}) {
      const Problem p = with_mask(problem(dtype, 2, 1, 3, 1300, 512), all_keys, 0);
      HandMade clean(p), t(p);
      const View& view = t.views.*spoiled;
      store(view.data, view.at(0, 1299, 0) + 7, view.element, nan);  // the last row attends to it
      run(clean);
      run(t);
      for (int64_t i = 0; i < 3 * 2 * 512; ++i) {
        const bool attends = i / 1024 == 2 && (spoiled == &Views::k || i % 512 == 7);
        if (attends) {
          ASSERT_TRUE(std::isnan(t.o(i))) << i;
        } else {
          ASSERT_EQ(t.o(i), clean.o(i)) << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace froghopper
