// SPDX-License-Identifier: Apache-2.0
// Claims about the layout that divides each document by itself: every row has one rank, ranks have equally many rows to
// one and equally much causal work, whatever the lengths of documents; every scheme gives what one rank gives, forward
// and backward; a step of the ring is one call; only what is seen moves; the model of time sees the balance.
// tests/cp_documents_test.cpp has the same cases for all layouts.
#include <gtest/gtest.h>

#include <chrono>

#include "tests/support/cp_compare.hpp"

namespace froghopper {
namespace {

using test::causal;
using test::CpCase;
using test::CpTensors;
using test::packed;
using test::planned;
using test::windowed;

using Documents = std::vector<int64_t>;

fh_cp_problem over(const fh_problem& whole, const Documents& documents, int64_t ranks, int64_t rank = 0) {
  fh_cp_problem p = fh_cp_problem_init();
  p.whole = &whole, p.ranks = ranks, p.rank = rank, p.layout = FH_CP_BY_DOCUMENT;
  p.cu_seqlens = documents.data(), p.documents = static_cast<int32_t>(documents.size()) - 1;
  return p;
}

std::vector<std::vector<fh_cp_range>> shards(const Documents& documents, int64_t ranks) {
  const fh_problem whole = causal(packed(documents.back()));
  const test::CpPlan plan = planned(over(whole, documents, ranks), "cpu");
  std::vector<std::vector<fh_cp_range>> all;
  for (int64_t rank = 0; rank < ranks; ++rank) all.push_back(test::rows_held(plan.get(), rank));
  return all;
}

Documents drawn_documents(std::mt19937& random, int64_t count, uint32_t longest) {
  Documents documents{0};
  for (int64_t i = 0; i < count; ++i)
    documents.push_back(documents.back() + static_cast<int64_t>(random() % longest));
  return documents;
}

size_t times(const std::string& text, const char* part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(ContextParallelByDocument, every_row_has_one_rank_and_ranks_have_equally_many) {
  std::mt19937 random(3);
  for (const int64_t ranks : {1, 2, 3, 4, 7})
    for (int i = 0; i < 20; ++i) {
      const Documents documents = drawn_documents(random, 1 + i, i % 2 == 0 ? 9 : 70);
      std::vector<int> seen(static_cast<size_t>(documents.back()), 0);
      int64_t least = documents.back(), most = 0;
      for (const std::vector<fh_cp_range>& ranges : shards(documents, ranks)) {
        int64_t last = -1, rows = 0;
        for (const fh_cp_range& range : ranges) {
          EXPECT_LT(last, range.begin);
          EXPECT_LT(range.begin, range.end);
          for (int64_t r = range.begin; r < range.end; ++r) ++seen[static_cast<size_t>(r)];
          rows += range.end - range.begin, last = range.end;
        }
        least = std::min(least, rows), most = std::max(most, rows);
      }
      EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
      EXPECT_LE(most - least, 1);
    }
}

// Where 2 ranks divides all lengths, as the layout of other libraries has it. Else the rests go round.
TEST(ContextParallelByDocument, the_rule) {
  const auto as_text = [](const std::vector<fh_cp_range>& ranges) {
    std::string all;
    for (const fh_cp_range& r : ranges) all += std::to_string(r.begin) + "-" + std::to_string(r.end) + " ";
    return all;
  };
  const auto even = shards({0, 16, 24}, 2);
  EXPECT_EQ(as_text(even[0]), "0-4 12-18 22-24 ");
  EXPECT_EQ(as_text(even[1]), "4-12 18-22 ");
  const auto odd = shards({0, 5, 5, 11, 12}, 2);  // pieces of 2, 1, 1, 1 rows; of 1, 2, 1, 2; of 0, 0, 0, 1
  EXPECT_EQ(as_text(odd[0]), "0-2 4-6 9-11 ");
  EXPECT_EQ(as_text(odd[1]), "2-4 6-9 11-12 ");
}

TEST(ContextParallelByDocument, every_scheme_gives_what_one_rank_gives) {
  std::mt19937 random(5);
  const auto below = [&](int64_t end) { return static_cast<int64_t>(random() % static_cast<uint64_t>(end)); };
  for (int i = 0; i < 16; ++i) {
    const Documents documents = drawn_documents(random, 1 + below(9), i % 3 == 0 ? 6 : 24);
    const int64_t left = i % 4 > 0 ? FH_ALL : below(20), right = below(3) > 0 ? 0 : below(2) > 0 ? FH_ALL : below(9);
    fh_problem p = windowed(packed(documents.back(), 4, 1 << below(3)), left, right);
    p.sink = static_cast<int32_t>(below(2));
    const int64_t ranks = 2 + below(4);
    for (const fh_cp_scheme scheme : {FH_CP_RING, FH_CP_ALL_GATHER, FH_CP_ALL_TO_ALL}) {
      if (scheme == FH_CP_ALL_TO_ALL && p.heads_q % ranks != 0) continue;
      if (scheme == FH_CP_RING && p.window_right > 0) continue;
      const CpCase c{p, ranks, scheme, FH_CP_BY_DOCUMENT, FH_USUAL, below(2) == 1, FH_CP_SEND_RECV, documents};
      test::expect_as_on_one_rank(c);
      fh_cp_problem copied = over(p, documents, ranks, below(ranks));  // sends and receives of all ranks match
      copied.scheme = scheme, copied.transfers = FH_CP_PEER_COPIES;
      EXPECT_NE(planned(copied, "cpu"), nullptr);
    }
  }
}

// The rows of a rank that do not see a later rank's keys keep their results, bit by bit, and so does a sink's gradient.
TEST(ContextParallelByDocument, two_runs_give_equal_bits) {
  for (const fh_cp_scheme scheme : {FH_CP_RING, FH_CP_ALL_GATHER, FH_CP_ALL_TO_ALL}) {
    fh_problem p = causal(packed(61));
    p.dtype = FH_BF16, p.sink = 1;
    const CpCase c{p, 4, scheme, FH_CP_BY_DOCUMENT, FH_USUAL, true, FH_CP_SEND_RECV, {0, 7, 8, 40, 40, 61}};
    test::expect_equal_bits(c, c);
  }
}

// Of 3 documents of 16, 32 and 8 rows on 4 ranks, the ring's calls and the gradients of the all-gather.
TEST(ContextParallelByDocument, one_call_has_all_documents) {
  fh_problem whole = causal(packed(56));
  const Documents documents = {0, 16, 48, 56};
  for (int64_t rank = 0; rank < 4; ++rank) {
    fh_cp_problem p = over(whole, documents, 4, rank);
    p.scheme = FH_CP_RING;
    const std::string text = fh_cp_explain(&p, "cpu");
    EXPECT_EQ(times(text, "  attend "), 4u) << text;
    EXPECT_EQ(times(text, " in 3 documents, "), 4u) << text;
    EXPECT_EQ(times(text, "attend 14 rows"), static_cast<size_t>(1 + rank)) << text;  // the others: second chunks
    EXPECT_EQ(times(text, "attend 7 rows"), static_cast<size_t>(3 - rank)) << text;
    EXPECT_NE(text.find("by_document layout"), std::string::npos);
    whole.op = FH_BACKWARD;
    p.scheme = FH_CP_ALL_GATHER;
    EXPECT_EQ(times(fh_cp_explain(&p, "cpu"), "gradients of "), rank == 3 ? 1u : 2u);
    whole.op = FH_FORWARD;
  }
}

// A row of k and v has 192 bytes: 2 heads of 16 and 8 columns. Ranks before this one send their first chunks, those
// after it both.
TEST(ContextParallelByDocument, only_what_is_seen_moves) {
  CpCase c{causal(packed(56)), 4, FH_CP_RING, FH_CP_BY_DOCUMENT};
  c.documents = {0, 16, 48, 56};
  const auto moved = [&](fh_cp_scheme scheme) {
    c.scheme = scheme;
    CpTensors t = test::inputs(c);
    return test::run_ranks(c, FH_FORWARD, t) / 192;
  };
  EXPECT_EQ(moved(FH_CP_RING), 7u * (3 * 2 + 1 + 2 * 2 + 2 + 1 * 2 + 3));
  EXPECT_EQ(moved(FH_CP_ALL_GATHER), moved(FH_CP_RING));
  c.whole = windowed(packed(56), 0, 0);
  EXPECT_EQ(moved(FH_CP_ALL_GATHER), 0u);
  EXPECT_EQ(moved(FH_CP_RING), 0u);
}

// 8 documents of uneven length in 131072 rows on 4 GPUs, which copy into each other's memory.
TEST(ContextParallelByDocument, the_model_of_time_sees_the_balance) {
  fh_problem whole = causal(packed(131072, 64, 8));
  whole.dtype = FH_BF16, whole.dim_qk = whole.dim_v = 128, whole.max_sms = 0;
  const Documents documents = {0, 41011, 46100, 61503, 63499, 94251, 102397, 106500, 131072};
  for (const fh_op op : {FH_FORWARD, FH_BACKWARD}) {
    whole.op = op;
    const double alone = fh_cp_plan_seconds(planned(over(whole, documents, 1), "h100").get());
    fh_cp_problem p = over(whole, documents, 4);
    p.transfers = FH_CP_PEER_COPIES;
    EXPECT_GE(alone / 4 / fh_cp_plan_seconds(planned(p, "h100").get()), 0.9);
    p.scheme = FH_CP_RING;
    EXPECT_NE(std::string(fh_cp_explain(&p, "h100")).find("a rank has 1.00 to 1.00 of the mean pairs"),
              std::string::npos);
    const double by_document = fh_cp_plan_seconds(planned(p, "h100").get());
    p.layout = FH_CP_ZIGZAG;
    EXPECT_NE(std::string(fh_cp_explain(&p, "h100")).find("a rank has 0.64 to 1.41 of the mean pairs"),
              std::string::npos)
        << fh_cp_explain(&p, "h100");
    EXPECT_GT(fh_cp_plan_seconds(planned(p, "h100").get()), 1.2 * by_document);
  }
}

TEST(ContextParallelByDocument, many_documents_are_planned_in_a_moment) {
  const fh_problem whole = causal(packed(1 << 17, 64, 8));
  Documents documents;
  for (int64_t row = 0; row <= 1 << 17; row += 128) documents.push_back(row);
  const auto began = std::chrono::steady_clock::now();
  for (const fh_cp_scheme scheme : {FH_CP_AUTO, FH_CP_RING, FH_CP_ALL_GATHER}) {
    fh_cp_problem p = over(whole, documents, 8, 3);
    p.scheme = scheme, p.transfers = FH_CP_PEER_COPIES;
    EXPECT_GT(fh_cp_plan_bytes_in(planned(p, "cpu").get()), 0u);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
  fh_cp_problem p = over(whole, documents, 8, 3);
  p.scheme = FH_CP_ALL_TO_ALL;
  EXPECT_NE(std::string(fh_cp_explain(&p, "cpu")).find("documents is 1024, but must be at most 64 for an all-to-all"),
            std::string::npos);
}

// Where a zigzag leaves the work of ranks unequal, whoever asks.
TEST(ContextParallelByDocument, the_layout_that_is_chosen) {
  fh_problem whole = causal(packed(1024));
  const auto chosen = [&](const Documents& documents) {
    std::vector<fh_cp_layout> all;
    for (const fh_op op : {FH_FORWARD, FH_BACKWARD})
      for (const int64_t rank : {0, 3}) {
        whole.op = op;
        fh_cp_problem p = over(whole, documents, 4, rank);
        p.layout = FH_CP_LAYOUT_AUTO;
        all.push_back(fh_cp_plan_layout(planned(p, "cpu").get()));
      }
    for (const fh_cp_layout layout : all) EXPECT_EQ(layout, all.front());
    return all.front();
  };
  EXPECT_EQ(chosen({0, 1024}), FH_CP_ZIGZAG);
  EXPECT_EQ(chosen({0, 400, 1024}), FH_CP_BY_DOCUMENT);
  Documents short_ones;
  for (int64_t row = 0; row <= 1024; row += 16) short_ones.push_back(row);
  EXPECT_EQ(chosen(short_ones), FH_CP_ZIGZAG);
  whole.causal = 0;
  EXPECT_EQ(chosen({0, 400, 1024}), FH_CP_CONTIGUOUS);
}

TEST(ContextParallelByDocument, it_needs_documents) {
  const fh_problem whole = causal(packed(40));
  fh_cp_problem p = over(whole, {}, 4);
  p.cu_seqlens = nullptr, p.documents = 0;
  EXPECT_NE(std::string(fh_cp_explain(&p, "cpu")).find("layout is FH_CP_BY_DOCUMENT, but cu_seqlens is NULL"),
            std::string::npos);
}

}  // namespace
}  // namespace froghopper
