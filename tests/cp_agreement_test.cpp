// SPDX-License-Identifier: Apache-2.0
// Claims about ranks that disagree: each gets an error that names the field that differs, as its user has written it,
// and the values of two ranks; and nothing is written.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <numeric>

#include "tests/support/cp_given.hpp"

namespace froghopper {
namespace {

using test::CpCase;
using test::Given;
using test::Outcome;

// Words of an `agree`, which meet here.
struct Table {
  std::barrier<> all{4};
  uint64_t words[4] = {};
  std::atomic<int> rounds = 0;
};
struct Seat {
  Table* table;
  int64_t rank;
};

int agree(void* context, uint64_t word, uint64_t* words) {
  const Seat& seat = *static_cast<Seat*>(context);
  Table& table = *seat.table;
  table.words[seat.rank] = word;
  ++table.rounds;
  table.all.arrive_and_wait();
  std::copy(table.words, table.words + 4, words);
  table.all.arrive_and_wait();
  return 0;
}

struct Disagreement {
  std::function<void(int64_t rank, Given&)> spoil;
  std::string said;
};

std::string differs(const char* name, const char* first, const char* other, int rank) {
  return std::string("fh_cp_plan_run: ") + name + " must be the same on all ranks, but is " + first +
         " on rank 0 and " + other + " on rank " + std::to_string(rank) + ". Give all ranks the same.";
}

// Two thousand documents of a row, but for one, which is longer on rank 1.
std::vector<int64_t> many_documents(int64_t rank) {
  std::vector<int64_t> ends(2001);
  std::iota(ends.begin(), ends.end(), 0);
  if (rank == 1) ++ends[1777];
  return ends;
}

std::vector<Disagreement> disagreements() {
  static const fh_cp_topology topology = [] {
    fh_cp_topology t = fh_cp_topology_init();
    t.bandwidth = 100;  // so that a scheme that moves less wins
    return t;
  }();
  return {
      {[](int64_t rank, Given& g) {
         if (rank == 2) g.c.whole.scale = 0.5f;
       },
       differs("whole->scale", "0", "0.5", 2)},
      {[](int64_t rank, Given& g) {
         if (rank == 1) g.c.whole.causal = 0;
       },
       differs("whole->window_right, which is 0 where causal is set,", "0", "FH_ALL", 1)},
      {[](int64_t rank, Given& g) {
         if (rank == 3) g.c.whole.dtype = FH_BF16;
       },
       differs("whole->dtype", "FH_F32", "FH_BF16", 3)},
      {[](int64_t rank, Given& g) { g.c.whole.deterministic = rank == 1; },
       differs("whole->deterministic", "0", "1", 1)},
      {[](int64_t rank, Given& g) {
         if (rank == 3) g.tensors.call = 4;
       },
       differs("tensors.call", "0", "4", 3)},
      {[](int64_t rank, Given& g) {
         if (rank == 0) g.c.scheme = FH_CP_ALL_TO_ALL;
       },
       differs("scheme", "FH_CP_ALL_TO_ALL", "FH_CP_RING", 1)},
      {[](int64_t rank, Given& g) { g.problem.layout = rank == 2 ? FH_CP_CONTIGUOUS : FH_CP_ZIGZAG; },
       differs("layout", "FH_CP_ZIGZAG", "FH_CP_CONTIGUOUS", 2)},
      {[](int64_t rank, Given& g) { g.problem.check_interval = rank == 2 ? 3 : 0; },
       differs("check_interval", "0 or 1", "3", 2)},
      {[](int64_t rank, Given& g) { g.problem.transfers = rank == 2 ? FH_CP_PEER_COPIES : FH_CP_SEND_RECV; },
       differs("transfers", "FH_CP_SEND_RECV", "FH_CP_PEER_COPIES", 2)},
      {[](int64_t rank, Given& g) {  // one document ends elsewhere
         g.c.scheme = FH_CP_ALL_TO_ALL;
         g.c.documents = {0, rank == 2 ? 7 : 8, g.c.whole.seq_q};
       },
       differs("cu_seqlens[1]", "8", "7", 2)},
      {[](int64_t rank, Given& g) {
         if (rank == 1) g.c.documents = {0, 8, g.c.whole.seq_q};
       },
       differs("documents", "0", "2", 1)},
      {[](int64_t rank, Given& g) {
         g.c.scheme = FH_CP_AUTO;
         if (rank == 3) g.problem.topology = &topology;
       },
       ": bandwidth must be the same on all ranks, but is 0 on rank 0 and 100 on rank 3."},
  };
}

TEST(ContextParallelAgreement, every_rank_names_the_field_that_differs) {
  for (const bool by_exchange : {true, false})
    for (const auto& [spoil, said] : disagreements()) {
      test::Ranks ranks(4);
      Table table;
      std::vector<Seat> seats;
      for (int64_t rank = 0; rank < 4; ++rank) seats.push_back({&table, rank});
      for (const Outcome& outcome :
           test::run_given(test::small_of(FH_CP_RING), FH_FORWARD, ranks, [&](int64_t rank, Given&g) {
             spoil(rank, g);
             if (!by_exchange) g.transport.agree = agree, g.transport.context = &seats[static_cast<size_t>(rank)];
           })) {
        EXPECT_EQ(outcome.status, FH_INVALID_PROBLEM) << outcome.text;
        EXPECT_NE(outcome.text.find(said), std::string::npos) << outcome.text << "\nbut wanted\n" << said;
        EXPECT_TRUE(test::untouched(outcome.o));
      }
      EXPECT_LT(ranks.bytes_moved, 64u * 12 * sizeof(uint64_t)) << "more than words";
    }
}

// On the CPU, where the host reads them. A wrong one among many is named by its place.
TEST(ContextParallelAgreement, numbers_of_heads_that_all_ranks_give) {
  static const float same[] = {1, 0, 1, 1}, other[] = {1, 5, 1, 1}, alike[] = {1, -0.0f, 1, 1};
  static const float scales[] = {1, 2}, other_scales[] = {1, 3};
  struct {
    const char* name;
    const float* fh_cp_tensors::*list;
    std::function<void(fh_problem&)> set;
  } const all[] = {
      {"sink", &fh_cp_tensors::sink, [](fh_problem& p) { p.sink = 1; }},
      {"alibi_slopes", &fh_cp_tensors::alibi_slopes, [](fh_problem& p) { p.alibi = 1; }},
      {"scale_k", &fh_cp_tensors::scale_k, [](fh_problem& p) { p.dtype = FH_BF16, p.dtype_kv = FH_E4M3; }},
      {"scale_v", &fh_cp_tensors::scale_v, [](fh_problem& p) { p.dtype = FH_BF16, p.dtype_kv = FH_E4M3; }},
  };
  for (const auto& [name, list, set] : all)
    for (const bool differ : {true, false}) {
      CpCase c = test::small_of(FH_CP_ALL_GATHER);
      set(c.whole);
      test::Ranks ranks(4);
      const bool scaled = c.whole.dtype_kv == FH_E4M3;
      for (const Outcome& outcome : test::run_given(c, FH_FORWARD, ranks, [&, its = list](int64_t rank, Given&g) {
             if (scaled) g.tensors.scale_k = g.tensors.scale_v = scales;
             const bool odd = rank == 2;
             g.tensors.*its =
                 scaled ? (odd && differ ? other_scales : scales) : (odd ? (differ ? other : alike) : same);
           })) {
        EXPECT_EQ(outcome.status, differ ? FH_INVALID_PROBLEM : FH_OK) << name << outcome.text;
        if (!differ) continue;
        const std::string entry = std::string("tensors.") + name + "[1]";
        EXPECT_EQ(outcome.text, differs(entry.c_str(), scaled ? "2" : "0", scaled ? "3" : "5", 2));
        EXPECT_TRUE(test::untouched(outcome.o));
      }
    }
}

TEST(ContextParallelAgreement, one_of_many_documents) {
  CpCase c = test::small_of(FH_CP_ALL_TO_ALL);
  c.whole.seq_q = c.whole.seq_kv = 2000;
  test::Ranks ranks(4);
  Table table;
  std::vector<Seat> seats;
  for (int64_t rank = 0; rank < 4; ++rank) seats.push_back({&table, rank});
  for (const Outcome& outcome : test::run_given(c, FH_FORWARD, ranks, [&](int64_t rank, Given&g) {
         g.c.documents = many_documents(rank);
         g.transport.agree = agree, g.transport.context = &seats[static_cast<size_t>(rank)];
       }))
    EXPECT_EQ(outcome.text, differs("cu_seqlens[1777]", "1777", "1778", 1));
  EXPECT_LT(table.rounds, 4 * 50);
}

TEST(ContextParallelAgreement, ranks_that_agree_say_one_word) {
  test::Ranks ranks(4);
  static std::atomic<int> rounds;
  rounds = 0;
  for (const Outcome& outcome :
       test::run_given(test::small_of(FH_CP_RING), FH_FORWARD, ranks, [&](int64_t, Given& g) {
         g.transport.agree = [](void*, uint64_t word, uint64_t* words) {
           std::fill(words, words + 4, word);
           ++rounds;
           return 0;
         };
       }))
    EXPECT_EQ(outcome.status, FH_OK) << outcome.text;
  EXPECT_EQ(rounds, 4);
}

TEST(ContextParallelAgreement, a_gradient_of_lse_is_given_by_all_ranks_or_by_none) {
  test::Ranks ranks(4);
  std::vector<float> grad_lse(1000);
  for (const Outcome& outcome :
       test::run_given(test::small_of(FH_CP_RING), FH_BACKWARD, ranks, [&](int64_t rank, Given&g) {
         if (rank == 0) g.tensors.grad_lse = grad_lse.data();
       })) {
    EXPECT_EQ(outcome.status, FH_INVALID_PROBLEM);
    EXPECT_EQ(outcome.text, differs("tensors.grad_lse", "given", "NULL", 1));
  }
}

// A broken `agree`, whose ranks see other words than those that were said.
TEST(ContextParallelAgreement, words_that_no_field_explains) {
  test::Ranks ranks(4);
  for (const Outcome& outcome :
       test::run_given(test::small_of(FH_CP_RING), FH_FORWARD, ranks, [&](int64_t rank, Given&g) {
         static thread_local int round, other;
         round = 0, other = static_cast<int>((rank + 1) % 4);
         g.transport.agree = [](void*, uint64_t word, uint64_t* words) {
           std::fill(words, words + 4, word);
           if (round++ == 0) ++words[other], words[other] += words[other] == 0;
           return 0;
         };
       })) {
    EXPECT_EQ(outcome.status, FH_INVALID_PROBLEM);
    EXPECT_NE(outcome.text.find("though their problems are the same. `agree` must give"), std::string::npos)
        << outcome.text;
  }
}

// One that does nothing would pass for agreement, and one that writes zeros for a refusal of rank 0.
TEST(ContextParallelAgreement, words_that_are_not_gathered) {
  for (const bool zeros : {false, true}) {
    test::Ranks ranks(4);
    const auto outcomes = test::run_given(test::small_of(FH_CP_RING), FH_FORWARD, ranks, [&](int64_t, Given& g) {
      g.transport.agree = [](void*, uint64_t, uint64_t*) { return 0; };
      if (zeros)
        g.transport.agree = [](void*, uint64_t, uint64_t* words) {
          std::fill(words, words + 4, 0);
          return 0;
        };
    });
    for (size_t rank = 0; rank < outcomes.size(); ++rank) {
      const std::string own =
                            "in the place of rank " + std::to_string(rank) + ": its transport has this rank's number",
                        other = rank == 0 ? "digests[1] is not written." : "digests[0] is not written.";
      EXPECT_EQ(outcomes[rank].status, zeros ? FH_INVALID_PROBLEM : FH_LAUNCH_FAILED);
      EXPECT_NE(outcomes[rank].text.find(zeros ? own : other), std::string::npos) << outcomes[rank].text;
    }
  }
}

}  // namespace
}  // namespace froghopper
