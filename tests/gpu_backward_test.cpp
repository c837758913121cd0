// SPDX-License-Identifier: Apache-2.0
// tests: several launches on a GPU beyond the numbers: what is deterministic stays so while something else keeps the
// GPU busy, a captured graph follows lengths that change in the GPU's memory, and a call waits for the one before it.
#include <gtest/gtest.h>

#include "check/backends.hpp"
#include "check/compare.hpp"
#include "check/gpu/session.hpp"
#include "tests/support/case_of.hpp"

namespace froghopper::check {
namespace {

using test::case_of;

// A case with its inputs and its plan on a GPU.
class OnGpu {
 public:
  OnGpu(GpuSession& gpu, const std::string& line) : gpu_(gpu), c(case_of(line)), inputs(make_inputs(c, 1)) {
    auto made = create_plan(c.problem, "hopper");
    if (!made) {
      missing = made.failure().text;
      return;
    }
    plan_ = std::move(*made);
    const auto copies = upload(gpu, *inputs);
    EXPECT_TRUE(copies) << copies.failure().text;
    begins_ = copies->begins;
    tensors_ = copies->tensors;
    workspace_bytes_ = fh_plan_workspace_bytes(plan_.get());
    const auto memory = gpu.allocate(workspace_bytes_ + 1);
    EXPECT_TRUE(memory) << memory.failure().text;
    workspace_ = *memory;
  }

  Result<void> run() {
    if (fh_plan_run(plan_.get(), &tensors_, workspace_, workspace_bytes_, gpu_.stream()) == FH_OK) return {};
    return last_failure(FH_LAUNCH_FAILED);
  }

  // What the next call reads there is what this one writes here, and the other way round.
  void exchange(fh_tensor fh_tensors::*one, fh_tensor fh_tensors::*other) {
    std::swap(tensors_.*one, tensors_.*other);
  }

  // Puts other inputs of the same problem in the place of these.
  void replace(const Inputs& others) {
    for (size_t i = 0; i < begins_.size(); ++i) {
      const Inputs::Block& block = others.blocks[i];
      ASSERT_EQ(block.size(), inputs->blocks[i].size());
      if (!block.empty()) { ASSERT_TRUE(gpu_.upload(begins_[i], block.data(), block.size())); }
    }
  }
  void download(Inputs& into) {
    for (size_t i = 0; i < begins_.size(); ++i) {
      Inputs::Block& block = into.blocks[i];
      if (!block.empty()) { ASSERT_TRUE(gpu_.download(block.data(), begins_[i], block.size())); }
    }
  }

 private:
  GpuSession& gpu_;
  PlanHandle plan_{nullptr, &fh_plan_destroy};
  std::vector<void*> begins_;
  fh_tensors tensors_ = fh_tensors_init();
  void* workspace_ = nullptr;
  size_t workspace_bytes_ = 0;

 public:
  Case c;
  std::unique_ptr<Inputs> inputs;
  std::string missing;  // why there is no plan
};

class GpuGradients : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = GpuSession::open(), second = GpuSession::open();
    if (!opened) GTEST_SKIP() << opened.failure().text;
    gpu = std::move(*opened);
    other = std::move(*second);
  }

  // A thousand runs have the bits of the first one.
  void repeat(const char* line) {
    OnGpu here(*gpu, line), busy(*other, "fwd bf16 b1 hq4 hkv4 sq2000 skv2000 d128 : rows=sample");
    if (!here.missing.empty() || !busy.missing.empty()) GTEST_SKIP() << here.missing << busy.missing;
    Inputs first = *here.inputs, again = *here.inputs;
    ASSERT_TRUE(here.run());
    ASSERT_TRUE(gpu->finish());
    here.download(first);
    for (int i = 0; i < 1000; ++i) {
      here.replace(*here.inputs);
      ASSERT_TRUE(busy.run());
      ASSERT_TRUE(here.run());
      ASSERT_TRUE(gpu->finish());
      here.download(again);
      for (size_t t = 0; t < tensors().size(); ++t)
        ASSERT_TRUE(again.blocks[t] == first.blocks[t]) << line << ": " << tensors()[t].name << ", run " << i;
    }
    ASSERT_TRUE(other->finish());
  }

  std::unique_ptr<GpuSession> gpu, other;
};

// R26, and R25: a launch that begins before the one that prepares its inputs has ended would now and then read others.
TEST_F(GpuGradients, are_the_same_a_thousand_times_beside_another_job) {
  for (const char* const line : {"bwd bf16 b2 hq8 hkv2 sq300 skv500 d128 causal det",
                                 "bwd f16 b2 hq4 hkv1 sq300 skv500 d64 window90,20 det sink",
                                 "bwd bf16 b4 hq4 hkv2 sq200 skv300 d64 varlen tq500 tkv900 causal det acc",
                                 "bwd bf16 b1 hq4 hkv4 sq300 skv300 d256 det",
                                 "bwd bf16 b19 hq7 hkv7 sq385 skv385 d128 causal det"})  // lightest kv tile first
    repeat(line);
}

// Parts of rows that a second kernel combines; sums of columns that a second one divides.
using GpuParts = GpuGradients;
TEST_F(GpuParts, give_the_same_bits_a_thousand_times_beside_another_job) {
  for (const char* const line :
       {"fwd bf16 b1 hq8 hkv2 sq1 skv5000 d128 sink", "fwd bf16 b1 hq2 hkv2 sq200 skv9000 d128",
        "fwd f16 b3 hq8 hkv1 sq3 skv4000 d64 varlen tq7 tkv6000 causal",
        "fwd bf16 kv=e4m3 b2 hq8 hkv2 sq2 skv3000 d128 scales128 smooth",
        "quantise bf16 kv=e4m3 b2 hq2 hkv2 sq100 skv1500 d64 rotate smooth"})
    repeat(line);
}

// A kernel sets up while the one before it ends. Each call reads what the one before wrote, and writes over what that
// one read: the bits are those of calls that wait for each other on the host.
using GpuChains = GpuGradients;
TEST_F(GpuChains, of_calls_wait_for_each_other) {
  for (const std::string line :
       {"fwd bf16 b2 hq8 hkv2 sq1500 skv1500 d128 causal", "fwd bf16 b2 hq8 hkv8 sq1100 skv900 d64",
        "fwd f16 b1 hq4 hkv4 sq900 skv900 d256 window200,0", "fwd bf16 b1 hq8 hkv2 sq1 skv5000 d128 sink",
        "fwd bf16 b4 hq4 hkv2 sq500 skv700 d128 varlen tq1200 tkv1500 causal",
        "fwd bf16 b1 hq4 hkv4 sq700 skv700 d128 maxlogit", "fwd f16 kv=e4m3 b2 hq8 hkv2 sq300 skv3000 d128 scales128",
        "bwd bf16 b2 hq8 hkv2 sq500 skv500 d128 causal det", "bwd bf16 b1 hq4 hkv4 sq300 skv300 d256 det"}) {
    OnGpu here(*gpu, line);
    if (!here.missing.empty()) GTEST_SKIP() << here.missing;
    const bool backward = here.c.problem.backward();
    const auto chain = [&](bool waits) {
      Inputs result = *here.inputs;
      here.replace(*here.inputs);
      for (int i = 0; i < 8; ++i) {
        EXPECT_TRUE(here.run()) << line;
        if (waits) { EXPECT_TRUE(gpu->finish()); }
        here.exchange(backward ? &fh_tensors::grad_o : &fh_tensors::q,
                      backward ? &fh_tensors::grad_q : &fh_tensors::o);
      }
      EXPECT_TRUE(gpu->finish());
      here.download(result);
      return result.blocks;
    };
    const auto waited = chain(true);
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(chain(false) == waited) << line << ", chain " << i;
  }
}

// R29: a graph is captured while sequences are short, and replayed when they are longer.
TEST_F(GpuGradients, follow_lengths_that_change_after_a_graph_was_captured) {
  for (const std::string problem : {"fwd bf16 b4 hq4 hkv2 sq500 skv700 d128 varlen tq1200 tkv1500 causal",
                                    "bwd bf16 b4 hq4 hkv2 sq500 skv700 d128 varlen tq1200 tkv1500 causal",
                                    "bwd f16 b4 hq4 hkv2 sq500 skv700 d64 varlen tq1200 tkv1500 det"}) {
    OnGpu here(*gpu, problem + " : lens_q=1,0,64,30 lens_kv=5,9,0,64");
    if (!here.missing.empty()) GTEST_SKIP() << here.missing;
    const auto replay = gpu->capture([&] { return here.run(); });
    ASSERT_TRUE(replay) << replay.failure().text;
    ASSERT_TRUE((*replay)());
    ASSERT_TRUE(gpu->finish());

    const Case longer = case_of(problem + " : lens_q=500,300,0,400 lens_kv=100,700,300,400");
    const auto in = make_inputs(longer, 1);
    const auto views = bind(longer.problem, in->tensors);
    ASSERT_TRUE(views);
    const Before before(longer.problem, *in);
    const Reference reference = make_reference(longer, before.views(*in, *views));
    here.replace(*in);
    ASSERT_TRUE((*replay)());
    ASSERT_TRUE(gpu->finish());
    here.download(*in);
    Outcome out;
    judge(longer.problem, reference, *views, *in, before, out);
    EXPECT_TRUE(out.passed) << problem << "\n" << out.why;
  }
}

}  // namespace
}  // namespace froghopper::check
