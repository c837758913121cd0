// SPDX-License-Identifier: Apache-2.0
// Claims about grids of ranks, which exchange heads among neighbours and attend between the groups: every grid gives
// what fp64 gives, as closely as one rank does, forward and backward; the bits are those of a ring of as many ranks as
// there are groups; what a rank holds does not depend on the grid; only what is seen moves; the plan's own choice is
// the fastest grid; what cannot be is said.
#include <gtest/gtest.h>

#include <chrono>

#include "tests/support/cp_compare.hpp"

namespace froghopper {
namespace {

using test::causal;
using test::CpCase;
using test::CpTensors;
using test::planned;
using test::small;
using test::windowed;

constexpr fh_cp_scheme both_schemes[] = {FH_CP_ALL_TO_ALL_RING, FH_CP_ALL_TO_ALL_GATHER};
constexpr fh_cp_layout both_layouts[] = {FH_CP_CONTIGUOUS, FH_CP_ZIGZAG};  // of one sequence
constexpr fh_cp_layout layouts[] = {FH_CP_CONTIGUOUS, FH_CP_ZIGZAG, FH_CP_BY_DOCUMENT};

struct Grid {
  int64_t ranks, heads_ranks;
};

CpCase on(Grid grid, const fh_problem& whole, fh_cp_scheme scheme) {
  CpCase c;
  c.whole = whole, c.scheme = scheme, c.ranks = grid.ranks, c.heads_ranks = grid.heads_ranks;
  return c;
}

void expect_grids(const CpCase& given, std::initializer_list<Grid> grids) {
  for (const Grid grid : grids)
    for (const fh_cp_scheme scheme : both_schemes) {
      CpCase c = given;
      c.ranks = grid.ranks, c.heads_ranks = grid.heads_ranks, c.scheme = scheme;
      if (scheme == FH_CP_ALL_TO_ALL_RING && (c.whole.window_right > 0 || c.whole.alibi)) continue;
      SCOPED_TRACE(std::to_string(grid.heads_ranks) + " ranks exchange heads");
      test::expect_as_on_one_rank(c);
    }
}
void expect_grids(const fh_problem& whole, std::initializer_list<Grid> grids) {
  CpCase c;
  c.whole = whole;
  expect_grids(c, grids);
}

TEST(ContextParallelGrid, every_grid_gives_what_one_rank_gives) {
  for (const fh_problem& p : {small(37), causal(small(37))})
    expect_grids(p, {{4, 1}, {4, 2}, {4, 4}, {2, 2}, {6, 2}});
  for (const fh_cp_layout layout : both_layouts) {
    CpCase c;
    c.whole = causal(small(50, 8, 8)), c.layout = layout;
    expect_grids(c, {{8, 2}, {8, 4}});
  }
}

TEST(ContextParallelGrid, fewer_key_heads_than_ranks_that_exchange_heads) {
  for (const int64_t heads_kv : {1, 2, 4}) expect_grids(causal(small(50, 8, heads_kv)), {{8, 2}, {8, 4}, {4, 4}});
  fh_problem p = causal(small(50, 8, 1));
  p.dtype = FH_BF16, p.sink = 1;
  expect_grids(p, {{8, 4}});
}

TEST(ContextParallelGrid, lengths_that_do_not_divide_and_empty_shards) {
  for (const int64_t rows : {0, 1, 2, 3, 7, 8, 9, 15}) {
    expect_grids(causal(small(rows)), {{4, 2}});
    expect_grids(small(rows, 4, 1), {{8, 4}});
  }
}

TEST(ContextParallelGrid, windows) {
  for (const auto& [left, right] :
       {std::pair<int64_t, int64_t>{0, 0}, {3, 0}, {11, 0}, {40, 0}, {11, FH_ALL}, {5, 3}, {FH_ALL, 2}, {0, 30}})
    for (const fh_cp_layout layout : both_layouts) {
      CpCase c;
      c.whole = windowed(small(45), left, right), c.layout = layout;
      expect_grids(c, {{4, 2}});
    }
}

TEST(ContextParallelGrid, options_of_the_scores_and_a_gradient_of_lse) {
  CpCase c;
  c.whole = causal(small(41)), c.grad_lse = true;
  c.whole.softcap = 1.5f, c.whole.scale = 0.3f, c.whole.sink = 1;
  expect_grids(c, {{4, 2}, {8, 4}});
  c.whole = small(3);
  expect_grids(c, {{4, 2}});
  c.whole = causal(small(41)), c.whole.alibi = 1;
  expect_grids(c, {{4, 2}, {8, 2}});
}

TEST(ContextParallelGrid, sixteen_bits_are_rounded_once) {
  for (const fh_dtype dtype : {FH_BF16, FH_F16})
    for (const fh_dtype out : {FH_USUAL, FH_F32}) {
      CpCase c;
      c.whole = causal(small(70)), c.out = out;
      c.whole.dtype = dtype, c.whole.dim_qk = 24, c.whole.sink = 1;
      expect_grids(c, {{4, 2}, {8, 4}});
    }
}

TEST(ContextParallelGrid, documents) {
  for (const fh_problem& p : {small(45), causal(small(45)), windowed(small(45), 5, 3), windowed(small(45), 9, 0)})
    for (const fh_cp_layout layout : layouts) {
      CpCase c;
      c.whole = p, c.whole.batch = 1, c.layout = layout, c.documents = {0, 0, 7, 8, 36, 36, 40, 45, 45};
      expect_grids(c, {{4, 2}, {8, 2}});
    }
}

TEST(ContextParallelGrid, documents_that_are_divided_with_all_options) {
  for (const fh_dtype out : {FH_USUAL, FH_F32}) {
    CpCase c;
    c.whole = causal(small(70, 8, 2)), c.out = out, c.grad_lse = true, c.layout = FH_CP_BY_DOCUMENT;
    c.whole.dtype = FH_BF16, c.whole.batch = 1, c.whole.sink = 1, c.whole.softcap = 1.5f;
    c.documents = {0, 1, 24, 25, 57, 70};
    expect_grids(c, {{4, 1}, {4, 4}, {8, 4}, {6, 2}});
    c.whole.dtype = FH_F32, c.whole.softcap = 0, c.whole.alibi = 1;
    expect_grids(c, {{4, 2}});
  }
}

// Exchanging heads changes no sum: a group is a rank of a smaller ring. Where documents are divided this is so if twice
// the ranks divides each. A call of few rows has other tiles on the CPU with one key head than with several, so that
// each rank gets two of these.
void expect_bits_of_groups(fh_problem p, fh_cp_layout layout, const std::vector<int64_t>& documents) {
  p.dtype = FH_BF16, p.sink = 1;
  const std::pair<fh_cp_scheme, fh_cp_scheme> pairs[] = {{FH_CP_ALL_TO_ALL_RING, FH_CP_RING},
                                                         {FH_CP_ALL_TO_ALL_GATHER, FH_CP_ALL_GATHER}};
  for (const auto& [scheme, flat] : pairs) {
    CpCase c = on({8, 4}, p, scheme), few = on({2, 0}, p, flat);
    c.grad_lse = few.grad_lse = true;
    c.layout = few.layout = layout, c.documents = few.documents = documents;
    CpTensors wanted = test::inputs(c);
    test::run_alone(c, wanted);
    CpTensors found = wanted, again = wanted;
    for (const auto& [which, t] : {std::pair{&few, &wanted}, {&c, &found}, {&c, &again}}) {
      test::run_ranks(*which, FH_BACKWARD, *t);
      test::run_ranks(*which, FH_FORWARD, *t);
    }
    for (const test::Compared& x : test::everything) {
      EXPECT_EQ(found.*x.tensor, again.*x.tensor) << x.name;
      EXPECT_EQ(found.*x.tensor, wanted.*x.tensor) << x.name;
    }
  }
}

TEST(ContextParallelGrid, bits_are_those_of_as_many_ranks_as_there_are_groups) {
  expect_bits_of_groups(causal(small(45, 16, 8)), FH_CP_LAYOUT_AUTO, {});
  expect_bits_of_groups(causal(test::packed(96, 16, 8)), FH_CP_BY_DOCUMENT, {0, 16, 64, 64, 96});
}

std::vector<std::pair<int64_t, int64_t>> held(const CpCase& c, int64_t rank) {
  std::vector<std::pair<int64_t, int64_t>> all;
  for (const fh_cp_range& range : test::rows_held(test::plan_of(c, FH_FORWARD, rank).get(), rank))
    all.emplace_back(range.begin, range.end);
  return all;
}

TEST(ContextParallelGrid, a_shard_does_not_depend_on_the_scheme) {
  for (const fh_cp_layout layout : layouts)
    for (const int64_t rows : {5, 37, 64})
      for (int64_t rank = 0; rank < 8; ++rank) {
        CpCase c = on({8, 4}, small(rows), FH_CP_ALL_TO_ALL_RING), ring = on({8, 0}, small(rows), FH_CP_RING);
        c.layout = ring.layout = layout;
        if (layout == FH_CP_BY_DOCUMENT)
          for (CpCase* packed : {&c, &ring}) packed->whole.batch = 1, packed->documents = {0, rows / 3, rows};
        EXPECT_EQ(held(c, rank), held(ring, rank));
      }
}

// 4 ranks of 16 rows, zigzag, 4 query heads and 2 of keys, 16 and 8 columns in f32. A row has 4 (16 + 8) (4 + 2) bytes
// of q, k, v and o, and 16 of lse. To its neighbour a rank sends half of them. To the other group it sends k and v of
// one head: the first chunk of 16 rows, and from group 1 the second chunk as well.
TEST(ContextParallelGrid, only_what_is_seen_moves) {
  CpCase c = on({4, 2}, causal(small(64)), FH_CP_ALL_TO_ALL_RING);
  c.whole.batch = 1;
  CpTensors t = test::inputs(c);
  const uint64_t heads = 4 * 16 * (uint64_t{4 * 24 * 6} / 2 + 16 / 2), keys = 2 * (16 + 32) * uint64_t{24 * 4};
  EXPECT_EQ(test::run_ranks(c, FH_FORWARD, t), heads + keys);
}

fh_problem long_sequence(int64_t rows) {
  fh_problem p = fh_problem_init();
  p.batch = 1, p.heads_q = 64, p.heads_kv = 8, p.seq_q = p.seq_kv = rows, p.dim_qk = 128, p.causal = 1;
  return p;
}

fh_cp_problem over_hosts(const fh_problem& whole, int64_t ranks, fh_cp_scheme scheme) {
  fh_cp_problem p = fh_cp_problem_init();
  p.whole = &whole, p.ranks = ranks, p.scheme = scheme, p.ranks_per_host = 8;
  return p;
}

TEST(ContextParallelGrid, heads_go_within_hosts_and_keys_between_them) {
  const fh_problem whole = long_sequence(1 << 20);
  double fastest = 1e9;
  for (const fh_cp_scheme scheme : {FH_CP_RING, FH_CP_ALL_GATHER})
    fastest = std::min(fastest, fh_cp_plan_seconds(planned(over_hosts(whole, 512, scheme), "h100").get()));
  const test::CpPlan plan = planned(over_hosts(whole, 512, FH_CP_AUTO), "h100");
  EXPECT_GE(fh_cp_plan_scheme(plan.get()), FH_CP_ALL_TO_ALL_RING) << fh_cp_plan_text(plan.get());
  EXPECT_LT(fh_cp_plan_seconds(plan.get()), fastest / 2);
}

TEST(ContextParallelGrid, the_fastest_grid_is_chosen_alike_by_all_ranks) {
  const fh_problem whole = long_sequence(1 << 17);
  for (const fh_cp_scheme scheme : both_schemes) {
    fh_cp_problem p = over_hosts(whole, 16, scheme);
    const test::CpPlan chosen = planned(p, "h100");
    double fastest = 1e9;
    for (const int64_t heads_ranks : {1, 2, 4, 8, 16}) {
      p.heads_ranks = heads_ranks;
      fastest = std::min(fastest, fh_cp_plan_seconds(planned(p, "h100").get()));
    }
    EXPECT_EQ(fh_cp_plan_seconds(chosen.get()), fastest);
    p.heads_ranks = 0;
    for (int64_t rank = 1; rank < 16; ++rank) {
      p.rank = rank;
      EXPECT_EQ(fh_cp_plan_heads_ranks(planned(p, "h100").get()), fh_cp_plan_heads_ranks(chosen.get()));
    }
  }
  fh_cp_problem any = over_hosts(whole, 16, FH_CP_AUTO);
  any.heads_ranks = 4;
  const std::string text = fh_cp_explain(&any, "h100");
  EXPECT_NE(text.find("all_to_all_ring of 4 x 4: "), std::string::npos) << text;
  EXPECT_EQ(text.find(" of 8 x 2"), std::string::npos) << text;
  const test::CpPlan ring = planned(over_hosts(whole, 16, FH_CP_RING), "h100");
  EXPECT_EQ(fh_cp_plan_heads_ranks(ring.get()), 0);
  EXPECT_EQ(fh_cp_plan_heads_ranks(nullptr), 0);
}

TEST(ContextParallelGrid, four_thousand_ranks_are_planned_without_running) {
  const fh_problem whole = long_sequence(int64_t{1} << 24);
  const auto began = std::chrono::steady_clock::now();
  fh_cp_problem p = over_hosts(whole, 4096, FH_CP_AUTO);
  p.rank = 1234;
  EXPECT_GE(fh_cp_plan_scheme(planned(p, "h100").get()), FH_CP_ALL_TO_ALL_RING);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
}

TEST(ContextParallelGrid, the_text_names_the_grid) {
  const fh_problem whole = long_sequence(64);
  fh_cp_problem p = over_hosts(whole, 4, FH_CP_ALL_TO_ALL_RING);
  p.heads_ranks = 2, p.rank = 1;
  const std::string text = fh_cp_explain(&p, "cpu");
  for (const char* part :
       {"cpu all_to_all_ring of 2 x 2 rank 1 of 4, zigzag layout", "rows 8 to 16 48 to 56",
        "exchange heads of q, k, v: from 0:", "exchange k, v: from 3:", "exchange heads of o, lse: from 0:"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

// 3 documents of uneven length over 4 groups: each step between them is one call, and groups have equal work.
TEST(ContextParallelGrid, a_step_has_all_documents_that_are_divided) {
  const fh_problem whole = long_sequence(4096);
  const std::vector<int64_t> documents = {0, 1001, 3004, 4096};
  fh_cp_problem p = over_hosts(whole, 8, FH_CP_ALL_TO_ALL_RING);
  p.heads_ranks = 2, p.rank = 5, p.layout = FH_CP_BY_DOCUMENT, p.cu_seqlens = documents.data(), p.documents = 3;
  const std::string text = fh_cp_explain(&p, "cpu");
  EXPECT_NE(text.find("all_to_all_ring of 2 x 4 rank 5 of 8, by_document layout"), std::string::npos) << text;
  EXPECT_NE(text.find("a rank has 1.00 to 1.00 of the mean pairs"), std::string::npos) << text;
  size_t calls = 0;
  for (size_t at = text.find("  attend "); at != std::string::npos; at = text.find("  attend ", at + 1)) ++calls;
  EXPECT_EQ(calls, 4u) << text;
  p.scheme = FH_CP_ALL_TO_ALL, p.heads_ranks = 0;
  EXPECT_EQ(std::string(fh_cp_explain(&p, "cpu")).find("of the mean pairs"), std::string::npos);
}

TEST(ContextParallelGrid, heads_of_many_divided_documents_are_not_exchanged) {
  const fh_problem whole = long_sequence(1 << 17);
  std::vector<int64_t> documents;
  for (int64_t i = 0; i <= 65; ++i) documents.push_back(i < 65 ? 2000 * i : 1 << 17);
  for (const int32_t heads_ranks : {0, 1, 8})
    for (const fh_cp_scheme scheme : both_schemes) {
      fh_cp_problem p = over_hosts(whole, 32, scheme);
      p.heads_ranks = heads_ranks, p.layout = FH_CP_BY_DOCUMENT, p.cu_seqlens = documents.data(), p.documents = 65;
      fh_cp_plan* plan = nullptr;
      EXPECT_EQ(fh_cp_plan_create(&p, "h100", &plan), FH_UNSUPPORTED);
      EXPECT_NE(
          std::string(fh_cp_last_error())
              .find("documents is 65, but must be at most 64 for an all-to-all in FH_CP_BY_DOCUMENT, which moves "
                    "each piece of each by itself. Use FH_CP_RING or FH_CP_ALL_GATHER"),
          std::string::npos)
          << fh_cp_last_error();
      p.scheme = FH_CP_AUTO;
      EXPECT_LE(fh_cp_plan_scheme(planned(p, "h100").get()), FH_CP_ALL_GATHER);
    }
}

TEST(ContextParallelGrid, layout_of_no_choice_suits_an_exchange_of_heads) {
  const fh_problem whole = long_sequence(1 << 17);
  const auto layout_of = [&](fh_cp_scheme scheme, const std::vector<int64_t>& documents) {
    fh_cp_problem p = over_hosts(whole, 8, scheme);
    p.layout = FH_CP_LAYOUT_AUTO, p.cu_seqlens = documents.data();
    p.documents = static_cast<int64_t>(documents.size()) - 1;
    return fh_cp_plan_layout(planned(p, "h100").get());
  };
  const std::vector<int64_t> few = {0, 100000, 1 << 17};
  std::vector<int64_t> many;
  for (int64_t i = 0; i <= 65; ++i) many.push_back(i < 65 ? 10 * i : 1 << 17);
  EXPECT_EQ(layout_of(FH_CP_RING, few), FH_CP_BY_DOCUMENT);
  EXPECT_EQ(layout_of(FH_CP_ALL_TO_ALL_RING, few), FH_CP_BY_DOCUMENT);
  EXPECT_EQ(layout_of(FH_CP_ALL_TO_ALL_RING, many), FH_CP_ZIGZAG);
  EXPECT_EQ(layout_of(FH_CP_ALL_TO_ALL, few), FH_CP_ZIGZAG);
}

TEST(ContextParallelGrid, divided_documents_are_planned_in_a_moment) {
  const fh_problem whole = long_sequence(1 << 20);
  std::vector<int64_t> documents;
  for (int64_t i = 0; i <= 64; ++i) documents.push_back(i * i * 256);
  const auto began = std::chrono::steady_clock::now();
  fh_cp_problem p = over_hosts(whole, 64, FH_CP_AUTO);
  p.layout = FH_CP_BY_DOCUMENT, p.cu_seqlens = documents.data(), p.documents = 64;
  EXPECT_NE(planned(p, "h100"), nullptr);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
}

TEST(ContextParallelGrid, what_cannot_be_is_said) {
  const auto refusal = [](const std::function<void(fh_problem&, fh_cp_problem&)>& spoil) {
    fh_problem whole = long_sequence(64);
    fh_cp_problem p = over_hosts(whole, 4, FH_CP_ALL_TO_ALL_RING);
    spoil(whole, p);
    fh_cp_plan* plan = nullptr;
    EXPECT_NE(fh_cp_plan_create(&p, "cpu", &plan), FH_OK);
    EXPECT_EQ(plan, nullptr);
    return std::string(fh_cp_last_error());
  };
  const std::pair<std::string, const char*> said[] = {
      {refusal([](fh_problem&, fh_cp_problem& p) { p.heads_ranks = 3; }),
       "heads_ranks is 3, but must divide ranks, 4. Use heads_ranks 1, 2, 4 or 0 for the fastest"},
      {refusal([](fh_problem&, fh_cp_problem& p) { p.heads_ranks = -1; }),
       "heads_ranks is -1, but must divide ranks"},
      {refusal([](fh_problem&, fh_cp_problem& p) { p.heads_ranks = 2, p.scheme = FH_CP_RING; }),
       "heads_ranks is 2, but must be 0 with FH_CP_RING, which has no groups"},
      {refusal([](fh_problem&, fh_cp_problem& p) { p.scheme = static_cast<fh_cp_scheme>(6); }),
       "scheme is 6, which names no fh_cp_scheme. Use"},
      {refusal([](fh_problem& whole, fh_cp_problem& p) { whole.heads_q = 6, whole.heads_kv = 6, p.heads_ranks = 4; }),
       "heads_q is 6, which heads_ranks, 4, does not divide"},
      {refusal(
           [](fh_problem& whole, fh_cp_problem& p) { whole.heads_q = 12, whole.heads_kv = 3, p.heads_ranks = 2; }),
       "heads_kv is 3 and heads_ranks is 2; one must divide the other"},
      {refusal([](fh_problem& whole, fh_cp_problem&) { whole.alibi = 1; }),
       "alibi is set: blocks of the ring do not keep the distances of keys. Use FH_CP_ALL_TO_ALL_GATHER"},
      {refusal([](fh_problem& whole, fh_cp_problem&) { whole.causal = 0, whole.window_right = 3; }),
       "window_right is 3: the ring takes no window to the right other than 0 and FH_ALL. Use "
       "FH_CP_ALL_TO_ALL_GATHER"},
  };
  for (const auto& [text, part] : said) EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
}

}  // namespace
}  // namespace froghopper
