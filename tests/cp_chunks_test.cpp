// SPDX-License-Identifier: Apache-2.0
// Claims about the all-gather in chunks: whatever the number of chunks and the share of rows that merge, it gives what
// fp64 gives, as closely as one rank does, and equal bits in two runs; a plan says how many chunks it has, takes them
// where that is faster, and needs none of the caller's kernels to run.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/cp_compare.hpp"

namespace froghopper {
namespace {

using test::causal;
using test::CpCase;
using test::expect_as_on_one_rank;
using test::planned;
using test::small;
using test::windowed;

constexpr const char* every_way[] = {"1", "2", "3", "1/2", "1/8", "2/4", "3/2"};

// As the environment sets it, for as long as this lives.
class Chunks {
 public:
  explicit Chunks(const char* value) { setenv("FROGHOPPER_CP_CHUNKS", value, 1); }
  ~Chunks() { unsetenv("FROGHOPPER_CP_CHUNKS"); }
};

CpCase gathered(const fh_problem& whole, int64_t ranks, fh_cp_layout layout = FH_CP_LAYOUT_AUTO,
                fh_dtype out = FH_USUAL) {
  return {whole, ranks, FH_CP_ALL_GATHER, layout, out, false};
}

TEST(ContextParallelChunks, each_way_gives_what_one_rank_gives) {
  for (const char* way : every_way) {
    SCOPED_TRACE(way);
    const Chunks chunks(way);
    for (const int64_t ranks : {2, 3, 4}) {
      for (const fh_problem& p : {small(37), causal(small(37))}) expect_as_on_one_rank(gathered(p, ranks));
      expect_as_on_one_rank(gathered(causal(small(50)), ranks, FH_CP_CONTIGUOUS));
      expect_as_on_one_rank(gathered(small(50), ranks, FH_CP_ZIGZAG));
    }
    expect_as_on_one_rank(gathered(causal(small(50, 8, 1)), 8));
    for (const int64_t rows : {1, 2, 3, 7, 8, 9}) expect_as_on_one_rank(gathered(causal(small(rows)), 4));
  }
}

TEST(ContextParallelChunks, windows_wait_for_their_first_rows_only) {
  const Chunks chunks("1");
  for (const int64_t ranks : {2, 4})
    for (const int64_t left : {0, 3, 11, 12, 40})
      expect_as_on_one_rank(gathered(windowed(small(45), left, 0), ranks));
  // Not in chunks: the masks of keys that arrive are not plain.
  expect_as_on_one_rank(gathered(windowed(small(45), 11, 0), 3, FH_CP_ZIGZAG));
  expect_as_on_one_rank(gathered(windowed(small(45), 5, 3), 3));
}

TEST(ContextParallelChunks, options_of_the_scores_and_types) {
  for (const char* way : every_way) {
    SCOPED_TRACE(way);
    const Chunks chunks(way);
    fh_problem p = causal(small(70));
    p.softcap = 1.5f, p.scale = 0.3f, p.sink = 1;
    expect_as_on_one_rank(gathered(p, 4));
    p.dim_qk = 24;
    for (const fh_dtype dtype : {FH_BF16, FH_F16})
      for (const fh_dtype out : {FH_USUAL, FH_F32}) {
        p.dtype = dtype;
        expect_as_on_one_rank(gathered(p, 4, FH_CP_LAYOUT_AUTO, out));
      }
  }
}

// Calls are cut at whole tiles where there are many rows.
TEST(ContextParallelChunks, more_rows_than_tiles) {
  const Chunks chunks("3/4");
  fh_problem p = small(2100, 1, 1);
  p.batch = 1, p.dim_qk = p.dim_v = 8, p.max_sms = 0;
  expect_as_on_one_rank(gathered(p, 2));
}

TEST(ContextParallelChunks, on_two_levels) {
  for (const char* way : {"1", "2", "3/2"}) {
    const Chunks chunks(way);
    CpCase c{causal(small(61, 8, 4)), 8, FH_CP_ALL_TO_ALL_GATHER, FH_CP_LAYOUT_AUTO, FH_USUAL, false};
    c.heads_ranks = 2;
    c.whole.dtype = FH_BF16, c.whole.sink = 1;
    expect_as_on_one_rank(c);
  }
}

TEST(ContextParallelChunks, a_gradient_of_lse) {
  for (const char* way : {"1", "1/2"}) {
    const Chunks chunks(way);
    for (const fh_problem& p : {causal(small(29)), small(29), small(3)})
      for (const fh_cp_layout layout : {FH_CP_CONTIGUOUS, FH_CP_ZIGZAG}) {
        CpCase c = gathered(p, 4, layout);
        c.grad_lse = true;
        expect_as_on_one_rank(c);
      }
  }
}

TEST(ContextParallelChunks, two_runs_give_equal_bits) {
  for (const char* way : every_way) {
    const Chunks chunks(way);
    CpCase c = gathered(causal(small(45)), 4);
    c.whole.dtype = FH_BF16, c.whole.sink = 1;
    test::expect_equal_bits(c, c);
  }
}

fh_problem long_sequence(int64_t rows, int64_t heads_kv = 16) {
  fh_problem p = fh_problem_init();
  p.batch = 1, p.heads_q = 16, p.heads_kv = heads_kv, p.seq_q = p.seq_kv = rows, p.dim_qk = 128, p.causal = 1;
  return p;
}

struct Asked {
  fh_problem whole;
  fh_cp_problem problem = fh_cp_problem_init();
  explicit Asked(const fh_problem& p, int64_t rank = 0) : whole(p) {
    problem.whole = &whole, problem.ranks = 4, problem.rank = rank, problem.scheme = FH_CP_ALL_GATHER;
    problem.transfers = FH_CP_PEER_COPIES;
  }
};

TEST(ContextParallelChunks, the_text_has_the_chunks_and_what_merges) {
  const Chunks chunks("2");
  Asked a(long_sequence(32768), 1);
  const test::CpPlan plan = planned(a.problem, "h100");
  const std::string text = fh_cp_plan_text(plan.get());
  // A rank's second range merges; its first one has a call when rank 0's first range is there, with the first chunk.
  size_t from = 0;
  for (const char* part :
       {"gpu all_gather in 2 chunks rank 1 of 4", "exchange k, v: from 0: 33554432, 3: 50331648", "exchange k, v",
        "attend rows 24576 to 28672, 8192 keys from 4096 on, causal, first of its calls",
        "wait for the oldest exchange", "attend rows 24576 to 28672, 10240 keys",
        "attend rows 4096 to 8192, 8192 keys from 0 on, causal: ", "wait for the oldest exchange",
        "attend rows 24576 to 28672, 10240 keys", "all pairs, merged and rounded"}) {
    const size_t at = text.find(part, from);
    ASSERT_NE(at, std::string::npos) << part << "\n" << text;
    from = at + 1;
  }
}

TEST(ContextParallelChunks, gradients_travel_during_a_call) {
  const Chunks chunks("1/2");
  fh_problem whole = long_sequence(32768);
  whole.op = FH_BACKWARD;
  const std::string text = fh_cp_plan_text(planned(Asked(whole, 1).problem, "h100").get());
  size_t from = 0;
  for (const char* part :
       {"gpu all_gather in 1 chunk rank 1 of 4", "exchange k, v",
        "gradients of rows 4096 to 8192, 4096 keys from 4096", "wait for",
        "gradients of rows 4096 to 8192, 4096 keys from 0 on, all pairs",
        "gradients of rows 24576 to 28672, 20480 keys", "exchange dk, dv",
        "gradients of rows 24576 to 28672, 8192 keys from 4096 on, causal", "wait for", "add to workspace"}) {
    const size_t at = text.find(part, from);
    ASSERT_NE(at, std::string::npos) << part << "\n" << text;
    from = at + 1;
  }
}

TEST(ContextParallelChunks, a_share_of_the_rows_merges) {
  const Chunks chunks("1/4");
  const std::string text = fh_cp_plan_text(planned(Asked(long_sequence(32768)).problem, "h100").get());
  EXPECT_NE(text.find("attend rows 31744 to 32768, 8192 keys from 0 on, causal, first of its calls"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("attend rows 28672 to 31744, 31744 keys"), std::string::npos) << text;
}

TEST(ContextParallelChunks, rows_of_a_window_that_see_own_keys_do_not_wait) {
  const Chunks chunks("1");
  fh_problem whole = windowed(long_sequence(131072), 4096, 0);
  whole.causal = 0;
  const std::string text = fh_cp_plan_text(planned(Asked(whole, 1).problem, "h100").get());
  const size_t local = text.find("attend rows 36864 to 65536, 32768 keys from 32768 on"), wait = text.find("wait"),
               others = text.find("attend rows 32768 to 36864, 8192 keys from 28672 on");
  EXPECT_LT(local, wait) << text;
  EXPECT_LT(wait, others) << text;
  EXPECT_NE(others, std::string::npos) << text;
  EXPECT_EQ(text.find("merged"), std::string::npos) << text;
}

double seconds(const fh_problem& whole, const char* way) {
  const Chunks chunks(way);
  return fh_cp_plan_seconds(planned(Asked(whole).problem, "h100").get());
}

TEST(ContextParallelChunks, the_plan_takes_the_fastest) {
  for (const fh_problem& p :
       {long_sequence(256), long_sequence(32768), long_sequence(131072), long_sequence(32768, 2)}) {
    const double chosen = fh_cp_plan_seconds(planned(Asked(p).problem, "h100").get());
    EXPECT_LE(chosen, seconds(p, "0"));
    for (const char* way : every_way) EXPECT_LE(chosen, seconds(p, way)) << way;
  }
  const std::string text = fh_cp_plan_text(planned(Asked(long_sequence(256)).problem, "h100").get());
  EXPECT_EQ(text.find("chunk"), std::string::npos) << text;  // a call more takes longer than all of the transfer
  EXPECT_LT(seconds(long_sequence(32768), "2"), 0.9 * seconds(long_sequence(32768), "0"));
}

// Sums, roundings and sinks are those of the attention's own calls.
TEST(ContextParallelChunks, the_last_call_rounds_so_the_caller_needs_no_kernels) {
  const Chunks chunks("2");
  for (const fh_cp_scheme scheme : {FH_CP_RING, FH_CP_ALL_GATHER}) {
    Asked a(long_sequence(8192));
    a.problem.scheme = scheme;
    const std::string steps = fh_cp_plan_text(planned(a.problem, "h100").get());
    EXPECT_NE(steps.find("merged and rounded"), std::string::npos) << steps;
    for (const char* const kernel : {"add to", "round to", "spread"})
      EXPECT_EQ(steps.find(kernel), std::string::npos) << kernel << " in " << steps;
  }
}

TEST(ContextParallelChunks, a_value_that_makes_no_sense) {
  for (const char* value : {"4", "-1", "1/", "1/0", "1/9", "12", "x"}) {
    const Chunks chunks(value);
    Asked a(long_sequence(64));
    fh_cp_plan* plan = nullptr;
    EXPECT_EQ(fh_cp_plan_create(&a.problem, "cpu", &plan), FH_INVALID_PROBLEM);
    const std::string text = fh_cp_last_error();
    EXPECT_NE(text.find(std::string("FROGHOPPER_CP_CHUNKS is \"") + value + "\""), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace froghopper
