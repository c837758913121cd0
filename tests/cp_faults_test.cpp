// SPDX-License-Identifier: Apache-2.0
// Claims about what goes wrong between ranks: where they disagree every rank gets an error and nothing is written, a
// transport that fails at any exchange ends the call on all ranks with its own words, and nothing hangs.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>

#include "tests/support/cp_given.hpp"

namespace froghopper {
namespace {

using test::CpCase;
using test::CpTensors;
using test::Given;
using test::Outcome;
using test::untouched;
constexpr auto small = test::small_of;
constexpr auto run = test::run_given;

TEST(ContextParallelFaults, a_rank_that_refuses_its_arguments_tells_the_others) {
  test::Ranks ranks(4);
  const std::vector<Outcome> outcomes = run(small(FH_CP_ALL_GATHER), FH_FORWARD, ranks, [](int64_t rank, Given& g) {
    if (rank == 1) g.tensors.k = nullptr;
  });
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(outcomes[rank].status, rank == 1 ? FH_INVALID_TENSOR : FH_INVALID_PROBLEM) << outcomes[rank].text;
    const char* const words = rank == 1 ? "tensors.k is NULL" : "rank 1 refuses its arguments";
    EXPECT_NE(outcomes[rank].text.find(words), std::string::npos) << outcomes[rank].text;
    EXPECT_TRUE(untouched(outcomes[rank].o));
  }
}

// cp.h, (5): in calls in which ranks do not compare nobody can be told, so that the transport ends the call.
TEST(ContextParallelFaults, a_rank_that_refuses_its_arguments_where_nothing_is_compared_cancels) {
  for (const auto& [interval, call] : {std::pair<int32_t, uint64_t>{-1, 0}, {3, 7}}) {
    test::Ranks ranks(4);
    const std::vector<Outcome> outcomes = run(small(FH_CP_RING), FH_FORWARD, ranks, [&](int64_t rank, Given& g) {
      g.problem.check_interval = interval, g.tensors.call = call;
      if (rank == 1) g.tensors.k = nullptr;
    });
    for (size_t rank = 0; rank < 4; ++rank)
      EXPECT_EQ(outcomes[rank].status, rank == 1 ? FH_INVALID_TENSOR : FH_LAUNCH_FAILED) << outcomes[rank].text;
  }
}

// Ranks whose digests meet here, in the order in which they come.
struct Meeting {
  std::barrier<> all{4};
  std::atomic<size_t> came = 0;
  uint64_t said[4] = {};
};
Meeting* meeting = nullptr;

int agree(void*, uint64_t digest, uint64_t* digests) {
  meeting->said[meeting->came++] = digest;
  meeting->all.arrive_and_wait();
  std::copy(meeting->said, meeting->said + 4, digests);
  return 0;
}

TEST(ContextParallelFaults, a_rank_with_the_transport_of_another_tells_the_others) {
  const std::function<void(Given&)> wrong[] = {
      [](Given& g) { g.transport.rank = 2; },
      [](Given& g) { g.transport.ranks = 3; },
      [](Given& g) { g.transport.exchange = nullptr; },
  };
  for (const auto& spoil : wrong) {
    test::Ranks ranks(4);
    Meeting here;
    meeting = &here;
    const std::vector<Outcome> outcomes = run(small(FH_CP_RING), FH_FORWARD, ranks, [&](int64_t rank, Given& g) {
      g.transport.agree = agree;
      if (rank == 1) spoil(g);
    });
    for (size_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(outcomes[rank].status, rank == 1 ? FH_INVALID_TENSOR : FH_INVALID_PROBLEM) << outcomes[rank].text;
      const char* const words = rank == 1 ? "transport" : "refuses its arguments";
      EXPECT_NE(outcomes[rank].text.find(words), std::string::npos) << outcomes[rank].text;
      EXPECT_TRUE(untouched(outcomes[rank].o));
    }
    EXPECT_EQ(ranks.bytes_moved, 0u);
  }
}

// Without `agree` nothing can be said through a transport that has other peers: it is cancelled, so that no rank waits.
TEST(ContextParallelFaults, a_rank_with_the_transport_of_another_ends_the_call_of_all) {
  test::Ranks ranks(4);
  const std::vector<Outcome> outcomes = run(small(FH_CP_RING), FH_FORWARD, ranks, [&](int64_t rank, Given& g) {
    if (rank == 1) g.transport.rank = 2;
  });
  for (size_t rank = 0; rank < 4; ++rank)
    EXPECT_EQ(outcomes[rank].status, rank == 1 ? FH_INVALID_TENSOR : FH_LAUNCH_FAILED) << outcomes[rank].text;
}

TEST(ContextParallelFaults, ranks_that_were_forgotten_are_seen_by_their_transport) {
  const CpCase c = small(FH_CP_RING);
  test::Ranks ranks(4);
  fh_cp_problem p = fh_cp_problem_init();
  p.whole = &c.whole;
  const test::CpPlan plan = test::planned(p, "cpu");
  CpTensors t = test::inputs(c);
  t.o = test::empty_whole(c.whole, &CpTensors::o, Element::f32);
  fh_cp_tensors x = test::cp_tensors(t, FH_FORWARD);
  const fh_cp_transport transport = ranks.transport(3);
  EXPECT_EQ(fh_cp_plan_run(plan.get(), &transport, nullptr, &x, nullptr, 0, nullptr), FH_INVALID_TENSOR);
  EXPECT_NE(std::string(fh_cp_last_error()).find("Set ranks and rank of fh_cp_problem"), std::string::npos)
      << fh_cp_last_error();
  EXPECT_TRUE(untouched(t.o));
}

// cp.h: "can be read, not run". With NCCL `cancel` would end the communicator.
TEST(ContextParallelFaults, a_plan_of_a_gpu_that_was_only_named_calls_nothing) {
  fh_problem whole = small(FH_CP_RING).whole;
  whole.dtype = FH_BF16;
  fh_cp_problem p = fh_cp_problem_init();
  p.whole = &whole, p.ranks = 4;
  const test::CpPlan plan = test::planned(p, "h100");
  fh_cp_transport transport = fh_cp_transport_init();
  transport.ranks = 4;
  transport.exchange = [](void*, const fh_cp_transfer*, int64_t, const fh_cp_transfer*, int64_t, void*, void**) {
    ADD_FAILURE() << "exchange";
    return 0;
  };
  transport.wait = [](void*, void*, void*) {
    ADD_FAILURE() << "wait";
    return 0;
  };
  transport.cancel = [](void*) { ADD_FAILURE() << "cancel"; };
  fh_cp_memory functions = fh_cp_memory_init();
  functions.fill = [](void*, void*, uint32_t, uint64_t, void*) {
    ADD_FAILURE() << "fill";
    return 0;
  };
  functions.copy = [](void*, void*, uint64_t, const void*, uint64_t, uint64_t, uint64_t, void*) {
    ADD_FAILURE() << "copy";
    return 0;
  };
  fh_cp_tensors x = fh_cp_tensors_init();
  std::vector<char> memory(1 << 20);
  void* const workspace = memory.data() + (256 - reinterpret_cast<uintptr_t>(memory.data()) % 256);
  const auto said = [&] {
    const fh_status status = fh_cp_plan_run(plan.get(), &transport, &functions, &x, workspace,
                                            fh_cp_plan_workspace_bytes(plan.get()), nullptr);
    return std::pair(status, std::string(fh_cp_last_error()));
  };
  EXPECT_EQ(said().first, FH_INVALID_TENSOR);  // q is NULL
  char* const tensors = memory.data() + (1 << 19);
  x.q = tensors, x.k = tensors + (1 << 14), x.v = tensors + (2 << 14), x.o = tensors + (3 << 14);
  EXPECT_EQ(said().first, FH_NO_DEVICE);
  EXPECT_NE(said().second.find("a GPU that was only named"), std::string::npos) << said().second;
}

TEST(ContextParallelFaults, addresses_are_looked_at_before_anything_moves) {
  const auto further = [](const void* data) { return const_cast<char*>(static_cast<const char*>(data)) + 1; };
  const std::pair<std::function<void(Given&)>, const char*> wrong[] = {
      {[&](Given& g) { g.tensors.k = further(g.tensors.k); }, "must be a multiple of 4"},
      {[&](Given& g) { g.tensors.lse = reinterpret_cast<float*>(further(g.tensors.lse)); }, "tensors.lse is at"},
      {[](Given& g) { g.tensors.o = const_cast<void*>(g.tensors.q); }, "have memory in common, and o is written"},
      {[](Given& g) { g.tensors.lse = static_cast<float*>(g.tensors.o) + 1; }, "have memory in common"},
  };
  for (const auto& [spoil, words] : wrong) {
    test::Ranks ranks(4);
    const std::vector<Outcome> outcomes = run(small(FH_CP_RING), FH_FORWARD, ranks, [&](int64_t rank, Given& g) {
      if (rank == 1) spoil(g);
    });
    for (size_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(outcomes[rank].status, rank == 1 ? FH_INVALID_TENSOR : FH_INVALID_PROBLEM) << outcomes[rank].text;
      const char* const said = rank == 1 ? words : "rank 1 refuses its arguments";
      EXPECT_NE(outcomes[rank].text.find(said), std::string::npos) << outcomes[rank].text;
      EXPECT_TRUE(untouched(outcomes[rank].o));
    }
    EXPECT_EQ(ranks.bytes_moved, 0u);
  }
}

TEST(ContextParallelFaults, a_workspace_within_a_tensor) {
  const CpCase c = small(FH_CP_RING);
  fh_cp_problem p = fh_cp_problem_init();
  p.whole = &c.whole, p.ranks = 4, p.scheme = FH_CP_RING, p.check_interval = -1;
  fh_cp_plan* made = nullptr;
  ASSERT_EQ(fh_cp_plan_create(&p, "cpu", &made), FH_OK) << fh_cp_last_error();
  const test::CpPlan plan(made);
  const test::Workspace memory(fh_cp_plan_workspace_bytes(made) + 65536);
  test::Ranks ranks(4);
  const fh_cp_transport transport = ranks.transport(0);
  CpTensors t = test::inputs(c);
  t.o = test::empty_whole(c.whole, &CpTensors::o, Element::f32);
  fh_cp_tensors x = test::cp_tensors(t, FH_FORWARD);
  x.k = static_cast<char*>(memory.data()) + 256;
  EXPECT_EQ(fh_cp_plan_run(made, &transport, nullptr, &x, memory.data(), memory.bytes(), nullptr), FH_INVALID_TENSOR);
  EXPECT_NE(std::string(fh_cp_last_error()).find("workspace at "), std::string::npos) << fh_cp_last_error();
}

// Its caller is told by fh_cp_plan_create, and tells the others by `cancel`.
TEST(ContextParallelFaults, a_rank_that_has_no_plan_ends_the_call_of_the_others) {
  test::Ranks ranks(4);
  const std::vector<Outcome> outcomes = run(small(FH_CP_RING), FH_FORWARD, ranks, [](int64_t rank, Given& g) {
    if (rank == 1) g.c.whole.causal = 0, g.c.whole.window_right = 3;
  });
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(outcomes[rank].status, rank == 1 ? FH_UNSUPPORTED : FH_LAUNCH_FAILED) << outcomes[rank].text;
    EXPECT_TRUE(untouched(outcomes[rank].o));
  }
  EXPECT_NE(outcomes[1].text.find("window_right is 3: the ring"), std::string::npos) << outcomes[1].text;
  EXPECT_EQ(ranks.bytes_moved, 0u);
}

TEST(ContextParallelFaults, a_transport_that_fails_ends_the_call_on_every_rank) {
  for (const fh_cp_scheme scheme : {FH_CP_RING, FH_CP_ALL_GATHER, FH_CP_ALL_TO_ALL})
    for (int64_t at = 0;; ++at) {
      test::Ranks ranks(4);
      ranks.fails_at = at;
      const std::vector<Outcome> outcomes = run(small(scheme), FH_BACKWARD, ranks, [](int64_t, Given&) {});
      if (outcomes[0].status == FH_OK) {  // there are not so many exchanges
        EXPECT_EQ(at, scheme == FH_CP_RING ? 7 : 3);
        break;
      }
      EXPECT_EQ(outcomes[0].status, FH_LAUNCH_FAILED);
      EXPECT_NE(outcomes[0].text.find("transport.exchange returned 7 on rank 0: the cable was pulled"),
                std::string::npos)
          << outcomes[0].text;
      for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.status, FH_LAUNCH_FAILED) << outcome.text;
    }
}

TEST(ContextParallelFaults, what_cannot_be_run_is_said) {
  const std::pair<std::function<void(Given&)>, const char*> wrong[] = {
      {[](Given& g) { g.transport.exchange = nullptr; },
       "fh_cp_plan_run: transport.exchange must be a function where a plan has 4 ranks, but is NULL. Set exchange "
       "and "},
      {[](Given& g) { g.transport.wait = nullptr; }, "transport.wait must be a function where a plan has 4 ranks"},
      {[](Given& g) { g.transport.rank = 3 - g.transport.rank; }, ". Give both the same rank and ranks."},
      {[](Given& g) { g.transport.transfers = static_cast<fh_cp_transfers>(9); },
       "transport.transfers is 9, which names no fh_cp_transfers. Use FH_CP_SEND_RECV or FH_CP_PEER_COPIES."},
      {[](Given& g) { g.tensors.grad_o = g.tensors.q; }, "tensors.grad_o is given, but"},
      {[](Given& g) { g.tensors.sink = g.tensors.lse; }, "tensors.sink is given, but"},
      {[](Given& g) { g.tensors.o = nullptr; }, "tensors.o is NULL, but this plan needs it. Set it."},
      {[](Given& g) { g.tensors.size = 8; }, "fh_cp_tensors.size is 8; it must hold sizeof(fh_cp_tensors)"},
      {[](Given& g) { g.tensors.size = 9999; }, "fh_cp_tensors.size is 9999"},
      {[](Given& g) { g.transport.size = static_cast<size_t>(-1); }, "fh_cp_transport.size is 18446744073709551615"},
  };
  for (const auto& [spoil, words] : wrong) {
    test::Ranks ranks(4);
    for (const Outcome& outcome : run(small(FH_CP_RING), FH_FORWARD, ranks, [&](int64_t, Given& g) { spoil(g); })) {
      EXPECT_EQ(outcome.status, FH_INVALID_TENSOR);
      EXPECT_NE(outcome.text.find(words), std::string::npos) << outcome.text;
    }
  }
}

TEST(ContextParallelFaults, no_transport_and_no_memory) {
  fh_problem whole = small(FH_CP_RING).whole;
  whole.dtype = FH_BF16;
  fh_cp_problem p = fh_cp_problem_init();
  p.whole = &whole, p.ranks = 4;
  const auto said = [&](const char* target, const fh_cp_transport* transport) {
    const test::CpPlan plan = test::planned(p, target);
    const test::Workspace workspace(fh_cp_plan_workspace_bytes(plan.get())), tensors(1 << 17);
    char* const at = static_cast<char*>(tensors.data());
    fh_cp_tensors x = fh_cp_tensors_init();
    x.q = at, x.k = at + (1 << 14), x.v = at + (2 << 14), x.o = at + (3 << 14);
    EXPECT_EQ(fh_cp_plan_run(plan.get(), transport, nullptr, &x, workspace.data(), workspace.bytes(), nullptr),
              FH_INVALID_TENSOR);
    return std::string(fh_cp_last_error());
  };
  EXPECT_EQ(said("cpu", nullptr),
            "fh_cp_plan_run: transport must move data between the 4 ranks of the plan, but is NULL. Give one that "
            "fh_cp_nccl_transport or fh_cp_copy_transport makes, or functions of your own in fh_cp_transport.");
  test::Ranks ranks(4);
  const fh_cp_transport transport = ranks.transport(0);
  EXPECT_TRUE(said("h100", &transport).starts_with("fh_cp_plan_run: memory must have `"));
  EXPECT_TRUE(said("h100", &transport).ends_with("but is NULL. Give what fh_cp_cuda_memory sets."));
}

TEST(ContextParallelFaults, digests_are_compared_as_often_as_asked) {
  static std::atomic<int> asked;
  asked = 0;
  for (const auto& [interval, call, wanted] :
       {std::tuple<int32_t, uint64_t, int>{0, 5, 4}, {-1, 0, 0}, {3, 6, 4}, {3, 7, 0}}) {
    test::Ranks ranks(4);
    const int before = asked;
    const std::vector<Outcome> outcomes = run(small(FH_CP_RING), FH_FORWARD, ranks, [&](int64_t, Given& g) {
      g.problem.check_interval = interval, g.tensors.call = call;
      g.transport.agree = [](void*, uint64_t digest, uint64_t* digests) {
        for (int i = 0; i < 4; ++i) digests[i] = digest;
        ++asked;
        return 0;
      };
    });
    for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.status, FH_OK) << outcome.text;
    EXPECT_EQ(asked - before, wanted) << interval << ", call " << call;
  }
}

}  // namespace
}  // namespace froghopper
