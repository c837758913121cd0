// SPDX-License-Identifier: Apache-2.0
// Claims about attention over ranks on GPUs, in C: with the sums of fh_cp_cuda_memory every scheme gives what fp64
// gives, as closely as one GPU does, by copies and by NCCL, which give equal bits; a rank that refuses its arguments
// or does not come ends the call of the others. Ranks share a GPU where there is one, but not those of NCCL.
#include <gtest/gtest.h>

#include "tests/support/cp_gpus.hpp"

namespace froghopper {
namespace {

using test::By;
using test::CpCase;
using test::CpTensors;
using test::Numbers;

fh_problem problem(int64_t rows) {
  fh_problem p = fh_problem_init();
  p.heads_q = 8, p.heads_kv = 4, p.seq_q = p.seq_kv = rows, p.dim_qk = 64;
  p.causal = 1, p.deterministic = 1;
  return p;
}

// The error against fp64 of a run over ranks is at most twice that of one GPU, and one rounding.
void expect_as_on_one_gpu(const CpCase& c, By by, CpTensors* results = nullptr) {
  CpCase one = c;
  one.ranks = 1, one.scheme = FH_CP_AUTO, one.heads_ranks = 0;
  CpTensors alone = test::inputs(c);
  test::run_on_gpus(one, FH_FORWARD, alone, by);
  CpTensors found = alone;
  const bool has_gradients = !alone.scale_k.data();
  if (has_gradients) test::run_on_gpus(one, FH_BACKWARD, alone, by);
  if (has_gradients) test::run_on_gpus(c, FH_BACKWARD, found, by);
  test::run_on_gpus(c, FH_FORWARD, found, by);
  for (const test::Compared& x : test::everything) {
    if (!has_gradients && x.op == FH_BACKWARD) continue;
    if (x.tensor == &CpTensors::grad_sink && !c.whole.sink) continue;
    std::vector<double> wanted = test::exact(c, x.op, alone, x.view);
    if (x.tensor == &CpTensors::lse) wanted = test::lines_first(c.whole, wanted);
    const double unit = unit_roundoff(test::element_of_c(c.whole.dtype));
    const double most = 2 * test::largest_error(alone.*x.tensor, wanted) + (unit + 0x1p-20) * test::largest(wanted);
    EXPECT_LE(test::largest_error(found.*x.tensor, wanted), most)
        << x.name << ", " << fh_cp_scheme_name(c.scheme) << ", " << c.ranks << " ranks";
  }
  if (results != nullptr) *results = std::move(found);
}

CpCase case_of(const fh_problem& whole, int64_t ranks, fh_cp_scheme scheme, By by) {
  CpCase c;
  c.whole = whole, c.ranks = ranks, c.scheme = scheme;
  c.transfers = by == By::copies ? FH_CP_PEER_COPIES : FH_CP_SEND_RECV;
  return c;
}

class ContextParallelOnGpus : public testing::TestWithParam<By> {
 protected:
  void SetUp() override {
    if (const std::string missing = test::missing_for(GetParam()); !missing.empty()) GTEST_SKIP() << missing;
    ranks = GetParam() == By::nccl ? std::min(4, test::hopper_gpus()) : std::max(2, test::hopper_gpus());
  }
  int64_t ranks = 2;
};

TEST_P(ContextParallelOnGpus, every_scheme_gives_what_one_gpu_gives) {
  for (const fh_cp_scheme scheme : {FH_CP_RING, FH_CP_ALL_GATHER, FH_CP_ALL_TO_ALL})
    for (const fh_dtype dtype : {FH_BF16, FH_F16})
      for (const int64_t rows : {1000, 333}) {
        fh_problem p = problem(rows);
        p.dtype = dtype, p.sink = dtype == FH_BF16, p.deterministic = rows == 1000;
        expect_as_on_one_gpu(case_of(p, ranks, scheme, GetParam()), GetParam());
      }
}

TEST_P(ContextParallelOnGpus, documents_windows_and_8_bit_keys) {
  for (const fh_cp_scheme scheme : {FH_CP_RING, FH_CP_ALL_GATHER, FH_CP_ALL_TO_ALL}) {
    CpCase c = case_of(problem(700), ranks, scheme, GetParam());
    c.documents = {0, 5, 300, 300, 520, 700};
    expect_as_on_one_gpu(c, GetParam());
    c = case_of(problem(700), ranks, scheme, GetParam());
    c.whole.causal = 0, c.whole.window_left = 150, c.whole.window_right = 0;
    expect_as_on_one_gpu(c, GetParam());
    c.whole.deterministic = 0;
    expect_as_on_one_gpu(c, GetParam());
    c = case_of(problem(700), ranks, scheme, GetParam());
    c.whole.dtype_kv = FH_E4M3;
    expect_as_on_one_gpu(c, GetParam());
  }
}

TEST_P(ContextParallelOnGpus, two_runs_give_equal_bits) {
  for (const fh_cp_scheme scheme : {FH_CP_RING, FH_CP_ALL_GATHER, FH_CP_ALL_TO_ALL}) {
    const CpCase c = case_of(problem(500), ranks, scheme, GetParam());
    CpTensors first, second;
    expect_as_on_one_gpu(c, GetParam(), &first);
    expect_as_on_one_gpu(c, GetParam(), &second);
    for (Numbers CpTensors::*x :
         {&CpTensors::o, &CpTensors::lse, &CpTensors::grad_q, &CpTensors::grad_k, &CpTensors::grad_v})
      EXPECT_EQ(first.*x, second.*x) << fh_cp_scheme_name(scheme);
  }
}

INSTANTIATE_TEST_SUITE_P(transfers, ContextParallelOnGpus, testing::Values(By::copies, By::nccl),
                         [](const auto& by) { return by.param == By::copies ? "copies" : "nccl"; });

// Rows of whole 16 bytes, by a kernel, and others, by the driver; what lies between rows is not written.
TEST(ContextParallelOnOneGpu, copies_of_rows) {
  if (test::hopper_gpus() == 0) GTEST_SKIP() << "there is no Hopper GPU";
  test::GpuRanks ranks(1, By::copies);
  test::GpuRank mine(ranks, 0);
  fh_cp_memory memory;
  ASSERT_EQ(fh_cp_cuda_memory(&memory), FH_OK) << fh_cp_last_error();
  struct Case {
    uint64_t to_pitch, from_pitch, bytes, rows, first;
  };
  for (const auto& [to_pitch, from_pitch, bytes, rows, first] :
       {Case{48, 96, 48, 1000, 0}, Case{4096, 2048, 2032, 3001, 16}, Case{64, 64, 16, 1, 0}, Case{44, 40, 36, 77, 4},
        Case{256, 512, 256, 70001, 32}}) {
    Numbers to(Element::f32, static_cast<int64_t>((first + rows * to_pitch) / 4)),
        from(Element::f32, static_cast<int64_t>((first + rows * from_pitch) / 4));
    from.draw(1);
    char *const there = static_cast<char*>(mine.to_gpu(to.data(), to.bytes.size())),
                *const here = static_cast<char*>(mine.to_gpu(from.data(), from.bytes.size()));
    EXPECT_EQ(
        memory.copy(nullptr, there + first, to_pitch, here + first, from_pitch, bytes, rows, mine.gpu->stream()), 0);
    Numbers found = to;
    ASSERT_TRUE(mine.gpu->download(found.data(), there, found.bytes.size()));
    for (uint64_t r = 0; r < rows; ++r)
      std::memcpy(to.bytes.data() + first + r * to_pitch, from.bytes.data() + first + r * from_pitch, bytes);
    EXPECT_EQ(to, found) << to_pitch << " " << from_pitch << " " << bytes << " " << rows;
  }
}

TEST(ContextParallelFaults, nccl_ends_the_wait_for_a_rank_that_does_not_come) {
  if (const std::string missing = test::missing_for(By::nccl); !missing.empty()) GTEST_SKIP() << missing;
  const CpCase c = case_of(problem(500), 2, FH_CP_RING, By::nccl);
  CpTensors t = test::inputs(c);
  test::GpuRanks ranks(2, By::nccl);
  test::on_all_ranks(2, [&](int64_t rank) {
    test::GpuRank mine(ranks, rank);
    const test::CpPlan plan = test::plan_of(c, FH_FORWARD, rank, "hopper");
    const size_t bytes = static_cast<size_t>(fh_cp_plan_workspace_bytes(plan.get()));
    void *const workspace = *mine.gpu->allocate(bytes), *const rows = *mine.gpu->allocate(t.q.bytes.size());
    fh_cp_tensors x = fh_cp_tensors_init();
    x.q = x.k = x.v = rows, x.o = *mine.gpu->allocate(t.q.bytes.size());
    fh_cp_memory memory;
    EXPECT_EQ(fh_cp_cuda_memory(&memory), FH_OK);
    fh_cp_transport transport = mine.connect(workspace, 2);
    if (rank == 0) {
      const auto began = std::chrono::steady_clock::now();
      EXPECT_EQ(fh_cp_plan_run(plan.get(), &transport, &memory, &x, workspace, bytes, mine.gpu->stream()),
                FH_LAUNCH_FAILED);
      EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(30));
      EXPECT_NE(std::string(fh_cp_last_error()).find("after 2 seconds"), std::string::npos) << fh_cp_last_error();
    }
    ranks.barrier.arrive_and_wait();
    fh_cp_nccl_transport_destroy(&transport);
  });
}

}  // namespace
}  // namespace froghopper
