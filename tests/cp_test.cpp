// SPDX-License-Identifier: Apache-2.0
// Claims about attention over ranks: every scheme gives what fp64 gives, as closely as one rank does, forward and
// backward, for every mask, head count and length, also where shards are uneven or empty; two runs give equal bits;
// what moves is what the plan says.
#include <gtest/gtest.h>

#include "tests/support/cp_compare.hpp"

namespace froghopper {
namespace {

using test::causal;
using test::CpCase;
using test::CpTensors;
using test::expect_as_on_one_rank;
using test::small;
using test::windowed;

constexpr fh_cp_scheme all_schemes[] = {FH_CP_RING, FH_CP_ALL_GATHER, FH_CP_ALL_TO_ALL};

void expect_all_schemes(const fh_problem& whole, std::initializer_list<int64_t> ranks,
                        fh_cp_layout layout = FH_CP_LAYOUT_AUTO) {
  for (const int64_t count : ranks)
    for (const fh_cp_scheme scheme : all_schemes) {
      if (scheme == FH_CP_ALL_TO_ALL && whole.heads_q % count != 0) continue;
      expect_as_on_one_rank({whole, count, scheme, layout, FH_USUAL, false});
    }
}

TEST(ContextParallel, every_scheme_gives_what_one_rank_gives) {
  for (const fh_problem& p : {small(37), causal(small(37))}) expect_all_schemes(p, {1, 2, 3, 4});
  expect_all_schemes(causal(small(64)), {4}, FH_CP_CONTIGUOUS);
  expect_all_schemes(small(64), {4}, FH_CP_ZIGZAG);
}

TEST(ContextParallel, eight_ranks) {
  expect_all_schemes(causal(small(50, 8, 2)), {8});
  expect_all_schemes(small(50, 8, 8), {8});
  expect_all_schemes(causal(small(33, 8, 1)), {5, 7, 8});
}

TEST(ContextParallel, lengths_that_do_not_divide_and_empty_shards) {
  for (const int64_t rows : {1, 2, 3, 7, 8, 9}) expect_all_schemes(causal(small(rows)), {2, 4});
  for (const int64_t rows : {1, 3, 5}) expect_all_schemes(small(rows), {4});
  expect_all_schemes(causal(small(15, 8, 4)), {8});
}

TEST(ContextParallel, windows) {
  for (const int64_t left : {0, 3, 11, 40}) {
    expect_all_schemes(windowed(small(45), left, 0), {2, 4});
    expect_all_schemes(windowed(small(45), left, 0), {3}, FH_CP_ZIGZAG);
    expect_all_schemes(windowed(small(45), left, FH_ALL), {4});
  }
  for (const fh_cp_layout layout : {FH_CP_CONTIGUOUS, FH_CP_ZIGZAG})
    for (const auto& [left, right] : {std::pair<int64_t, int64_t>{5, 3}, {FH_ALL, 2}, {0, 30}})
      for (const fh_cp_scheme scheme : {FH_CP_ALL_GATHER, FH_CP_ALL_TO_ALL})
        expect_as_on_one_rank({windowed(small(45), left, right), 4, scheme, layout, FH_USUAL, false});
}

TEST(ContextParallel, options_of_the_scores) {
  fh_problem p = causal(small(41));
  p.softcap = 1.5f, p.scale = 0.3f, p.sink = 1;
  expect_all_schemes(p, {2, 4});
  fh_problem alibi = causal(small(41));
  alibi.alibi = 1;
  for (const fh_cp_scheme scheme : {FH_CP_ALL_GATHER, FH_CP_ALL_TO_ALL})
    for (const fh_cp_layout layout : {FH_CP_CONTIGUOUS, FH_CP_ZIGZAG})
      expect_as_on_one_rank({alibi, 4, scheme, layout, FH_USUAL, false});
  alibi.causal = 0;
  expect_as_on_one_rank({alibi, 2, FH_CP_ALL_TO_ALL, FH_CP_LAYOUT_AUTO, FH_USUAL, false});
}

// In a zigzag the second rows of a rank may see some of its first ones. Where these calls come first, not every row has
// a key in them, and the sink has a share of each row all the same.
TEST(ContextParallel, a_sink_under_a_window) {
  for (const int64_t left : {3, 11, 24, 40})
    for (const fh_cp_scheme scheme : {FH_CP_RING, FH_CP_ALL_GATHER, FH_CP_ALL_TO_ALL_RING, FH_CP_ALL_TO_ALL_GATHER})
      for (const bool with_grad_lse : {false, true}) {
        fh_problem p = windowed(small(45), left, 0);
        p.sink = 1;
        expect_as_on_one_rank({p, 4, scheme, FH_CP_ZIGZAG, FH_USUAL, with_grad_lse});
      }
}

TEST(ContextParallel, a_gradient_of_lse) {
  for (const fh_cp_scheme scheme : all_schemes)
    for (const fh_problem& p : {causal(small(29)), small(29)})
      expect_as_on_one_rank({p, 4, scheme, FH_CP_LAYOUT_AUTO, FH_USUAL, true});
  for (const fh_cp_scheme scheme : all_schemes)
    expect_as_on_one_rank({small(3), 4, scheme, FH_CP_LAYOUT_AUTO, FH_USUAL, true});
}

TEST(ContextParallel, sixteen_bits_are_rounded_once) {
  for (const fh_dtype dtype : {FH_BF16, FH_F16})
    for (const fh_cp_scheme scheme : all_schemes)
      for (const fh_dtype out : {FH_USUAL, FH_F32}) {
        fh_problem p = causal(small(70));
        p.dtype = dtype, p.dim_qk = 24, p.sink = 1;
        expect_as_on_one_rank({p, 4, scheme, FH_CP_LAYOUT_AUTO, out, false});
      }
  fh_problem wide = causal(small(40, 2, 1));
  wide.dtype = FH_BF16, wide.dim_qk = 192, wide.dim_v = 128;
  expect_all_schemes(wide, {2});
}

// Without `deterministic` the calls of a rank's rows are phases, and keys to which no other rank attends have one call.
TEST(ContextParallel, gradients_in_phases) {
  for (fh_problem p : {causal(small(70)), small(70), windowed(small(70), 0, 0), windowed(small(70), 5, 0),
                       windowed(small(70), 40, 0), windowed(small(70), 11, FH_ALL), windowed(small(3), 1, 0)})
    for (const fh_cp_layout layout : {FH_CP_CONTIGUOUS, FH_CP_ZIGZAG})
      for (const fh_cp_scheme scheme : {FH_CP_RING, FH_CP_ALL_GATHER, FH_CP_ALL_TO_ALL_RING}) {
        p.dtype = FH_BF16, p.sink = 1, p.deterministic = 0;
        expect_as_on_one_rank({p, 4, scheme, layout, FH_USUAL, p.causal != 0});
      }
}

TEST(ContextParallel, two_runs_give_equal_bits) {
  for (const fh_cp_scheme scheme : all_schemes) {
    fh_problem p = causal(small(45));
    p.dtype = FH_BF16, p.sink = 1;
    const CpCase c{p, 4, scheme, FH_CP_LAYOUT_AUTO, FH_USUAL, true};
    test::expect_equal_bits(c, c);
  }
}

// 4 ranks of 16 rows, zigzag: of 2 heads and 24 columns a row of k and v has 192 bytes. A rank's first chunk is seen by
// all, its second by those whose second chunk lies after it.
TEST(ContextParallel, only_what_is_seen_moves) {
  fh_problem p = causal(small(64));
  p.batch = 1;
  CpCase c{p, 4, FH_CP_RING, FH_CP_LAYOUT_AUTO, FH_USUAL, false};
  CpTensors t = test::inputs(c);
  EXPECT_EQ(test::run_ranks(c, FH_FORWARD, t), uint64_t{4 * 3 * 8 + 6 * 8} * 192);
  c.scheme = FH_CP_ALL_GATHER;
  EXPECT_EQ(test::run_ranks(c, FH_FORWARD, t), uint64_t{4 * 3 * 8 + 6 * 8} * 192);
  // Of a window of 5 keys each rank but the first gets 5 rows of its neighbour.
  c.whole = windowed(small(64), 5, 0), c.whole.batch = 1;
  for (const fh_cp_scheme scheme : {FH_CP_RING, FH_CP_ALL_GATHER}) {
    c.scheme = scheme;
    EXPECT_EQ(test::run_ranks(c, FH_FORWARD, t), uint64_t{3 * 5} * 192);
  }
}

}  // namespace
}  // namespace froghopper
