// SPDX-License-Identifier: Apache-2.0
// Claims about documents over ranks: a query attends to keys of its own document alone, wherever the borders of
// documents and of shards lie; every scheme gives what one rank gives, forward and backward; only what is seen moves;
// one document is the plain sequence bit by bit; what cannot be is said.
#include <gtest/gtest.h>

#include "tests/support/cp_compare.hpp"

namespace froghopper {
namespace {

using test::causal;
using test::CpCase;
using test::CpTensors;
using test::windowed;

constexpr fh_cp_scheme schemes[] = {FH_CP_RING, FH_CP_ALL_GATHER, FH_CP_ALL_TO_ALL};
constexpr fh_cp_layout layouts[] = {FH_CP_CONTIGUOUS, FH_CP_ZIGZAG, FH_CP_BY_DOCUMENT};

using Documents = std::vector<int64_t>;
// Of 45 rows: borders in the middle of shards, empty documents, one row, one that spans three of four ranks.
const Documents uneven = {0, 0, 7, 8, 36, 36, 40, 45, 45};

void expect_documents(const fh_problem& whole, const Documents& documents, std::initializer_list<int64_t> ranks,
                      fh_dtype out = FH_USUAL, bool grad_lse = false) {
  for (const int64_t count : ranks)
    for (const fh_cp_scheme scheme : schemes)
      for (const fh_cp_layout layout : layouts) {
        if (scheme == FH_CP_ALL_TO_ALL && whole.heads_q % count != 0) continue;
        if (scheme == FH_CP_RING && (whole.window_right > 0 || whole.alibi)) continue;
        test::expect_as_on_one_rank(CpCase{whole, count, scheme, layout, out, grad_lse, FH_CP_SEND_RECV, documents});
      }
}

fh_cp_problem over(const fh_problem& whole, const Documents& documents, int64_t ranks, int64_t rank = 0) {
  fh_cp_problem p = fh_cp_problem_init();
  p.whole = &whole, p.ranks = ranks, p.rank = rank;
  p.cu_seqlens = documents.data(), p.documents = static_cast<int32_t>(documents.size()) - 1;
  return p;
}

using test::packed;
using test::planned;

TEST(ContextParallelDocuments, every_scheme_gives_what_one_rank_gives) {
  for (const fh_problem& p : {packed(45), causal(packed(45))}) expect_documents(p, uneven, {1, 2, 3, 4});
  expect_documents(causal(packed(50, 8, 1)), {0, 3, 50}, {8});
}

TEST(ContextParallelDocuments, borders_anywhere) {
  for (const Documents& documents : {Documents{0, 40},
                                     {0, 1, 40},
                                     {0, 39, 40},
                                     {0, 10, 20, 30, 40},
                                     {0, 5, 10, 15, 20, 25, 30, 35, 40},
                                     {0, 20, 40},
                                     {0, 11, 29, 40},
                                     {0, 0, 0, 40, 40}})
    for (const fh_problem& p : {packed(40), causal(packed(40))}) expect_documents(p, documents, {4});
  Documents of_one_row;
  for (int64_t i = 0; i <= 13; ++i) of_one_row.push_back(i);
  expect_documents(causal(packed(13)), of_one_row, {4});
}

TEST(ContextParallelDocuments, drawn_borders_masks_and_ranks) {
  std::mt19937 random(7);
  const auto below = [&](int64_t end) { return static_cast<int64_t>(random() % static_cast<uint64_t>(end)); };
  for (int i = 0; i < 30; ++i) {
    const int64_t rows = below(60), count = 1 + below(8);
    Documents documents{0, rows};
    for (int64_t d = 1; d < count; ++d) documents.push_back(below(rows + 1));
    std::sort(documents.begin(), documents.end());
    const int64_t left = below(2) == 0 ? FH_ALL : below(20), right = below(3) > 0   ? 0
                                                                     : below(2) > 0 ? FH_ALL
                                                                                    : below(9);
    fh_problem p = windowed(packed(rows, 4, 1 << below(3)), left, right);
    p.sink = static_cast<int32_t>(below(2));
    for (const fh_cp_scheme scheme : {FH_CP_AUTO, FH_CP_ALL_GATHER}) {  // sends and receives of all ranks match
      fh_cp_problem copied = over(p, documents, 4, below(4));
      copied.scheme = scheme, copied.transfers = FH_CP_PEER_COPIES;
      EXPECT_NE(planned(copied, "cpu"), nullptr);
    }
    expect_documents(p, documents, {1 + below(6)}, FH_USUAL, below(2) == 1);
  }
}

TEST(ContextParallelDocuments, empty_ranks) {
  for (const int64_t rows : {0, 1, 3}) expect_documents(causal(packed(rows)), {0, rows / 2, rows}, {4});
}

TEST(ContextParallelDocuments, windows) {
  for (const auto& [left, right] :
       {std::pair<int64_t, int64_t>{3, 0}, {12, 0}, {60, 0}, {0, 0}, {5, 3}, {FH_ALL, 2}, {4, FH_ALL}, {0, 30}})
    expect_documents(windowed(packed(45), left, right), uneven, {2, 3, 4});
}

TEST(ContextParallelDocuments, options_of_the_scores) {
  fh_problem p = causal(packed(45));
  p.softcap = 1.5f, p.scale = 0.3f, p.sink = 1;
  expect_documents(p, uneven, {2, 4}, FH_USUAL, true);
  p.causal = 0, p.window_left = 6, p.window_right = 2;
  expect_documents(p, uneven, {4}, FH_USUAL, true);
  fh_problem alibi = causal(packed(45));
  alibi.alibi = 1;
  expect_documents(alibi, uneven, {4});
}

TEST(ContextParallelDocuments, sixteen_bits_are_rounded_once) {
  for (const fh_dtype dtype : {FH_BF16, FH_F16})
    for (const fh_dtype out : {FH_USUAL, FH_F32}) {
      fh_problem p = causal(packed(45));
      p.dtype = dtype, p.dim_qk = 24, p.sink = 1;
      expect_documents(p, uneven, {4}, out);
    }
}

// The ring adds the gradients of a plain sequence in another order, in which more transfers overlap.
TEST(ContextParallelDocuments, two_runs_give_equal_bits_and_one_document_is_the_plain_sequence) {
  for (const fh_cp_scheme scheme : schemes)
    for (const Documents& documents : {uneven, Documents{0, 45}}) {
      fh_problem p = causal(packed(45));
      p.dtype = FH_BF16, p.sink = 1;
      const CpCase first{p, 4, scheme, FH_CP_ZIGZAG, FH_USUAL, true, FH_CP_SEND_RECV, documents};
      CpCase second = first;
      if (documents.size() == 2 && scheme != FH_CP_RING) second.documents.clear();
      test::expect_equal_bits(first, second);
    }
}

// 4 ranks of 16 rows; of 2 heads and 24 columns a row of k and v has 192 bytes.
TEST(ContextParallelDocuments, only_what_is_seen_moves) {
  CpCase c{causal(packed(64)), 4, FH_CP_ALL_GATHER, FH_CP_CONTIGUOUS};
  const auto moved = [&](const Documents& documents) {
    c.documents = documents;
    CpTensors t = test::inputs(c);
    c.scheme = FH_CP_RING;
    const uint64_t by_ring = test::run_ranks(c, FH_FORWARD, t);
    c.scheme = FH_CP_ALL_GATHER;
    EXPECT_EQ(test::run_ranks(c, FH_FORWARD, t), by_ring);
    return by_ring / 192;
  };
  EXPECT_EQ(moved({0, 16, 32, 48, 64}), 0u);
  EXPECT_EQ(moved({0, 12, 20, 64}), 4u + 12 + 28);  // to rank 1 of the second one, to ranks 2 and 3 of the third
  c.layout = FH_CP_ZIGZAG;
  EXPECT_EQ(moved({0, 8, 16, 24, 32, 40, 48, 56, 64}), 0u);
  EXPECT_EQ(moved({0, 8, 16, 64}), 8u * (5 + 4 + 2 + 1));  // of chunks 2 to 7 the earlier ones that a rank lacks
}

TEST(ContextParallelDocuments, the_text_and_the_tables) {
  const fh_problem whole = causal(packed(64, 8, 8));
  const Documents documents = {0, 10, 20, 64};
  fh_cp_problem p = over(whole, documents, 4, 1);
  p.layout = FH_CP_ZIGZAG;
  EXPECT_NE(std::string(fh_cp_explain(&p, "cpu")).find("3 documents, the longest of 44 rows"), std::string::npos);
  p.scheme = FH_CP_ALL_GATHER;  // of rows 8 to 16 and 48 to 56
  const test::CpPlan plan = planned(p, "cpu");
  const std::string text = fh_cp_plan_text(plan.get());
  EXPECT_NE(text.find("attend 16 rows from 8 on in 3 documents, 52 keys from 0 on, causal"), std::string::npos)
      << text;
  int64_t count = 0;
  const int32_t* const tables = fh_cp_plan_tables(plan.get(), &count);
  EXPECT_EQ(std::vector<int32_t>(tables, tables + count), (std::vector<int32_t>{0, 2, 8, 16, 0, 10, 16, 52}));
}

// The model counts pairs that are seen: 8 documents take far less than one sequence of all rows, and an all-to-all of
// them its share of one GPU's time.
TEST(ContextParallelDocuments, the_model_of_time_knows_documents) {
  fh_problem whole = causal(packed(131072, 64, 8));
  whole.dtype = FH_BF16, whole.dim_qk = whole.dim_v = 128, whole.max_sms = 0;
  const Documents documents = {0, 40960, 46080, 61440, 63488, 94208, 102400, 106496, 131072};
  const double alone = fh_cp_plan_seconds(planned(over(whole, documents, 1), "h100").get());
  fh_cp_problem plain = over(whole, documents, 1);
  plain.cu_seqlens = nullptr, plain.documents = 0;
  double pairs = 0;
  for (size_t i = 1; i < documents.size(); ++i)
    pairs += std::pow(static_cast<double>(documents[i] - documents[i - 1]), 2);
  EXPECT_NEAR(alone / fh_cp_plan_seconds(planned(plain, "h100").get()), pairs / std::pow(131072.0, 2), 0.01);
  fh_cp_problem p = over(whole, documents, 4);
  p.scheme = FH_CP_ALL_TO_ALL;
  const double seconds = fh_cp_plan_seconds(planned(p, "h100").get());
  EXPECT_GT(alone / 4 / seconds, 0.7);
  p.scheme = FH_CP_AUTO, p.transfers = FH_CP_PEER_COPIES;
  EXPECT_LE(fh_cp_plan_seconds(planned(p, "h100").get()), seconds);
}

// The plan of a GPU that is not here refuses its arguments before it looks for one.
TEST(ContextParallelDocuments, a_plan_on_a_gpu_needs_its_tables) {
  fh_problem whole = causal(packed(64));
  whole.dtype = FH_BF16;
  const auto refusal = [&](const Documents& documents, const int32_t* tables) {
    fh_cp_problem p = over(whole, documents, 1);
    const test::CpPlan plan = planned(p, "h100");
    std::vector<char> memory(1 << 16);
    fh_cp_tensors t = fh_cp_tensors_init();
    t.q = t.k = t.v = t.o = memory.data();
    t.tables = tables;
    EXPECT_EQ(fh_cp_plan_run(plan.get(), nullptr, nullptr, &t, memory.data(), 0, nullptr), FH_INVALID_TENSOR);
    return std::string(fh_cp_last_error());
  };
  const int32_t tables[3] = {0, 10, 64};
  EXPECT_NE(refusal({0, 10, 64}, nullptr).find("tensors.tables is NULL, but this plan needs it"), std::string::npos);
  EXPECT_EQ(refusal({0, 10, 64}, tables).find("tensors.tables"), std::string::npos);
  EXPECT_NE(refusal({0, 64}, tables).find("tensors.tables is given, but the problem has no"), std::string::npos);
}

TEST(ContextParallelDocuments, many_documents_over_many_ranks_are_planned) {
  const fh_problem whole = causal(packed(1 << 20, 64, 8));
  Documents documents;
  for (int64_t row = 0; row <= 1 << 20; row += 64) documents.push_back(row);
  for (const fh_cp_layout layout : {FH_CP_CONTIGUOUS, FH_CP_ZIGZAG}) {
    fh_cp_problem p = over(whole, documents, 512, 300);
    p.layout = layout, p.scheme = FH_CP_ALL_GATHER;
    EXPECT_EQ(fh_cp_plan_bytes_in(planned(p, "cpu").get()), 0u);
  }
}

TEST(ContextParallelDocuments, what_cannot_be_is_said) {
  const auto refusal = [](
                           const fh_problem& whole, const Documents& documents,
                           const std::function<void(fh_cp_problem&)>& spoil = [](fh_cp_problem&) {}) {
    fh_cp_problem p = over(whole, documents, 4);
    spoil(p);
    fh_cp_plan* plan = nullptr;
    EXPECT_NE(fh_cp_plan_create(&p, "cpu", &plan), FH_OK);
    EXPECT_EQ(plan, nullptr);
    return std::string(fh_cp_last_error());
  };
  const fh_problem good = causal(packed(40));
  fh_problem varlen = good, wide = good, two = good;
  varlen.varlen = 1, wide.seq_q = wide.seq_kv = int64_t{1} << 31, two.batch = 2;
  const std::pair<std::string, const char*> said[] = {
      {refusal(good, {1, 40}), "cu_seqlens[0] is 1, but must be 0"},
      {refusal(good, {0, 20, 10, 40}), "cu_seqlens falls from 20 to 10 after document 1"},
      {refusal(good, {0, 20, 41}), "cu_seqlens[2] is 41, but must be 40, the rows of all ranks"},
      {refusal(good, {0, 20, 39}), "cu_seqlens[2] is 39, but must be 40"},
      {refusal(good, {0}), "documents is 0, but must be 1 or more with cu_seqlens"},
      {refusal(good, {0, 40}, [](fh_cp_problem& p) { p.cu_seqlens = nullptr; }), "documents is 1, but cu_seqlens is"},
      {refusal(two, {0, 40}), "whole->batch is 2, but must be 1 with cu_seqlens"},
      {refusal(wide, {0, wide.seq_q}), "whole->seq_q is 2147483648, but must be at most 2147483647"},
      {refusal(varlen, {0, 40}), "whole->varlen is set, but documents over ranks are described by fh_cp_problem"},
  };
  for (const auto& [text, part] : said) EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
}

}  // namespace
}  // namespace froghopper
