// SPDX-License-Identifier: Apache-2.0
// Claims about transfers by copies into peers' workspaces, with a library that has the driver's functions: they bring
// what other transports bring, call after call, on threads without a context too; waits go by tickets; and a rank that
// waits for a peer is released by `cancel`, for good.
#include <gtest/gtest.h>

#include <barrier>
#include <thread>

#include "tests/support/cp_attention.hpp"
#include "tests/support/fake_cuda.hpp"

namespace froghopper {
namespace {

using test::CpCase;
using test::CpTensors;
using test::Numbers;

// What the ranks of one host have of each other.
class Peers {
 public:
  explicit Peers(int64_t ranks)
      : words_(static_cast<size_t>(2 * ranks * ranks)),
        workspaces_(static_cast<size_t>(ranks)),
        signals_(workspaces_.size()),
        all_there_(ranks) {
    for (int64_t rank = 0; rank < ranks; ++rank) signals_[static_cast<size_t>(rank)] = &words_[2 * ranks * rank];
  }

  test::CpTransports transports() {
    return {[this](int64_t rank, void* workspace) {
              std::fill_n(signals_[static_cast<size_t>(rank)], 2 * signals_.size(), 0u);
              workspaces_[static_cast<size_t>(rank)] = workspace;
              all_there_.arrive_and_wait();
              fh_cp_transport transport = fh_cp_transport_init();
              EXPECT_EQ(make(rank, &transport), FH_OK) << fh_cp_last_error();
              return transport;
            },
            [this](fh_cp_transport* transport) {
              all_there_.arrive_and_wait();
              fh_cp_copy_transport_destroy(transport);
              EXPECT_EQ(transport->context, nullptr);
            }};
  }
  fh_status make(int64_t rank, fh_cp_transport* transport) {
    fh_cp_peers peers = described(rank);
    return fh_cp_copy_transport(&peers, transport);
  }
  fh_cp_peers described(int64_t rank) {
    fh_cp_peers peers = fh_cp_peers_init();
    peers.ranks = static_cast<int64_t>(signals_.size()), peers.rank = rank;
    peers.workspaces = workspaces_.data(), peers.signals = signals_.data();
    peers.copy_stream = this, peers.library = FROGHOPPER_FAKE_CUDA;
    return peers;
  }
  void hold(void* workspace) { std::fill(workspaces_.begin(), workspaces_.end(), workspace); }

 private:
  std::vector<uint64_t> words_;
  std::vector<void*> workspaces_;
  std::vector<uint64_t*> signals_;
  std::barrier<> all_there_;
};

CpCase small(fh_cp_scheme scheme, int64_t rows, int64_t ranks) {
  CpCase c;
  c.whole.batch = 2, c.whole.heads_q = 4, c.whole.heads_kv = 2, c.whole.seq_q = c.whole.seq_kv = rows;
  c.whole.dim_qk = 16, c.whole.causal = 1, c.whole.max_sms = 1, c.whole.sink = 1;
  c.ranks = ranks, c.scheme = scheme, c.grad_lse = true;
  return c;
}

TEST(ContextParallelCopies, bring_what_other_transports_bring) {
  for (const fh_cp_scheme scheme :
       {FH_CP_RING, FH_CP_ALL_GATHER, FH_CP_ALL_TO_ALL, FH_CP_ALL_TO_ALL_RING, FH_CP_ALL_TO_ALL_GATHER})
    for (const int64_t rows : {45, 3})          // of 3, shards are empty
      for (const int64_t ranks : {2, 4, -4}) {  // -4: of documents that are divided
        CpCase c = small(scheme, rows, std::abs(ranks));
        if (ranks < 0) c.whole.batch = 1, c.layout = FH_CP_BY_DOCUMENT, c.documents = {0, rows / 3, rows};
        if (scheme >= FH_CP_ALL_TO_ALL_RING) c.heads_ranks = 2;
        CpTensors wanted = test::inputs(c);
        test::run_ranks(c, FH_FORWARD, wanted);
        CpTensors found = wanted;
        test::run_ranks(c, FH_BACKWARD, wanted);
        c.transfers = FH_CP_PEER_COPIES;
        Peers peers(c.ranks);
        const Numbers o = found.o, lse = found.lse;
        found.o = found.lse = {};
        test::run_ranks(c, FH_FORWARD, found, peers.transports());
        EXPECT_EQ(found.o, o);
        EXPECT_EQ(found.lse, lse);
        test::run_ranks(c, FH_BACKWARD, found, peers.transports());
        EXPECT_EQ(found.grad_q, wanted.grad_q) << fh_cp_scheme_name(scheme) << " " << rows;
        EXPECT_EQ(found.grad_k, wanted.grad_k);
        EXPECT_EQ(found.grad_v, wanted.grad_v);
        EXPECT_EQ(found.grad_sink, wanted.grad_sink);
      }
}

// The numbers of signals go on from run to run.
TEST(ContextParallelCopies, a_transport_serves_many_exchanges) {
  constexpr int64_t ranks = 3;
  constexpr uint64_t bytes = 8;
  Peers peers(ranks);
  std::vector<std::array<uint64_t, ranks>> memory(ranks);
  std::barrier there(ranks);
  test::on_all_ranks(ranks, [&](int64_t rank) {
    fh_cp_transport t = fh_cp_transport_init();
    if (rank == 0) peers.hold(nullptr);
    there.arrive_and_wait();
    fh_cp_peers described = peers.described(rank);
    std::vector<void*> workspaces;
    for (auto& each : memory) workspaces.push_back(each.data());
    described.workspaces = workspaces.data();
    ASSERT_EQ(fh_cp_copy_transport(&described, &t), FH_OK) << fh_cp_last_error();
    const int64_t next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    for (uint64_t i = 0; i < 100; ++i) {
      uint64_t said = 1000 * i + static_cast<uint64_t>(rank);
      const fh_cp_transfer send = {next, &said, bytes, 8}, recv = {before, &memory[rank][1], bytes, 0};
      void* ticket = nullptr;
      const bool speaks = i % 7 != 3;  // an exchange may have nothing for a peer
      ASSERT_EQ(t.exchange(t.context, &send, speaks, &recv, speaks, nullptr, &ticket), 0) << t.error(t.context);
      ASSERT_EQ(t.wait(t.context, ticket, nullptr), 0) << t.error(t.context);
      if (speaks) { ASSERT_EQ(memory[rank][1], 1000 * i + static_cast<uint64_t>(before)); }
    }
    there.arrive_and_wait();
    fh_cp_copy_transport_destroy(&t);
  });
}

// Two ranks in this thread, which exchange eight bytes each.
struct Pair {
  Pair() {
    peers.hold(memory);
    for (int64_t rank : {0, 1}) EXPECT_EQ(peers.make(rank, &transport[rank]), FH_OK) << fh_cp_last_error();
  }
  ~Pair() {
    for (fh_cp_transport& t : transport) fh_cp_copy_transport_destroy(&t);
  }
  // What rank 0 receives from rank 1. A receive comes first, since a send of this thread waits for it.
  int receive(void** ticket) {
    const fh_cp_transfer recv = {1, memory, 8, 0};
    return transport[0].exchange(transport[0].context, nullptr, 0, &recv, 1, nullptr, ticket);
  }
  int send() {
    const fh_cp_transfer send = {0, &memory[1], 8, 0};
    void* ticket = nullptr;
    return transport[1].exchange(transport[1].context, &send, 1, nullptr, 0, nullptr, &ticket);
  }
  int wait(void* ticket) { return transport[0].wait(transport[0].context, ticket, nullptr); }
  std::string error() { return transport[0].error(transport[0].context); }

  Peers peers{2};
  uint64_t memory[2] = {};
  fh_cp_transport transport[2] = {fh_cp_transport_init(), fh_cp_transport_init()};
};

// A wait for the first of two exchanges ends although the second has not come; that for the second does not.
TEST(ContextParallelCopies, waits_go_by_tickets) {
  Pair two;
  void *first = nullptr, *second = nullptr;
  ASSERT_EQ(two.receive(&first), 0);
  ASSERT_EQ(two.receive(&second), 0);
  ASSERT_NE(first, second);
  ASSERT_EQ(two.send(), 0);
  std::atomic<bool> late = false;
  std::thread sender([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    late = true;
    EXPECT_EQ(two.send(), 0);
  });
  EXPECT_EQ(two.wait(second), 0) << two.error();
  EXPECT_TRUE(late);
  sender.join();
  EXPECT_EQ(two.wait(first), 0) << two.error();

  EXPECT_NE(two.wait(first), 0);
  EXPECT_NE(two.error().find("the ticket is 1, which no exchange has given or which was waited for already"),
            std::string::npos)
      << two.error();
  int other = 0;
  EXPECT_NE(two.wait(&other), 0);
  EXPECT_NE(two.wait(nullptr), 0);
}

// The thread that cancels has no context, as a watchdog has none, and has none afterwards.
TEST(ContextParallelCopies, cancel_releases_a_rank_that_waits) {
  Pair two;
  void* ticket = nullptr;
  ASSERT_EQ(two.receive(&ticket), 0);
  const auto cancel = [](void* with) {
    fh_cp_transport& t = static_cast<Pair*>(with)->transport[0];
    std::thread rescuer([&] {
      t.cancel(t.context);
      EXPECT_EQ(fake_cuda_current(), nullptr);
    });
    rescuer.join();
  };
  fake_cuda_at_next_wait(cancel, &two);
  EXPECT_EQ(two.wait(ticket), 0) << two.error();

  EXPECT_NE(two.receive(&ticket), 0);
  EXPECT_NE(two.error().find("was cancelled"), std::string::npos) << two.error();
  EXPECT_NE(two.wait(ticket), 0);
}

// Rank 0 waits in its stream for the second exchange when it cancels, and only then rank 1 tells of the first.
TEST(ContextParallelCopies, a_late_write_of_a_peer_undoes_no_cancel) {
  Pair two;
  void *first = nullptr, *second = nullptr;
  ASSERT_EQ(two.receive(&first), 0);
  ASSERT_EQ(two.receive(&second), 0);
  const auto cancel_then_send = [](void* with) {
    Pair& p = *static_cast<Pair*>(with);
    p.transport[0].cancel(p.transport[0].context);
    EXPECT_EQ(p.send(), 0);
  };
  fake_cuda_at_next_wait(cancel_then_send, &two);
  EXPECT_EQ(two.wait(second), 0) << two.error();
}

// Every function works in the context of the copy stream, and leaves the thread with the one that it had.
TEST(ContextParallelCopies, need_no_current_context) {
  int other = 0;
  void* const none = nullptr;
  for (void* const had : {none, static_cast<void*>(&other)}) {
    if (had != nullptr) cuCtxPushCurrent_v2(had);
    const int before = fake_cuda_alive();
    {
      Pair two;
      void* ticket = nullptr;
      EXPECT_EQ(fake_cuda_current(), had);
      EXPECT_EQ(two.receive(&ticket), 0) << two.error();
      EXPECT_EQ(fake_cuda_current(), had);
      EXPECT_EQ(two.send(), 0);
      EXPECT_GT(fake_cuda_alive(), before + 2);  // streams, and an event
      EXPECT_EQ(two.wait(ticket), 0) << two.error();
      EXPECT_EQ(fake_cuda_current(), had);
      two.transport[0].cancel(two.transport[0].context);
      EXPECT_EQ(fake_cuda_current(), had);
    }
    EXPECT_EQ(fake_cuda_current(), had);
    EXPECT_EQ(fake_cuda_alive(), before);
    void* popped = nullptr;
    if (had != nullptr) cuCtxPopCurrent_v2(&popped);
  }
}

TEST(ContextParallelCopies, says_what_is_wrong) {
  Peers peers(2);
  uint64_t memory[2] = {};
  peers.hold(memory);
  fh_cp_transport t = fh_cp_transport_init();
  const auto text_of = [&](auto change) {
    fh_cp_peers p = peers.described(0);
    change(p);
    EXPECT_NE(fh_cp_copy_transport(&p, &t), FH_OK);
    return std::string(fh_cp_last_error());
  };
  EXPECT_NE(text_of([](fh_cp_peers& p) { p.ranks = 1; }).find("peers.ranks is 1 and peers.rank 0, but"),
            std::string::npos);
  EXPECT_EQ(text_of([](fh_cp_peers& p) { p.signals = nullptr; }),
            "fh_cp_copy_transport: peers.signals must have an address for each of 2 ranks, but is NULL. Set it.");
  EXPECT_NE(text_of([](fh_cp_peers& p) { p.size = 3; }).find("size is 3"), std::string::npos);
  EXPECT_NE(text_of([](fh_cp_peers& p) { p.library = "libm.so.6"; }).find("libm.so.6 has no cuMemcpyAsync"),
            std::string::npos);
  fake_cuda_set_64_bits(0);
  EXPECT_NE(text_of([](fh_cp_peers&) {}).find("no waits for 64 bits"), std::string::npos);
  fake_cuda_set_64_bits(1);
  void* const none[2] = {memory, nullptr};
  EXPECT_EQ(
      text_of([&](fh_cp_peers& p) { p.workspaces = none; }),
      "fh_cp_copy_transport: peers.workspaces[1] must be the address of the memory of rank 1 in this process, but "
      "is NULL. Map it.");
  uint64_t words[2] = {};
  uint64_t* const odd[2] = {words, reinterpret_cast<uint64_t*>(reinterpret_cast<char*>(words) + 1)};
  EXPECT_NE(
      text_of([&](fh_cp_peers& p) { p.signals = odd; }).find("peers.signals[1] must be at a multiple of 8, but is"),
      std::string::npos);
  EXPECT_EQ(fh_cp_copy_transport(nullptr, &t), FH_INVALID_TENSOR);
  EXPECT_STREQ(fh_cp_last_error(), "fh_cp_copy_transport: peers must point to your peers, but is NULL. Set it.");
  struct {
    fh_cp_peers known;
    void* later;
  } newer = {peers.described(0), memory};
  newer.known.size = sizeof newer;
  EXPECT_EQ(fh_cp_copy_transport(&newer.known, &t), FH_INVALID_TENSOR);
  EXPECT_NE(std::string(fh_cp_last_error()).find("fh_cp_peers has a field at byte "), std::string::npos)
      << fh_cp_last_error();

  // Without the places of peers, this transport would write to their beginnings.
  CpCase c = small(FH_CP_RING, 45, 2);
  c.whole.sink = 0;
  CpTensors tensors = test::inputs(c);
  const test::CpPlan plan = test::plan_of(c, FH_FORWARD, 0);
  ASSERT_EQ(peers.make(0, &t), FH_OK) << fh_cp_last_error();
  fh_cp_tensors x = test::cp_tensors(tensors, FH_FORWARD);
  EXPECT_EQ(fh_cp_plan_run(plan.get(), &t, nullptr, &x, nullptr, 0, nullptr), FH_INVALID_TENSOR);
  EXPECT_NE(std::string(fh_cp_last_error()).find("FH_CP_PEER_COPIES"), std::string::npos) << fh_cp_last_error();
  fh_cp_copy_transport_destroy(&t);
}

TEST(ContextParallelCopies, are_for_one_host) {
  const CpCase c = small(FH_CP_RING, 45, 4);
  fh_cp_problem p = fh_cp_problem_init();
  p.whole = &c.whole, p.ranks = 4, p.transfers = FH_CP_PEER_COPIES, p.ranks_per_host = 2;
  fh_cp_plan* plan = nullptr;
  EXPECT_EQ(fh_cp_plan_create(&p, "cpu", &plan), FH_UNSUPPORTED);
  EXPECT_NE(std::string(fh_cp_last_error()).find("ranks_per_host is 2 of 4"), std::string::npos)
      << fh_cp_last_error();
  p.transfers = static_cast<fh_cp_transfers>(7), p.ranks_per_host = 0;
  EXPECT_EQ(fh_cp_plan_create(&p, "cpu", &plan), FH_INVALID_PROBLEM);
}

}  // namespace
}  // namespace froghopper
