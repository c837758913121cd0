// SPDX-License-Identifier: Apache-2.0
// The argument of the backward kernel, as far as it can be made without a driver.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/plan/plan.hpp"
#include "src/runtime/params/params.hpp"
#include "tests/support/planned.hpp"

namespace froghopper::runtime {
namespace {

using test::planned;

TEST(bwd_params, say_what_the_problem_says) {
  const Plan plan = planned("bwd f16 b2 hq8 hkv2 sq100 skv200 d64 window64,3 topleft scale0.5 det acc");
  std::vector<char> workspace(plan.workspace.bytes);
  Views views;
  views.grad_k = {.element = Element::f32, .dim = 64, .stride_batch = 1000, .stride_seq = 100, .stride_head = 10};
  const auto& step = std::get<BackwardStep>(plan.launches.at(1).step);
  const BwdParams params = plain_params({plan, views, workspace.data(), 7}, step);
  EXPECT_EQ(params.heads_kv, 2);
  EXPECT_EQ(params.heads_per_kv, 4);
  EXPECT_EQ(params.sequences, 2);
  EXPECT_EQ(params.seq_q, 100);
  EXPECT_EQ(params.seq_kv, 200);
  EXPECT_EQ(params.q_tiles.heads_q, 8);
  EXPECT_EQ(params.q_tiles.tiles_of_sequence, 1);  // of 128 rows
  EXPECT_EQ(params.q_tiles.tiles, 2);
  EXPECT_EQ(params.mask.left, 64);
  EXPECT_EQ(params.mask.right, 3);
  EXPECT_EQ(params.mask.top_left, 1);
  EXPECT_EQ(params.grad_k.to.batch, 4000);
  EXPECT_EQ(params.grad_k.to.row, 400);
  EXPECT_EQ(params.grad_k.dim, 64);
  EXPECT_EQ(params.grad_k.add, 1);
  EXPECT_FLOAT_EQ(params.scale, 0.5f);
  EXPECT_FLOAT_EQ(params.scale_log2, 0.5f * 1.44269504f);
  EXPECT_EQ(params.queue.tag, 7u);
  const auto at = [&](const Slice& slice) { return static_cast<void*>(workspace.data() + slice.offset); };
  EXPECT_EQ(static_cast<void*>(params.queue.counter), at(plan.workspace.tickets));
  EXPECT_EQ(static_cast<void*>(params.dq_sum), at(plan.workspace.grad_q));
  EXPECT_EQ(static_cast<void*>(params.dq_semaphore), at(plan.workspace.dq_semaphores));
}

TEST(bwd_params, count_who_adds_where_they_add_in_order) {
  const Plan few_keys = planned("bwd bf16 b64 hq8 hkv8 sq256 skv256 d64"),
             many = planned("bwd bf16 b1 hq8 hkv8 sq4096 skv4096 d64");
  for (const Plan* plan : {&few_keys, &many}) {
    std::vector<char> workspace(plan->workspace.bytes);
    const auto& step = std::get<BackwardStep>(plan->launches.at(1).step);
    const BwdParams params = plain_params({*plan, {}, workspace.data(), 7}, step);
    EXPECT_EQ(params.zero, 0);
    EXPECT_EQ(step.variant.deterministic, plan == &few_keys);
    if (plan == &few_keys)
      EXPECT_EQ(static_cast<void*>(params.dq_semaphore),
                static_cast<void*>(workspace.data() + plan->workspace.dq_semaphores.offset));
    else
      EXPECT_EQ(params.dq_semaphore, nullptr);
  }
}

TEST(bwd_params, say_which_chunks_and_slopes) {
  const Plan plan = planned("bwd bf16 b2 hq8 hkv2 sq100 skv200 d64 chunk=70 alibi");
  std::vector<char> workspace(plan.workspace.bytes);
  std::vector<float> slopes(16);
  Views views;
  views.alibi_slopes = {.data = slopes.data(), .element = Element::f32, .stride_batch = 8, .stride_head = 1};
  const auto& step = std::get<BackwardStep>(plan.launches.at(1).step);
  EXPECT_EQ(step.variant.mask, Mask::chunk);
  EXPECT_TRUE(step.variant.score_mods.alibi);
  const BwdParams params = plain_params({plan, views, workspace.data(), 7}, step);
  EXPECT_EQ(params.chunk, 70);
  EXPECT_EQ(params.slopes.data, slopes.data());
  EXPECT_EQ(params.slopes.batch, 8);
  EXPECT_EQ(params.slopes.head, 1);
}

// A replayed CUDA graph has one tag: what a run has said of large rows may not be left for the next.
TEST(bwd_params, let_the_last_launch_clear_what_was_said_of_large_rows) {
  const Plan plan = planned("bwd bf16 b2 hq8 hkv2 sq100 skv200 d64");
  std::vector<char> workspace(plan.workspace.bytes);
  const runtime::Run run{plan, {}, workspace.data(), 7};
  const auto& step = std::get<GradQStep>(plan.launches.back().step);
  const auto made = make_params(Driver{}, run, step);
  ASSERT_TRUE(made) << made.failure().text;
  const auto& params = std::get<GradQParams>(*made);
  EXPECT_EQ(static_cast<void*>(params.large), workspace.data() + plan.workspace.large_rows.offset);
  EXPECT_EQ(params.large, plain_params(run, std::get<BackwardStep>(plan.launches.at(1).step)).large);
}

// It fetches tickets before it waits. The delta kernel waits for the run before; without one it may not begin early.
TEST(bwd_params, let_the_backward_kernel_begin_early_only_behind_another) {
  const Plan plan = planned("bwd bf16 b2 hq8 hkv2 sq0 skv200 d64");
  EXPECT_TRUE(std::holds_alternative<BackwardStep>(plan.launches.at(0).step));
  EXPECT_FALSE(plan.launches.at(0).overlaps);
}

// The first launch writes what the second reads as grad_o, and the second reads that before it waits for the first.
TEST(bwd_params, have_a_gated_grad_o_between_two_launches_that_do_not_overlap) {
  const std::string line = "bwd bf16 b2 hq8 hkv2 sq100 skv200 d64 dv128 causal topleft";
  EXPECT_TRUE(planned(line.c_str()).launches.at(1).overlaps);
  const Plan plan = planned((line + " gate").c_str());
  EXPECT_FALSE(plan.launches.at(1).overlaps);
  EXPECT_TRUE(plan.launches.at(0).overlaps && plan.launches.at(2).overlaps);
  EXPECT_EQ(plan.workspace.gated_grad_o.bytes, 2u * 100 * 8 * 128 * 2);
  const auto& step = std::get<DeltaStep>(plan.launches.at(0).step);
  EXPECT_TRUE(step.variant.gated);
  alignas(16) static char memory[64];
  std::vector<char> workspace(plan.workspace.bytes);
  const View rows = {memory, Element::bf16, 2, 100, 8, 128, 100 * 8 * 128, 8 * 128, 128};
  Views views;
  views.o = views.grad_o = views.gate = views.grad_gate = rows;
  views.gate.stride_seq = 9 * 128, views.gate.stride_batch = 100 * 9 * 128;
  const auto made = make_params(Driver{}, {plan, views, workspace.data(), 7}, step);
  ASSERT_TRUE(made) << made.failure().text;
  const auto& params = std::get<DeltaParams>(*made);
  EXPECT_EQ(params.gate.row, 9 * 128 * 2);
  EXPECT_EQ(params.grad_gate.row, 8 * 128 * 2);
  EXPECT_EQ(params.gated_grad_o.data, workspace.data() + plan.workspace.gated_grad_o.offset);
  EXPECT_EQ(params.gated_grad_o.row, 8 * 128 * 2);
  EXPECT_EQ(params.gated_grad_o.batch, 100 * 8 * 128 * 2);
  EXPECT_EQ(params.mask.right, 0);
  EXPECT_EQ(params.mask.top_left, 1);
  EXPECT_EQ(params.seq_kv, 200);
  EXPECT_EQ(params.chunk, 0);
}

}  // namespace
}  // namespace froghopper::runtime
