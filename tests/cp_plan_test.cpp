// SPDX-License-Identifier: Apache-2.0
// Claims about plans over ranks: shards cover the sequence once, thousands of ranks are planned at once, all ranks
// choose the same scheme, the choice keeps to the limit on memory, and what cannot be computed is said with names and
// numbers.
#include <gtest/gtest.h>

#include <chrono>

#include "tests/support/cp_attention.hpp"

namespace froghopper {
namespace {

fh_problem causal(int64_t rows, int64_t heads_q = 16, int64_t heads_kv = 16) {
  fh_problem p = fh_problem_init();
  p.batch = 1, p.heads_q = heads_q, p.heads_kv = heads_kv, p.seq_q = p.seq_kv = rows, p.dim_qk = 128, p.causal = 1;
  return p;
}

fh_cp_problem over(const fh_problem& whole, int64_t ranks, int64_t rank = 0, fh_cp_scheme scheme = FH_CP_AUTO) {
  fh_cp_problem p = fh_cp_problem_init();
  p.whole = &whole, p.ranks = ranks, p.rank = rank, p.scheme = scheme;
  return p;
}

using test::planned;

TEST(ContextParallelPlan, shards_cover_the_sequence_once) {
  for (const fh_cp_layout layout : {FH_CP_CONTIGUOUS, FH_CP_ZIGZAG})
    for (const int64_t ranks : {1, 2, 3, 7})
      for (const int64_t rows : {0, 1, 2, 5, 13, 14, 100}) {
        const fh_problem whole = causal(rows);
        fh_cp_problem p = over(whole, ranks, 0, FH_CP_RING);
        p.layout = layout;
        const test::CpPlan plan = planned(p, "cpu");
        std::vector<int> seen(static_cast<size_t>(rows), 0);
        for (int64_t rank = 0; rank < ranks; ++rank) {
          int64_t last = -1;
          for (const fh_cp_range& range : test::rows_held(plan.get(), rank)) {
            EXPECT_LT(last, range.begin);
            EXPECT_LT(range.begin, range.end);
            for (int64_t r = range.begin; r < range.end; ++r) ++seen[static_cast<size_t>(r)];
            last = range.end;
          }
        }
        EXPECT_EQ(seen, std::vector<int>(static_cast<size_t>(rows), 1));
      }
}

TEST(ContextParallelPlan, four_thousand_ranks_are_planned_without_running) {
  const fh_problem whole = causal(int64_t{1} << 27, 64, 8);
  const auto began = std::chrono::steady_clock::now();
  for (const fh_cp_scheme scheme : {FH_CP_RING, FH_CP_ALL_GATHER}) {
    fh_cp_problem p = over(whole, 4096, 1234, scheme);
    p.ranks_per_host = 8;
    const test::CpPlan plan = planned(p, "h100");
    // k and v of 2 KiB a row each: the first chunks of all other ranks, and the second ones of those after this.
    const uint64_t chunk = (uint64_t{1} << 27) / 8192;
    EXPECT_EQ(fh_cp_plan_bytes_in(plan.get()), (4095 + 4095 - 1234) * chunk * 4096);
    EXPECT_GT(fh_cp_plan_seconds(plan.get()), 0);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
}

TEST(ContextParallelPlan, all_ranks_choose_alike_and_the_choice_is_the_fastest) {
  const fh_problem whole = causal(131072, 64, 8);
  std::vector<double> seconds;
  for (const fh_cp_scheme scheme : {FH_CP_RING, FH_CP_ALL_GATHER, FH_CP_ALL_TO_ALL})
    seconds.push_back(fh_cp_plan_seconds(planned(over(whole, 4, 0, scheme), "h100").get()));
  const test::CpPlan first = planned(over(whole, 4, 0), "h100");
  EXPECT_EQ(fh_cp_plan_seconds(first.get()), *std::min_element(seconds.begin(), seconds.end()));
  for (int64_t rank = 1; rank < 4; ++rank)
    EXPECT_EQ(fh_cp_plan_scheme(planned(over(whole, 4, rank), "h100").get()), fh_cp_plan_scheme(first.get()));
}

// With as many K/V heads as query heads, only a forward ring takes what is predicted.
TEST(ContextParallelPlan, a_forward_pass_takes_the_ring_where_others_are_hardly_shorter) {
  const fh_problem whole = causal(131072, 16, 16);
  const auto seconds = [&](fh_cp_scheme scheme) {
    fh_cp_problem p = over(whole, 2, 0, scheme);
    p.transfers = FH_CP_PEER_COPIES;
    const test::CpPlan plan = planned(p, "h200");
    return std::pair(fh_cp_plan_scheme(plan.get()), fh_cp_plan_seconds(plan.get()));
  };
  const double share = seconds(FH_CP_RING).second / seconds(FH_CP_ALL_GATHER).second;
  ASSERT_GT(share, 1);
  ASSERT_LT(share, 1.02);
  EXPECT_EQ(seconds(FH_CP_AUTO).first, FH_CP_RING);
}

// The model against times that are derived by hand: a long causal sequence hides what moves, so 4 ranks take a quarter.
TEST(ContextParallelPlan, long_sequences_take_their_share_of_the_time) {
  const fh_problem whole = causal(int64_t{1} << 20, 64, 8);
  const double alone = fh_cp_plan_seconds(planned(over(whole, 1), "h100").get());
  const double share = alone / 4 / fh_cp_plan_seconds(planned(over(whole, 4, 0, FH_CP_RING), "h100").get());
  EXPECT_GT(share, 0.9);
  EXPECT_LE(share, 1.0);
}

// Of 65536 keys of rank 0 the last 4096 have gradients by rank 1 too: only these are summed, and rounded afterwards.
TEST(ContextParallelPlan, keys_of_one_rank_alone_have_their_gradients_once) {
  fh_problem whole = causal(131072);
  whole.causal = 0, whole.window_left = 4096, whole.window_right = 0, whole.op = FH_BACKWARD;
  const std::string text = fh_cp_plan_text(planned(over(whole, 2, 0, FH_CP_RING), "h100").get());
  EXPECT_NE(text.find("gradients of rows 0 to 65536, 61440 keys from 0 on"), std::string::npos) << text;
  EXPECT_NE(text.find("first of its calls, dk and dv rounded"), std::string::npos) << text;
  EXPECT_NE(text.find("gradients of rows 0 to 65536, 4096 keys from 61440 on"), std::string::npos) << text;
  EXPECT_NE(text.find("round to grad_k, " + std::to_string(4096 * 16 * 128) + " values"), std::string::npos) << text;
}

TEST(ContextParallelPlan, the_limit_on_memory_is_kept) {
  const fh_problem whole = causal(65536);
  const uint64_t ring = fh_cp_plan_workspace_bytes(planned(over(whole, 8, 0, FH_CP_RING), "cpu").get());
  const uint64_t gather = fh_cp_plan_workspace_bytes(planned(over(whole, 8, 0, FH_CP_ALL_GATHER), "cpu").get());
  EXPECT_LT(ring, gather);
  fh_cp_problem p = over(whole, 8);
  p.workspace_limit = ring;
  EXPECT_EQ(fh_cp_plan_scheme(planned(p, "cpu").get()), FH_CP_RING);
  p.workspace_limit = 1;
  fh_cp_plan* plan = nullptr;
  EXPECT_EQ(fh_cp_plan_create(&p, "cpu", &plan), FH_UNSUPPORTED);
  for (const char* part : {"within workspace_limit, 1 byte. ", " all_to_all: workspace of", " ring: workspace of"})
    EXPECT_NE(std::string(fh_cp_last_error()).find(part), std::string::npos) << fh_cp_last_error();
}

// On a GPU the backward pass needs workspace of its own, of which the steps know nothing.
TEST(ContextParallelPlan, the_limit_on_memory_is_that_of_the_attention_too) {
  fh_problem whole = causal(65536);
  whole.op = FH_BACKWARD;
  uint64_t least = UINT64_MAX;
  for (const fh_cp_scheme scheme : {FH_CP_RING, FH_CP_ALL_GATHER, FH_CP_ALL_TO_ALL}) {
    uint64_t most = 0;
    for (int64_t rank = 0; rank < 4; ++rank)
      most = std::max(most, fh_cp_plan_workspace_bytes(planned(over(whole, 4, rank, scheme), "h100").get()));
    least = std::min(least, most);
  }
  fh_cp_problem p = over(whole, 4);
  p.workspace_limit = least;
  EXPECT_LE(fh_cp_plan_workspace_bytes(planned(p, "h100").get()), least);
  p.workspace_limit = least - 1;
  fh_cp_plan* plan = nullptr;
  EXPECT_EQ(fh_cp_plan_create(&p, "h100", &plan), FH_UNSUPPORTED);
  fh_cp_plan_destroy(plan);
}

TEST(ContextParallelPlan, the_text_has_every_step) {
  const fh_problem whole = causal(64);
  const std::string text = fh_cp_explain(
      [&] {
        static fh_cp_problem p;
        return p = over(whole, 4, 1, FH_CP_RING), &p;
      }(),
      "cpu");
  for (const char* part : {"cpu ring rank 1 of 4, zigzag layout", "rows 8 to 16 48 to 56",
                           "exchange k, v: from 0: 65536; to 2: 65536 bytes", "wait for the oldest exchange",
                           "attend rows 8 to 16, 8 keys from 8 on, causal, first of its calls",
                           "attend rows 48 to 56, 16 keys from 8 on, causal, first of its calls",
                           "attend rows 48 to 56, 16 keys from 16 on, all pairs, merged",
                           "attend rows 8 to 16, 8 keys from 0 on, all pairs, merged and rounded"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

TEST(ContextParallelPlan, what_cannot_be_is_said) {
  const fh_problem good = causal(64);
  const auto refusal = [](const fh_problem& whole, const std::function<void(fh_cp_problem&)>& spoil) {
    fh_cp_problem p = over(whole, 4);
    spoil(p);
    fh_cp_plan* plan = nullptr;
    EXPECT_NE(fh_cp_plan_create(&p, "cpu", &plan), FH_OK);
    EXPECT_EQ(plan, nullptr);
    return std::string(fh_cp_last_error());
  };
  const auto with = [&](const std::function<void(fh_problem&)>& change) {
    fh_problem p = good;
    change(p);
    return p;
  };
  const auto same = [](fh_cp_problem&) {};
  const auto scheme = [](fh_cp_scheme s) { return [s](fh_cp_problem& p) { p.scheme = s; }; };
  const std::pair<std::string, const char*> said[] = {
      {refusal(good, [](fh_cp_problem& p) { p.ranks = 0; }), "ranks is 0, but must be 1 to 4096"},
      {refusal(good, [](fh_cp_problem& p) { p.rank = 4; }), "rank is 4, but must be 0 to ranks - 1, which is 3"},
      {refusal(good, [](fh_cp_problem& p) { p.whole = nullptr; }),
       "whole must be the problem of all rows, but is NULL"},
      {refusal(good, [](fh_cp_problem& p) { p.size = 0; }), "size is 0"},
      {refusal(good, [](fh_cp_problem& p) { p.dtype_out = FH_F16; }),
       "dtype_out is FH_F16, but results have whole->dtype, FH_BF16, or are not rounded. Set it to FH_USUAL for "
       "FH_BF16, or to FH_F32."},
      {refusal(with([](fh_problem& p) { p.dtype = FH_F32; }), [](fh_cp_problem& p) { p.dtype_out = FH_F16; }),
       "dtype_out is FH_F16, but whole->dtype is FH_F32, and its results are not rounded to another type. Set it to "
       "FH_USUAL."},
      {refusal(good, [](fh_cp_problem& p) { p.check_interval = -2; }),
       "check_interval must be -1 or more, but is -2. Set it to 0 for every call."},
      {refusal(good, [](fh_cp_problem& p) { p.ranks_per_host = -1; }),
       "ranks_per_host must be 0 or more, but is -1. Set it to 0 for all."},
      {refusal(with([](fh_problem& p) { p.dtype_o = FH_F32; }), same),
       "whole->dtype_o is FH_F32, but must be FH_USUAL, as dtype_out of fh_cp_problem says the type of results. Set "
       "it to FH_USUAL, and dtype_out to FH_F32"},
      {refusal(with([](fh_problem& p) { p.seq_kv = 60; }), same),
       "whole->seq_q is 64 and seq_kv 60, but must be equal: rows of q, k and v are spread alike. Set both to the "
       "number of rows of all ranks."},
      {refusal(good,
               [](fh_cp_problem& p) {
                 static const int32_t ends[] = {0, 10, 20, 64};
                 p.documents = 3, p.cu_seqlens = reinterpret_cast<const int64_t*>(ends);
               }),
       "cu_seqlens[0] is 42949672960, which looks like two numbers of 32 bits, 0 and 10, but cu_seqlens are int64, "
       "not "
       "int32. Give an array of int64."},
      {refusal(good,
               [](fh_cp_problem& p) {
                 static const int32_t ends[] = {0, 0, 20, 64};
                 p.documents = 3, p.cu_seqlens = reinterpret_cast<const int64_t*>(ends);
               }),
       "cu_seqlens[1] is 274877906964, which looks like two numbers of 32 bits, 20 and 64, but"},
      {refusal(with([](fh_problem& p) { p.attention_chunk = 8; }), same), "attention_chunk is set"},
      {refusal(with([](fh_problem& p) { p.invariant = 1; }), same), "invariant is set"},
      {refusal(with([](fh_problem& p) { p.gate = 1; }), same), "gate is set"},
      {refusal(with([](fh_problem& p) { p.scale_tokens = 1; }), same), "of whole, scale_tokens is 1 and k"},
      {refusal(with([](fh_problem& p) { p.window_right = 3; }), same),
       "of whole, causal is set and window_right is 3"},
      {refusal(with([](fh_problem& p) { p.align = static_cast<fh_align>(4); }), same), "of whole, align is 4"},
      {refusal(with([](fh_problem& p) { p.heads_q = -1; }), same), "of whole, heads_q is -1"},
      {refusal(with([](fh_problem& p) { p.dtype = FH_E4M3; }), same), "whole->dtype is FH_E4M3, but must be"},
      {refusal(with([](fh_problem& p) { p.op = FH_APPEND; }), same),
       "whole->op is FH_APPEND, but must be FH_FORWARD or FH_BACKWARD"},
      {refusal(with([](fh_problem& p) { p.dtype_kv = FH_F16; }), same), "whole->dtype_kv is FH_F16, but must be"},
      {refusal(good, scheme(static_cast<fh_cp_scheme>(7))),
       "scheme is 7, which names no fh_cp_scheme. Use FH_CP_AUTO, FH_CP_RING, FH_CP_ALL_GATHER, FH_CP_ALL_TO_ALL, "
       "FH_CP_ALL_TO_ALL_RING or FH_CP_ALL_TO_ALL_GATHER."},
      {refusal(good, [](fh_cp_problem& p) { p.layout = static_cast<fh_cp_layout>(-1); }),
       "layout is -1, which names no fh_cp_layout. Use FH_CP_LAYOUT_AUTO, FH_CP_CONTIGUOUS, FH_CP_ZIGZAG or "
       "FH_CP_BY_DOCUMENT."},
      {refusal(good, [](fh_cp_problem& p) { p.transfers = static_cast<fh_cp_transfers>(2); }),
       "transfers is 2, which names no fh_cp_transfers. Use FH_CP_SEND_RECV or FH_CP_PEER_COPIES."},
      {refusal(with([](fh_problem& p) { p.heads_kv = 5; }), same), "heads_kv"},
      {refusal(causal(64, 6, 2), scheme(FH_CP_ALL_TO_ALL)), "heads_q is 6, which ranks, 4, does not divide"},
      {refusal(causal(64, 12, 3), scheme(FH_CP_ALL_TO_ALL)), "heads_kv is 3 and ranks is 4; one must divide"},
      {refusal(with([](fh_problem& p) { p.alibi = 1; }), scheme(FH_CP_RING)), "alibi is set: blocks of the ring"},
      {refusal(with([](fh_problem& p) { p.alibi = 1, p.causal = 0; }), scheme(FH_CP_ALL_GATHER)),
       "alibi is set without a causal mask"},
      {refusal(with([](fh_problem& p) { p.alibi = 1, p.causal = 0, p.heads_q = p.heads_kv = 6; }), same),
       "no scheme computes this. ring: alibi is set: blocks of the ring do not keep the distances of keys. "
       "all_gather: alibi is set without a causal mask: the keys fetched do not keep their distances. all_to_all: "
       "heads_q is 6, which ranks, 4, does not divide. Use 2, 3 or 6 ranks, or a causal mask."},
      {refusal(with([](fh_problem& p) { p.causal = 0, p.window_right = 3; }), scheme(FH_CP_RING)),
       "window_right is 3: the ring"},
  };
  for (const auto& [text, part] : said) EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
}

// What a later version's caller asks for is not left out in silence.
TEST(ContextParallelPlan, fields_that_are_not_known_are_refused) {
  struct {
    fh_problem known = causal(64);
    int64_t more = 1;
  } whole;
  struct {
    fh_cp_problem known = fh_cp_problem_init();
    int64_t more = 1;
  } problem;
  const auto refused = [&](size_t size_of_whole, size_t size) {
    whole.known.size = size_of_whole, problem.known.size = size, problem.known.whole = &whole.known;
    fh_cp_plan* plan = nullptr;
    EXPECT_EQ(fh_cp_plan_create(&problem.known, "cpu", &plan), FH_INVALID_PROBLEM);
    return std::string(fh_cp_last_error());
  };
  const size_t of_whole = sizeof whole.known, of_problem = sizeof problem.known;
  EXPECT_NE(refused(sizeof whole, of_problem).find("fh_problem has a field at byte"), std::string::npos);
  EXPECT_NE(refused(of_whole, sizeof problem).find("fh_cp_problem has a field at byte"), std::string::npos);
  EXPECT_NE(refused(0, of_problem).find("fh_problem.size is 0; it must hold"), std::string::npos);
  EXPECT_NE(refused(of_whole, static_cast<size_t>(-1)).find("Start from fh_cp_problem_init()"), std::string::npos);
}

TEST(ContextParallelPlan, no_plan) {
  fh_cp_plan_destroy(nullptr);
  EXPECT_EQ(fh_cp_plan_workspace_bytes(nullptr), 0u);
  EXPECT_EQ(fh_cp_plan_on_gpu(nullptr), 0);
  EXPECT_EQ(fh_cp_plan_scheme(nullptr), FH_CP_AUTO);
  EXPECT_EQ(fh_cp_plan_layout(nullptr), FH_CP_LAYOUT_AUTO);
  EXPECT_EQ(fh_cp_plan_bytes_in(nullptr), 0u);
  EXPECT_EQ(fh_cp_plan_bytes_out(nullptr), 0u);
  EXPECT_EQ(fh_cp_plan_seconds(nullptr), 0.0);
  EXPECT_STREQ(fh_cp_plan_text(nullptr), "");
  int64_t count = 1;
  EXPECT_EQ(fh_cp_plan_tables(nullptr, &count), nullptr);
  EXPECT_EQ(count, 0);
  EXPECT_NE(fh_cp_plan_run(nullptr, nullptr, nullptr, nullptr, nullptr, 0, nullptr), FH_OK);
}

TEST(ContextParallelPlan, missing_arguments_are_named) {
  fh_problem whole = fh_problem_init();
  whole.heads_q = whole.heads_kv = 2, whole.seq_q = whole.seq_kv = 64, whole.dim_qk = 64;
  fh_cp_problem p = fh_cp_problem_init();
  p.whole = &whole, p.ranks = 4;
  fh_cp_plan *plan = nullptr, *none = reinterpret_cast<fh_cp_plan*>(16);
  ASSERT_EQ(fh_cp_plan_create(&p, "cpu", &plan), FH_OK) << fh_cp_last_error();
  const auto refused = [](fh_status status, const std::string& said) {
    EXPECT_NE(status, FH_OK) << said;
    EXPECT_EQ(std::string(fh_cp_last_error()).rfind(said, 0), 0u) << fh_cp_last_error();
  };
  refused(fh_cp_plan_create(nullptr, "cpu", &none), "fh_cp_plan_create: problem must point to your problem, but is ");
  EXPECT_EQ(none, nullptr) << "a common exit destroys what was not made";
  refused(fh_cp_plan_create(&p, "cuda:0", &none), "fh_cp_plan_create: target ");  // not fh_plan_create, too
  refused(fh_cp_plan_create(&p, "cpu", nullptr),
          "fh_cp_plan_create: plan must say where the result goes, but is NULL");
  fh_cp_range ranges[2];
  int64_t count = 0;
  refused(fh_cp_plan_rows(nullptr, 0, ranges, 2, &count),
          "fh_cp_plan_rows: plan must point to your plan, but is NULL");
  refused(fh_cp_plan_rows(plan, 0, ranges, 2, nullptr), "fh_cp_plan_rows: count must say where the result goes");
  refused(fh_cp_plan_rows(plan, 0, nullptr, 2, &count),
          "fh_cp_plan_rows: ranges must have room for 2 ranges, the capacity, but is NULL. Set it, or let capacity "
          "be 0.");
  refused(fh_cp_plan_rows(plan, 0, ranges, -1, &count), "fh_cp_plan_rows: capacity is -1, but counts ranges.");
  EXPECT_EQ(fh_cp_plan_rows(plan, 0, nullptr, 0, &count), FH_OK);
  const fh_cp_tensors t = fh_cp_tensors_init();
  refused(fh_cp_plan_run(nullptr, nullptr, nullptr, &t, nullptr, 0, nullptr), "fh_cp_plan_run: plan must point to ");
  refused(fh_cp_plan_run(plan, nullptr, nullptr, nullptr, nullptr, 0, nullptr),
          "fh_cp_plan_run: tensors must point ");
  EXPECT_FALSE(std::string(fh_cp_plan_text(plan)).ends_with('\n'));
  EXPECT_STREQ(fh_cp_explain(nullptr, "cpu"), "problem must point to your problem, but is NULL. Set it.");
  fh_cp_plan_destroy(plan);
}

// Where a call and fh_cp_last_error() are arguments of one printf, C may read the text before the call.
TEST(ContextParallelPlan, the_text_of_the_failure_before_is_still_there) {
  fh_cp_plan_create(nullptr, "cpu", nullptr);
  const char* const read = fh_cp_last_error();
  const std::string before = read;
  int64_t count = 0;
  EXPECT_NE(fh_cp_plan_rows(nullptr, 0, nullptr, 0, &count), FH_OK);
  EXPECT_EQ(read, before);
}

}  // namespace
}  // namespace froghopper
