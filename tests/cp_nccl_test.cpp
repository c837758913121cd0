// SPDX-License-Identifier: Apache-2.0
// Claims about the transport over NCCL, with a library that has its functions: it moves what other transports move, on
// the stream of the run and beside it; digests go through it; an error that NCCL reports ends the call, and the
// communicator is aborted once; what is missing is named.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "tests/support/cp_attention.hpp"

namespace froghopper {
namespace {

using test::CpCase;
using test::CpTensors;
using test::Numbers;

class FakeNccl {
 public:
  explicit FakeNccl(int ranks)
      : library_(dlopen(FROGHOPPER_FAKE_NCCL, RTLD_NOW)), comms_(static_cast<size_t>(ranks)) {
    call<void(int, void**)>("fake_nccl_make")(ranks, comms_.data());
  }
  FakeNccl(const FakeNccl&) = delete;
  ~FakeNccl() { call<void(int, void**)>("fake_nccl_destroy")(static_cast<int>(comms_.size()), comms_.data()); }
  void* comm(int64_t rank) const { return comms_[static_cast<size_t>(rank)]; }
  void fail(int64_t rank) const { call<void(void*)>("fake_nccl_fail")(comm(rank)); }
  int aborts(int64_t rank) const { return call<int(void*)>("fake_nccl_aborts")(comm(rank)); }

 private:
  template <class Function>
  Function* call(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(library_, name));
  }
  void* library_;
  std::vector<void*> comms_;
};

CpCase small(fh_cp_scheme scheme) {
  CpCase c;
  c.whole.batch = 2, c.whole.heads_q = 4, c.whole.heads_kv = 2, c.whole.seq_q = c.whole.seq_kv = 45;
  c.whole.dim_qk = 16, c.whole.causal = 1, c.whole.max_sms = 1;
  c.ranks = 4, c.scheme = scheme;
  return c;
}

struct Outcome {
  fh_status status = FH_OK;
  std::string text;
};

// Forward over ranks whose transport is NCCL; o goes back to `whole`.
std::vector<Outcome> run(const CpCase& c, const FakeNccl& nccl, CpTensors& whole, bool beside, bool compares,
                         const std::function<uint64_t(int64_t rank)>& call) {
  std::vector<Outcome> outcomes(static_cast<size_t>(c.ranks));
  std::mutex mutex;
  Numbers o = test::empty_whole(c.whole, &CpTensors::o, Element::bf16);
  test::on_all_ranks(c.ranks, [&](int64_t rank) {
    const test::CpPlan plan = test::plan_of(c, FH_FORWARD, rank);
    const std::vector<fh_cp_range> held = test::rows_held(plan.get(), rank);
    CpTensors t;
    for (Numbers CpTensors::*x : {&CpTensors::q, &CpTensors::k, &CpTensors::v})
      t.*x = test::shard_of(whole.*x, test::layout_of(c.whole, x), held);
    t.o = test::shard_of(o, test::layout_of(c.whole, &CpTensors::o), held);
    fh_cp_tensors x = test::cp_tensors(t, FH_FORWARD);
    x.call = call(rank);
    int stream = 0;
    const test::Workspace scratch(8 * static_cast<uint64_t>(c.ranks + 1));
    fh_cp_transport transport;
    ASSERT_EQ(fh_cp_nccl_transport(nccl.comm(rank), FROGHOPPER_FAKE_NCCL, beside ? &stream : nullptr, 5,
                                   compares ? scratch.data() : nullptr, &transport),
              FH_OK)
        << fh_cp_last_error();
    EXPECT_EQ(transport.ranks, c.ranks);
    EXPECT_EQ(transport.rank, rank);
    const test::Workspace workspace(fh_cp_plan_workspace_bytes(plan.get()));
    Outcome& mine = outcomes[static_cast<size_t>(rank)];
    mine.status = fh_cp_plan_run(plan.get(), &transport, nullptr, &x, workspace.data(), workspace.bytes(), nullptr);
    if (mine.status != FH_OK) mine.text = fh_cp_last_error();
    fh_cp_nccl_transport_destroy(&transport);
    EXPECT_EQ(transport.context, nullptr);
    const std::lock_guard lock(mutex);
    test::put_back(o, t.o, test::layout_of(c.whole, &CpTensors::o), held);
  });
  whole.o = o;
  return outcomes;
}

uint64_t same(int64_t) { return 3; }

TEST(ContextParallelNccl, moves_what_other_transports_move) {
  for (const fh_cp_scheme scheme : {FH_CP_RING, FH_CP_ALL_GATHER, FH_CP_ALL_TO_ALL})
    for (const bool beside : {false, true})
      for (const bool compares : {false, true}) {
        const CpCase c = small(scheme);
        CpTensors wanted = test::inputs(c), found = wanted;
        test::run_ranks(c, FH_FORWARD, wanted);
        const FakeNccl nccl(4);
        for (const Outcome& outcome : run(c, nccl, found, beside, compares, same))
          EXPECT_EQ(outcome.status, FH_OK) << outcome.text;
        EXPECT_EQ(found.o, wanted.o);
        for (int64_t rank = 0; rank < 4; ++rank) EXPECT_EQ(nccl.aborts(rank), 0);
      }
}

TEST(ContextParallelNccl, digests_go_through_it) {
  const CpCase c = small(FH_CP_RING);
  CpTensors t = test::inputs(c);
  const FakeNccl nccl(4);
  for (const Outcome& outcome : run(c, nccl, t, true, true, [](int64_t rank) { return rank == 2 ? 1 : 0; })) {
    EXPECT_EQ(outcome.status, FH_INVALID_PROBLEM);
    EXPECT_NE(outcome.text.find("tensors.call must be the same on all ranks, but is 0 on rank 0 and 1 on rank 2"),
              std::string::npos)
        << outcome.text;
  }
}

TEST(ContextParallelNccl, an_error_of_a_peer_ends_the_call) {
  for (const bool compares : {false, true}) {
    const CpCase c = small(FH_CP_RING);
    CpTensors t = test::inputs(c);
    const FakeNccl nccl(4);
    nccl.fail(1);
    const std::vector<Outcome> outcomes = run(c, nccl, t, true, compares, same);
    for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.status, FH_LAUNCH_FAILED) << outcome.text;
    EXPECT_NE(outcomes[1].text.find("remote process exited"), std::string::npos) << outcomes[1].text;
    EXPECT_EQ(nccl.aborts(1), 1);
  }
}

TEST(ContextParallelNccl, what_is_missing_is_named) {
  fh_cp_transport transport;
  int comm = 0;
  EXPECT_EQ(fh_cp_nccl_transport(&comm, "libnothing.so.9", nullptr, 0, nullptr, &transport), FH_NO_DEVICE);
  EXPECT_NE(std::string(fh_cp_last_error()).find("libnothing.so.9"), std::string::npos) << fh_cp_last_error();
  EXPECT_EQ(fh_cp_nccl_transport(&comm, "libm.so.6", nullptr, 0, nullptr, &transport), FH_NO_DEVICE);
  EXPECT_NE(std::string(fh_cp_last_error()).find("libm.so.6 has no ncclGroupStart"), std::string::npos)
      << fh_cp_last_error();
  EXPECT_EQ(fh_cp_nccl_transport(nullptr, nullptr, nullptr, 0, nullptr, &transport), FH_INVALID_TENSOR);
}

}  // namespace
}  // namespace froghopper
