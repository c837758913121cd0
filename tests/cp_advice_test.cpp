// SPDX-License-Identifier: Apache-2.0
// Claims about problems that a scheme does not compute: whatever the message says to use is computed, over a grid of
// heads, ranks, masks and documents.
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <sstream>

#include "tests/support/cp_attention.hpp"

namespace froghopper {
namespace {

struct Asked {
  fh_problem whole = fh_problem_init();
  fh_cp_problem p = fh_cp_problem_init();

  // "": it is computed.
  std::string refusal() {
    p.whole = &whole;
    fh_cp_plan* plan = nullptr;
    const fh_status status = fh_cp_plan_create(&p, "cpu", &plan);
    fh_cp_plan_destroy(plan);
    return status == FH_OK ? std::string() : fh_cp_last_error();
  }
};

const std::pair<const char*, fh_cp_scheme> names[] = {{"FH_CP_RING", FH_CP_RING},
                                                      {"FH_CP_ALL_GATHER", FH_CP_ALL_GATHER},
                                                      {"FH_CP_ALL_TO_ALL", FH_CP_ALL_TO_ALL},
                                                      {"FH_CP_ALL_TO_ALL_RING", FH_CP_ALL_TO_ALL_RING},
                                                      {"FH_CP_ALL_TO_ALL_GATHER", FH_CP_ALL_TO_ALL_GATHER}};

// One way out: schemes and numbers of which each is to work, and options.
struct Way {
  std::vector<fh_cp_scheme> schemes;
  std::vector<int64_t> ranks, heads_ranks;
  bool causal = false, contiguous = false;
};

Way way_of(std::string words) {
  Way way;
  for (char& c : words)
    if (c == ',') c = ' ';
  std::istringstream in(words);
  const std::set<std::string> filling = {"or", "with", "and", "a", "mask", "ranks", "for", "the", "fastest"};
  std::vector<int64_t>* numbers = &way.ranks;
  for (std::string word; in >> word;) {
    const auto name = std::find_if(std::begin(names), std::end(names), [&](auto& n) { return n.first == word; });
    if (name != std::end(names))
      way.schemes.push_back(name->second);
    else if (word == "heads_ranks")
      numbers = &way.heads_ranks;
    else if (word == "causal")
      way.causal = true;
    else if (word == "FH_CP_CONTIGUOUS")
      way.contiguous = true;
    else if (std::isdigit(static_cast<unsigned char>(word.front())))
      numbers->push_back(std::stoll(word));
    else
      EXPECT_TRUE(filling.count(word)) << word << " in " << words;
  }
  return way;
}

std::vector<Way> ways_in(const std::string& said) {
  std::vector<Way> ways;
  const size_t begin = said.rfind("Use ");
  if (begin == std::string::npos || !said.ends_with('.')) return ways;
  std::string rest = said.substr(begin + 4, said.size() - begin - 5);
  for (size_t end; (end = rest.find(", or ")) != std::string::npos; rest = rest.substr(end + 5))
    ways.push_back(way_of(rest.substr(0, end)));
  ways.push_back(way_of(rest));
  return ways;
}

void follow(const Asked& asked, const std::string& said) {
  std::vector<Way> ways = ways_in(said);
  EXPECT_FALSE(ways.empty()) << said;
  for (Way& way : ways) {
    if (way.schemes.empty()) way.schemes.push_back(asked.p.scheme);
    EXPECT_LE(std::max(way.ranks.size(), way.heads_ranks.size()), 4u) << said;
    if (way.ranks.empty()) way.ranks.push_back(asked.p.ranks);
    if (way.heads_ranks.empty()) way.heads_ranks.push_back(asked.p.heads_ranks);
    for (const fh_cp_scheme scheme : way.schemes)
      for (const int64_t ranks : way.ranks)
        for (const int64_t heads_ranks : way.heads_ranks) {
          Asked other = asked;
          other.p.scheme = scheme, other.p.ranks = ranks, other.p.heads_ranks = heads_ranks;
          if (way.causal) other.whole.causal = 1, other.whole.window_right = FH_ALL;
          if (way.contiguous) other.p.layout = FH_CP_CONTIGUOUS;
          EXPECT_EQ(other.refusal(), "") << scheme << ", " << ranks << ", " << heads_ranks << " after\n" << said;
        }
  }
}

// The problems of the grid, of one number of heads.
std::vector<Asked> grid(int64_t heads_q, int64_t heads_kv, const std::vector<int64_t>& documents) {
  std::vector<Asked> all;
  for (const int64_t ranks : {3, 4, 10})
    for (int scheme = FH_CP_AUTO; scheme <= FH_CP_ALL_TO_ALL_GATHER; ++scheme)
      for (const int64_t heads_ranks : {0, 2, 5})
        for (const int64_t right : {int64_t{FH_ALL}, int64_t{0}, int64_t{3}})
          for (const bool alibi : {false, true})
            for (const fh_cp_layout layout : {FH_CP_LAYOUT_AUTO, FH_CP_BY_DOCUMENT, FH_CP_ZIGZAG}) {
              if (documents.empty() && layout == FH_CP_BY_DOCUMENT) continue;
              if (!documents.empty() && layout == FH_CP_ZIGZAG) continue;
              Asked x;
              x.whole.dtype = FH_F32, x.whole.heads_q = heads_q, x.whole.heads_kv = heads_kv, x.whole.dim_qk = 8;
              x.whole.seq_q = x.whole.seq_kv = 90, x.whole.window_right = right, x.whole.alibi = alibi;
              if (right == 0) x.whole.causal = 1, x.whole.window_right = FH_ALL;
              x.p.ranks = ranks, x.p.scheme = static_cast<fh_cp_scheme>(scheme), x.p.heads_ranks = heads_ranks;
              x.p.layout = layout, x.p.documents = static_cast<int32_t>(documents.size()) - 1;
              if (!documents.empty())
                x.p.cu_seqlens = documents.data();
              else
                x.p.documents = 0;
              all.push_back(x);
            }
  return all;
}

TEST(ContextParallelAdvice, what_a_refusal_says_is_computed) {
  std::vector<int64_t> many(81);
  std::iota(many.begin(), many.end(), 0);
  many.back() = 90;
  int refusals = 0;
  for (const auto& [heads_q, heads_kv] :
       {std::pair<int64_t, int64_t>{6, 2}, {5, 1}, {25, 5}, {45, 9}, {12, 12}, {1, 1}})
    for (const std::vector<int64_t>& documents : {std::vector<int64_t>(), many})
      for (Asked& asked : grid(heads_q, heads_kv, documents)) {
        const std::string said = asked.refusal();
        if (said.empty()) continue;
        ++refusals;
        follow(asked, said);
        if (testing::Test::HasFailure()) return;
      }
  EXPECT_GT(refusals, 1000);
}

std::string refusal_of(int64_t ranks, int64_t heads_q, int64_t heads_kv, bool causal, int64_t right,
                       fh_cp_scheme scheme) {
  Asked x;
  x.whole.dtype = FH_F32, x.whole.heads_q = heads_q, x.whole.heads_kv = heads_kv, x.whole.dim_qk = 8;
  x.whole.seq_q = x.whole.seq_kv = 64, x.whole.alibi = 1, x.whole.causal = causal, x.whole.window_right = right;
  x.p.ranks = ranks, x.p.scheme = scheme;
  const std::string said = x.refusal();
  return said.substr(std::min(said.size(), said.rfind(". ") + 2));
}

TEST(ContextParallelAdvice, names_what_works) {
  EXPECT_EQ(refusal_of(4, 6, 2, false, 3, FH_CP_RING),
            "Use FH_CP_ALL_TO_ALL with 2 or 6 ranks, or FH_CP_ALL_GATHER with a causal mask.");
  EXPECT_EQ(refusal_of(4, 6, 2, false, 3, FH_CP_ALL_TO_ALL),
            "Use 2 or 6 ranks, or FH_CP_ALL_GATHER with a causal mask.");
  EXPECT_EQ(refusal_of(3, 5, 1, true, FH_ALL, FH_CP_ALL_TO_ALL_RING), "Use FH_CP_ALL_TO_ALL_GATHER.");
  EXPECT_EQ(refusal_of(4, 45, 9, false, FH_ALL, FH_CP_AUTO), "Use 3, 9 or 45 ranks, or a causal mask.");
  EXPECT_EQ(refusal_of(4, 8, 2, true, FH_ALL, FH_CP_RING), "Use FH_CP_ALL_GATHER or FH_CP_ALL_TO_ALL.");
}

TEST(ContextParallelAdvice, says_what_stands_in_the_way) {
  Asked x;
  x.whole.heads_q = 6, x.whole.heads_kv = 2, x.whole.dim_qk = 16, x.whole.seq_q = x.whole.seq_kv = 64;
  x.whole.alibi = 1, x.p.ranks = 4, x.p.scheme = FH_CP_ALL_TO_ALL;
  EXPECT_EQ(
      x.refusal(),
      "fh_cp_plan_create: heads_q is 6, which ranks, 4, does not divide. No other scheme computes it either, as "
      "alibi has no causal mask. Use 2 or 6 ranks, or FH_CP_ALL_GATHER with a causal mask.");
  x.whole.alibi = 0, x.p.heads_ranks = 2;
  EXPECT_EQ(
      x.refusal(),
      "fh_cp_plan_create: heads_ranks is 2, but must be 0 with FH_CP_ALL_TO_ALL, which has no groups of ranks. Use "
      "FH_CP_ALL_TO_ALL_RING or FH_CP_ALL_TO_ALL_GATHER.");
}

TEST(ContextParallelAdvice, a_limit_that_is_enough) {
  for (const uint64_t limit : {uint64_t{1}, uint64_t{3000}}) {
    Asked x;
    x.whole.dtype = FH_F32, x.whole.heads_q = 4, x.whole.heads_kv = 2, x.whole.dim_qk = 16, x.whole.causal = 1;
    x.whole.seq_q = x.whole.seq_kv = 64;
    x.p.ranks = 4, x.p.workspace_limit = limit;
    const std::string said = x.refusal(), words = "Set workspace_limit to at least ";
    ASSERT_NE(said.find(words), std::string::npos) << said;
    EXPECT_TRUE(said.ends_with(", or to 0 for no limit.")) << said;
    x.p.workspace_limit = std::stoull(said.substr(said.find(words) + words.size()));
    EXPECT_EQ(x.refusal(), "") << said;
  }
}

}  // namespace
}  // namespace froghopper
