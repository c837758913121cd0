// SPDX-License-Identifier: Apache-2.0
// The argument of the backward kernel, as far as it can be made without a driver.
#include <gtest/gtest.h>

#include <vector>

#include "src/plan/plan.hpp"
#include "src/runtime/params/params.hpp"

namespace froghopper::runtime {
namespace {

Plan plan_of(const char* line) {
  const auto problem = Problem::parse(line);
  EXPECT_TRUE(problem);
  auto plan = make_gpu_plan(*problem, known_device("h200"));
  EXPECT_TRUE(plan) << plan.failure().text;
  return *plan;
}

TEST(bwd_params, say_what_the_problem_says) {
  const Plan plan = plan_of("bwd f16 b2 hq8 hkv2 sq100 skv200 d64 window64,3 topleft scale0.5 det acc");
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
  EXPECT_EQ(params.place.heads_q, 8);
  EXPECT_EQ(params.place.q_tiles, 1);  // of 128 rows
  EXPECT_EQ(params.place.tiles, 2);
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
  const Plan few_keys = plan_of("bwd bf16 b64 hq8 hkv8 sq256 skv256 d64"),
             many = plan_of("bwd bf16 b1 hq8 hkv8 sq4096 skv4096 d64");
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
  const Plan plan = plan_of("bwd bf16 b2 hq8 hkv2 sq100 skv200 d64 chunk=70 alibi");
  std::vector<char> workspace(plan.workspace.bytes);
  std::vector<float> slopes(16);
  Views views;
  views.alibi_slopes = {.data = slopes.data(), .element = Element::f32, .stride_batch = 8, .stride_head = 1};
  const auto& step = std::get<BackwardStep>(plan.launches.at(1).step);
  EXPECT_EQ(step.variant.mask, Mask::chunk);
  EXPECT_TRUE(step.variant.alibi);
  const BwdParams params = plain_params({plan, views, workspace.data(), 7}, step);
  EXPECT_EQ(params.chunk, 70);
  EXPECT_EQ(params.slopes.data, slopes.data());
  EXPECT_EQ(params.slopes.batch, 8);
  EXPECT_EQ(params.slopes.head, 1);
}

}  // namespace
}  // namespace froghopper::runtime
