// SPDX-License-Identifier: Apache-2.0
// Claims: rows in pages are found where the block table says; entries for rows that do not count are never read;
// entries that name no page are refused before anything is written; o and lse are the same bits as those of the same
// rows in dense tensors, whatever the page size, and where sequences share pages; with invariant a row has these bits
// in prefill and in decode. tests/cases/pages.txt compares both backends with the oracle.
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "src/api/run.hpp"
#include "tests/support/somewhere.hpp"

namespace froghopper {
namespace {

using namespace test;

// A pool in which every page has a number of its own in all of its entries, so that a sum tells which were read.
struct Cache {
  Problem problem;
  std::vector<float> q, k, v, o, lse;
  std::vector<int32_t> table, used;

  explicit Cache(const std::string& line)
      : problem(problem_of(line)),
        q(problem.batch * problem.seq_q * problem.heads_q * problem.dim_qk),
        k(problem.pages * problem.page_size * problem.heads_kv * problem.dim_qk),
        v(k.size()),
        o(q.size(), NAN),
        lse(problem.batch * problem.seq_q * problem.heads_q, NAN),
        table(problem.batch * problem.table_columns(), -1),
        used(problem.batch, static_cast<int32_t>(problem.seq_kv)) {
    uint32_t state = 7;
    for (std::vector<float>* numbers : {&q, &k, &v})
      for (float& x : *numbers) x = static_cast<float>((state = state * 1664525 + 1013904223) >> 16) / 65536 - 0.5f;
  }

  fh_tensor dense(std::vector<float>& numbers, int64_t seq, int64_t heads) const {
    return {numbers.data(), seq * heads * problem.dim_qk, heads * problem.dim_qk, problem.dim_qk};
  }
  fh_tensors tensors() {
    fh_tensors t = fh_tensors_init();
    t.q = dense(q, problem.seq_q, problem.heads_q), t.o = dense(o, problem.seq_q, problem.heads_q);
    t.k = dense(k, problem.page_size, problem.heads_kv), t.v = dense(v, problem.page_size, problem.heads_kv);
    t.lse = lse.data(), t.seqused_kv = used.data();
    t.block_table = {table.data(), problem.table_columns(), 1, 0};
    return t;
  }
  Result<void> run() {
    const auto plan = make_plan(problem, *read_target("cpu"));
    EXPECT_TRUE(plan) << plan.failure().text;
    return froghopper::run(*plan, tensors(), nullptr, 0, nullptr);
  }

  // Where the k and v of a row of sequence 0 begin.
  int64_t place(int64_t row) const {
    return (table[row / problem.page_size] * problem.page_size + row % problem.page_size) * problem.heads_kv *
           problem.dim_qk;
  }
  void copy_row(const Cache& other, int64_t row) {
    const int64_t floats = problem.heads_kv * problem.dim_qk;
    std::copy_n(&other.k[other.place(row)], floats, &k[place(row)]);
    std::copy_n(&other.v[other.place(row)], floats, &v[place(row)]);
  }

  // The rows of each sequence one after the other, and the same problem without pages.
  Cache gathered() const {
    Cache dense = *this;
    Problem& p = dense.problem;
    p.page_size = p.seq_kv, p.pages = p.batch;
    dense.k.assign(p.batch * p.seq_kv * p.heads_kv * p.dim_qk, NAN), dense.v = dense.k;
    dense.table.resize(p.batch);
    std::iota(dense.table.begin(), dense.table.end(), 0);
    const int64_t row_floats = p.heads_kv * p.dim_qk;
    for (int64_t b = 0; b < p.batch; ++b)
      for (int64_t row = 0; row < used[b]; ++row) {
        const int64_t page = table[b * problem.table_columns() + row / problem.page_size];
        const int64_t from = (page * problem.page_size + row % problem.page_size) * row_floats;
        const int64_t to = (b * p.seq_kv + row) * row_floats;
        std::copy_n(&k[from], row_floats, &dense.k[to]), std::copy_n(&v[from], row_floats, &dense.v[to]);
      }
    p.page_size = p.pages = 0;
    return dense;
  }
  Result<void> run_dense() {
    fh_tensors t = tensors();
    t.k = dense(k, problem.seq_kv, problem.heads_kv), t.v = dense(v, problem.seq_kv, problem.heads_kv);
    t.block_table = {};
    const auto plan = make_plan(problem, *read_target("cpu"));
    EXPECT_TRUE(plan) << plan.failure().text;
    return froghopper::run(*plan, t, nullptr, 0, nullptr);
  }
};

// Pages in falling order, from the last of the pool on; sequences may have the first `shared` of them in common.
void hand_out(Cache& cache, int64_t shared = 0) {
  const int64_t columns = cache.problem.table_columns();
  int32_t next = static_cast<int32_t>(cache.problem.pages);
  for (int64_t b = 0; b < cache.problem.batch; ++b)
    for (int64_t column = 0; column < columns; ++column) {
      if (column * cache.problem.page_size >= cache.used[b]) continue;
      const bool common = b > 0 && column < shared;
      cache.table[b * columns + column] = common ? cache.table[column] : --next;
    }
}

TEST(pages, give_the_bits_of_dense_rows) {
  for (const int page : {1, 3, 16, 100, 256})
    for (const char* rows : {"sq1", "sq9"}) {
      Cache cache("fwd f32 b3 hq4 hkv2 " + std::string(rows) + " skv250 d32 seqused causal page" +
                  std::to_string(page) + " pages" + std::to_string(3 * (250 / page + 1)));
      cache.used = {250, 1, 77};
      hand_out(cache);
      Cache dense = cache.gathered();
      ASSERT_TRUE(cache.run());
      ASSERT_TRUE(dense.run_dense());
      EXPECT_EQ(std::memcmp(cache.o.data(), dense.o.data(), cache.o.size() * sizeof(float)), 0) << page << rows;
      EXPECT_EQ(std::memcmp(cache.lse.data(), dense.lse.data(), cache.lse.size() * sizeof(float)), 0) << page;
    }
}

TEST(pages, may_be_shared) {
  Cache cache("fwd f32 b3 hq4 hkv2 sq2 skv100 d32 seqused causal page16 pages15");
  cache.used = {100, 64, 50};
  hand_out(cache, /*shared=*/2);
  Cache dense = cache.gathered();
  ASSERT_TRUE(cache.run());
  ASSERT_TRUE(dense.run_dense());
  EXPECT_EQ(std::memcmp(cache.o.data(), dense.o.data(), cache.o.size() * sizeof(float)), 0);
}

TEST(pages, of_any_size_give_a_row_the_same_bits_in_prefill_and_decode) {
  constexpr int64_t rows = 40, length = 70;
  const auto cache_of = [](int64_t seq_q, int page) {
    Cache cache(text("fwd f32 b1 hq4 hkv2 sq{} skv100 d32 seqused causal invariant page{} pages{}", seq_q, page,
                     100 / page + 1));
    cache.used = {length};
    hand_out(cache);
    return cache;
  };
  Cache prefill = cache_of(rows, 16);
  ASSERT_TRUE(prefill.run());
  const auto floats = static_cast<int64_t>(prefill.o.size()) / rows;  // of a row
  for (const int page : {1, 5, 16})
    for (int64_t row = 0; row < rows; ++row) {
      Cache decode = cache_of(1, page);
      for (int64_t key = 0; key < length; ++key) decode.copy_row(prefill, key);
      decode.used = {static_cast<int32_t>(length - rows + row + 1)};
      std::copy_n(&prefill.q[row * floats], floats, decode.q.data());
      ASSERT_TRUE(decode.run());
      EXPECT_EQ(std::memcmp(decode.o.data(), &prefill.o[row * floats], floats * sizeof(float)), 0)
          << page << " " << row;
    }
}

TEST(pages, that_are_none_are_refused_before_anything_is_written) {
  for (const int32_t wrong : {-1, 14, 2147480000}) {
    Cache cache("fwd f32 b2 hq4 hkv2 sq1 skv100 d32 seqused page16 pages14");
    cache.used = {100, 33};
    hand_out(cache);
    cache.table[7 + 2] = wrong;  // the last column of sequence 1 that is needed
    const auto ran = cache.run();
    ASSERT_FALSE(ran);
    EXPECT_EQ(ran.failure().text,
              text("block_table[1][2] must name a page of the pool, of which pages are 14, but is {}. "
                   "Use 0 to 13.",
                   wrong));
    for (const float x : cache.o) EXPECT_TRUE(std::isnan(x));
    cache.used[1] = 32;  // now it is not
    EXPECT_TRUE(cache.run());
  }
}

// Who forgets the lengths asks for columns that nobody has filled.
TEST(pages, without_lengths_are_all_of_them) {
  Cache cache("fwd f32 b2 hq4 hkv2 sq1 skv100 d32 page16 pages14");
  cache.used = {100, 100};
  hand_out(cache);
  cache.table[7 + 6] = -1;
  fh_tensors t = cache.tensors();
  t.seqused_kv = nullptr;
  const auto views = bind(cache.problem, t);
  ASSERT_TRUE(views) << views.failure().text;
  const auto fit = check_lengths(cache.problem, *views);
  ASSERT_FALSE(fit);
  EXPECT_EQ(
      fit.failure().text,
      "block_table[1][6] must name a page of the pool, of which pages are 14, but is -1. Without seqused_kv all "
      "100 rows of a sequence count. Use 0 to 13.");
}

// The user's tensor is named, not the row that it is about; where there is none, the row.
TEST(Append, NamesPositionsAndSlotsThatAreOutside) {
  std::vector<float> rows(3 * 64), out(3 * 64), tables(20 * 32);
  const auto refusal = [&](const char* line, const std::vector<int64_t>& slots,
                           const std::vector<int64_t>& positions) {
    const Problem p = problem_of(line);
    fh_tensors t = fh_tensors_init();
    t.k = {rows.data(), 3 * 64, 64, 64};
    t.cache_k = {out.data(), 3 * 64, 64, 64};
    if (p.rotary_dim > 0) t.rotary_cos = t.rotary_sin = {tables.data(), 0, 32, 0};
    if (!slots.empty()) t.slot_mapping = slots.data();
    if (!positions.empty()) t.positions = positions.data();
    const auto views = bind(p, t);
    if (!views) return views.failure().text;
    const auto fit = check_lengths(p, *views);
    return fit ? std::string() : fit.failure().text;
  };
  const char* const positioned = "append f32 b1 hq1 hkv1 sq3 skv3 d64 rotary64 rows20 positions";
  EXPECT_EQ(refusal(positioned, {}, {0, 19, 20}),
            "positions[2] is 20 and rotary_rows is 20; the tables do not know it. Use 0 to 19, or longer tables.");
  EXPECT_EQ(refusal(positioned, {}, {0, -1, 20}),
            "positions[1] is -1 and rotary_rows is 20; the tables do not know it. Use 0 to 19, or longer tables.");
  EXPECT_EQ(
      refusal("append f32 b1 hq1 hkv1 sq3 skv3 d64 rotary64 rows2", {}, {}),
      "row 2 of sequence 0 has position 2, and rotary_rows is 2; the tables do not know it. Use longer tables, or "
      "append fewer rows.");
  const char* const slotted = "append f32 b1 hq1 hkv1 sq3 skv3 d64 slots";
  EXPECT_EQ(
      refusal(slotted, {0, 3, 1}, {}),
      "slot_mapping[1] must be a row of the cache, which has 3 rows, or negative for none, but is 3. Use 0 to 2, "
      "or -1.");
  EXPECT_EQ(
      refusal(slotted, {(int64_t{1} << 32) + 2, 0, 0}, {}),  // two of int32, 2 and 1
      "slot_mapping[0] must be a row of the cache, which has 3 rows, or negative for none, but is 4294967298. Use "
      "0 to 2, or -1; slots are int64, not int32.");
  EXPECT_EQ(
      refusal("append f32 b1 hq1 hkv1 sq3 skv0 d64 slots", {-1, 0, 1}, {}),
      "slot_mapping[1] is 0, but the cache has no rows, as page_size and seq_kv are 0. Set page_size and pages to "
      "those of the pool, or seq_kv where the cache is not in pages, or use -1.");
  EXPECT_EQ(refusal("append f32 b1 hq1 hkv1 sq3 skv0 d64 page4 pages0 slots", {2, 0, 1}, {}),
            "slot_mapping[0] is 2, but the cache has no rows, as pages is 0. Set pages to those of the cache, or use "
            "-1.");
}

TEST(pages, are_missing_where_the_pool_is) {
  Cache cache("fwd f32 b1 hq4 hkv2 sq1 skv100 d32 seqused page16 pages7");
  hand_out(cache);
  Problem& p = cache.problem;
  fh_tensors t = cache.tensors();
  t.k.data = nullptr;
  const auto views = bind(p, t);
  ASSERT_FALSE(views);
  EXPECT_EQ(views.failure().text,
            "k.data is NULL; attention to pages reads the pool from k and v, k as 7 pages x 16 rows x 2 heads x 32 "
            "columns. Point it to the pool.");
  p.pages = 0;  // as fh_problem_init leaves it
  const auto ran = cache.run();
  ASSERT_FALSE(ran);
  EXPECT_EQ(ran.failure().text,
            "block_table[0][0] is 6 and pages is 0, so the pool has no page. Give a pool with pages.");
}

struct Refused {
  const char *line, *message;
};
TEST(pages, contradictions_have_their_messages) {
  const Refused all[] = {
      {"fwd bf16 b1 hq1 hkv1 sq1 skv64 d64 page16",
       "pageN and pagesN go together, rows of a page and pages of the pool. Add the one that is missing."},
      {"fwd bf16 b1 hq1 hkv1 sq1 skv64 d64 page0 pages4",
       "pages is 4 and page_size is 0; k and v are not in pages then. Set page_size, or pages to 0."},
      {"fwd bf16 b1 hq1 hkv1 sq1 skv64 d64 page-1 pages4",
       "page_size is -1; it counts the rows of a page. Use 0 for k and v without pages."},
      {"fwd bf16 b1 hq1 hkv1 sq1 skv64 d64 page16 pages-4",
       "pages is -4; it counts the pages of the pool. Use 0 or more."},
      {"bwd bf16 b1 hq1 hkv1 sq1 skv64 d64 page16 pages4",
       "page_size is 16 and op is FH_BACKWARD; the forward pass reads pages, and FH_APPEND writes them. Copy k and v "
       "to dense tensors, or set op to FH_FORWARD or FH_APPEND."},
      {"fwd bf16 b1 hq1 hkv1 sq1 skv64 d64 varlen tq1 tkv64 page16 pages4",
       "total_kv is 64 and page_size is 16; k and v are a pool of pages, which has no total. Set total_kv to 0."},
  };
  for (const auto& [line, message] : all) {
    const auto p = Problem::parse(line);
    ASSERT_FALSE(p) << line;
    EXPECT_EQ(p.failure().text, message) << line;
  }
  const Problem p = problem_of("fwd bf16 b1 hq1 hkv1 sq4 skv64 d64 varlen tq4 seqused page16 pages4");
  fh_tensors t = tensors_of(p);
  t.block_table.stride_seq = 0;  // forgotten: every page would be the first
  const auto one_page = bind(p, t);
  ASSERT_FALSE(one_page);
  EXPECT_EQ(one_page.failure().text,
            "block_table.stride_seq is 0, but there are 4 columns; all keys would be in one page. Without gaps "
            "stride_batch is 4 and stride_seq is 1.");
  t = tensors_of(p);
  t.cu_seqlens_kv = somewhere<int32_t>(7);
  const auto views = bind(p, t);
  ASSERT_FALSE(views);
  EXPECT_EQ(views.failure().text,
            "cu_seqlens_kv is set and page_size is 16; block_table says where the rows of a sequence are. Leave "
            "cu_seqlens_kv NULL, and give the lengths in seqused_kv.");
}

TEST(Pages, LengthsBeyondSeqKvNameIt) {
  const Problem p = problem_of("fwd bf16 b1 hq1 hkv1 sq1 skv0 d64 seqused page16 pages4");
  const int32_t used = 51;
  fh_tensors t = tensors_of(p);
  t.seqused_kv = &used, t.seqused_q = nullptr;
  const auto views = bind(p, t);
  ASSERT_TRUE(views) << views.failure().text;
  const auto found = check_lengths(p, *views);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.failure().text,
            "seqused_kv[0] is 51 and seq_kv is 0, so no sequence has rows. Set seq_kv to the most that one may have, "
            "or use "
            "0.");
}

// Of an append problem with one head of 64 columns: q, k and their results, no v. rows: of q in a sequence, or in all
// that are packed; cached: of the cache from one stride of batch to the next.
fh_tensors appended(const Problem& p, int64_t rows, int64_t cached) {
  fh_tensors t = tensors_of(p);
  t.o = t.v = {};
  t.lse = nullptr;
  t.q_out = {somewhere<void>(26), rows * 64, 64, 64};
  t.cache_k = {somewhere<void>(27), cached * 64, 64, 64};
  return t;
}

TEST(Append, RefusesTablesWhoseRowsOverlap) {
  const Problem p = problem_of("append bf16 b2 hq1 hkv1 sq3 skv9 d64 rotary32 rows20");
  fh_tensors t = appended(p, 3, 9);
  t.rotary_cos = {somewhere<void>(28), 0, 16, 0};
  t.rotary_sin = {somewhere<void>(29), 0, 16, 0};
  ASSERT_TRUE(bind(p, t)) << bind(p, t).failure().text;
  for (const int64_t stride : {0, 8}) {  // forgotten; that of half a row
    t.rotary_sin.stride_seq = stride;
    const auto views = bind(p, t);
    ASSERT_FALSE(views);
    EXPECT_EQ(
        views.failure().text,
        text("rotary_sin.stride_seq is {}, but a row has 16 columns, so the rows of 20 positions would overlap. "
             "Without gaps it is 16, rotary_dim / 2.",
             stride));
  }
}

TEST(Append, RefusesTheStartsOfKeysBesideThoseOfQueries) {
  for (const char* const cache : {"", " page16 pages9"}) {
    const Problem p = problem_of(text("append bf16 b2 hq1 hkv1 sq3 skv64 d64 varlen tq4{}", cache));
    fh_tensors t = appended(p, 4, 64);
    ASSERT_TRUE(bind(p, t)) << bind(p, t).failure().text;
    t.cu_seqlens_kv = somewhere<int32_t>(7);
    const auto views = bind(p, t);
    ASSERT_FALSE(views);
    EXPECT_EQ(views.failure().text,
              "cu_seqlens_kv is set and op is FH_APPEND; cu_seqlens_q is of k and v too, and a cache is not packed. "
              "Leave cu_seqlens_kv NULL.");
  }
}

TEST(Append, RefusesOneRowOfTheBlockTableForAllSequences) {
  const Problem p = problem_of("append bf16 b2 hq1 hkv1 sq3 skv64 d64 page16 pages9");
  fh_tensors t = appended(p, 3, 16);
  ASSERT_TRUE(bind(p, t)) << bind(p, t).failure().text;
  t.block_table.stride_batch = 0;
  const auto views = bind(p, t);
  ASSERT_FALSE(views);
  EXPECT_EQ(views.failure().text,
            "block_table.stride_batch is 0, but there are 2 sequences, whose new rows would go to the same pages. "
            "Without gaps stride_batch is 4 and stride_seq is 1.");
}

}  // namespace
}  // namespace froghopper
