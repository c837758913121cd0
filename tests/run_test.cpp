// SPDX-License-Identifier: Apache-2.0
// Claims about what the C interface calls: targets are read exactly, the same question gives the same plan,
// whatever asked in between, and a bad workspace is refused before anything is launched.
#include "src/api/run.hpp"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <vector>

namespace froghopper {
namespace {

Problem problem_of(const std::string& line) {
  auto p = Problem::parse(line);
  EXPECT_TRUE(p) << p.failure().text;
  return *p;
}

TEST(run, targets_are_read) {
  EXPECT_EQ(read_target(nullptr)->kind, Target::Kind::automatic);
  EXPECT_EQ(read_target("auto")->kind, Target::Kind::automatic);
  EXPECT_EQ(read_target("cpu")->kind, Target::Kind::cpu);
  EXPECT_EQ(read_target("hopper")->ordinal, -1);
  EXPECT_EQ(read_target("hopper:3")->ordinal, 3);
  EXPECT_EQ(read_target("hopper:3")->kind, Target::Kind::hopper);
  const auto named = read_target("h100 114sm");
  ASSERT_TRUE(named) << named.failure().text;
  EXPECT_EQ(named->kind, Target::Kind::named);
  EXPECT_EQ(named->device.sms, 114);
}

std::shared_ptr<const fh_plan> plan_of(const char* line, const char* target) {
  auto plan = cached_plan(problem_of(line).user_struct(), target, nullptr);
  EXPECT_TRUE(plan) << plan.failure().text;
  return plan ? *plan : nullptr;
}

TEST(run, an_explanation_says_when_items_are_fetched) {
  const auto words = [](const char* line, const char* target) {
    return explain(problem_of(line), *read_target(target)).text;
  };
  const char* const many_equal = "fwd bf16 b8 hq16 hkv16 sq2048 skv2048 d128";
  EXPECT_NE(words(many_equal, "h200").find("1408 work items, eager fetch;"), std::string::npos);
  EXPECT_NE(words(many_equal, "h200 deferred=4").find("deferred fetch after items of 4 kv tiles"), std::string::npos);
  EXPECT_NE(words("fwd bf16 b1 hq8 hkv8 sq4096 skv4096 d128 causal", "h100").find(" deferred fetch;"),
            std::string::npos);
  EXPECT_NE(words("fwd bf16 b1 hq32 hkv8 sq1 skv64 d128", "h200").find("one for each CTA, without a ticket;"),
            std::string::npos);
}

TEST(run, hints_with_wrong_values_are_named) {
  for (const auto& [target, hint] : {std::pair{"h200 tail=300%", "tail=300% must be a percentage from 0 to 99"},
                                     {"h200 packgqa=7", "packgqa=7 must be packgqa=0 or packgqa=1"},
                                     {"h200 tiles=128x64", "tiles=128x64 must be query rows, keys and stages"},
                                     {"cpu tiles=3", "tiles=3 must be query rows, keys and stages"}}) {
    const auto read = read_target(target);
    ASSERT_FALSE(read) << target;
    EXPECT_TRUE(read.failure().text.starts_with(text("target is \"{}\": the hint {}", target, hint)))
        << read.failure().text;
  }
}

TEST(run, unknown_targets_are_refused) {
  const fh_problem p = problem_of("fwd f32 b1 hq2 hkv1 sq5 skv5 d8").user_struct();
  fh_plan* plan = nullptr;
  for (const char* target : {"", "gpu", "cuda:0", "hopper:", "hopper:x", "hopper:-1", "CPU"}) {
    EXPECT_EQ(fh_plan_create(&p, target, &plan), FH_INVALID_PROBLEM) << target;
    EXPECT_NE(std::string(fh_last_error()).find("target is \"" + std::string(target) + "\""), std::string::npos)
        << fh_last_error();
  }
  for (const auto& [target, ours] : {std::pair{"gpu", "\"hopper\""},
                                     {"cuda", "\"hopper\""},
                                     {"cuda:1", "\"hopper:1\""},
                                     {"CPU", "\"cpu\""},
                                     {"CUDA:0 tail=30%", "\"hopper:0\""}}) {
    EXPECT_EQ(fh_plan_create(&p, target, &plan), FH_INVALID_PROBLEM) << target;
    EXPECT_NE(std::string(fh_last_error()).find(std::string("here that is ") + ours), std::string::npos)
        << fh_last_error();
  }
  for (const auto& [target, meant] : {std::pair{"h10", "h100"},
                                      {"hoper", "hopper"},
                                      {"hoper:1", "hopper:1"},
                                      {"cpus", "cpu"},
                                      {"atuo", "auto"},
                                      {"H200", "h200"}}) {
    EXPECT_EQ(fh_plan_create(&p, target, &plan), FH_INVALID_PROBLEM) << target;
    EXPECT_NE(std::string(fh_last_error()).find(text("did you mean \"{}\"?", meant)), std::string::npos)
        << fh_last_error();
  }
  const std::string the_cpu = "the CPU is \"cpu\" alone; max_sms bounds its threads. It must be \"auto\", ";
  for (const auto& [target, said] :
       {std::pair{"mine", std::string("or a GPU of your own")},
        {"b200", "no other, so beside b200 the problem runs on \"cpu\". It must be \"auto\", "},
        {"", "it is empty. It must be \"auto\", \"cpu\", \"hopper\", \"hopper:1\" or a GPU to plan for, \"h200\"."},
        {"cpu:0", the_cpu},
        {"cpu threads=4", the_cpu},
        {"mine sm=64", "\"h200\"; on a GPU with hints such as tiles=128x64s3"},
        {"sm_90a", "here that is \"hopper\"."},
        {"host", "here that is \"cpu\"."},
        {"rocm", "no other, so beside rocm the problem runs on \"cpu\"."},
        {"h200,tiles=128x64s3", "its words have blanks between, and no commas."},
        {"h200 tile=128x64s3",
         "\"tile=128x64s3\" is neither a hint nor a GPU's number. Did you mean one such as "
         "tiles=128x64s3?"},
        {"h200 packgqa", "Did you mean one such as packgqa=1?"},
        {"hopper num_splits=4", "Did you mean one such as parts=4?"},
        {"mine 64sms l2=40MiB clock=1500MHz memory=2000GB/s", "Did you mean one such as 64sm?"},
        {"mine 64sm l2=50 clock=1500MHz memory=2000GB/s", "Did you mean one such as l2=40MiB?"},
        {"mine 64sm", "beside its name \"mine\" needs four numbers, as in \"mine 64sm l2=40MiB"},
        {"hopper 64sm", "\"hopper\" is the GPU that is here, with the numbers that it has. Leave out 64sm, or name "},
        {"h200 parts=4 parts=5", "parts= is there twice. Leave one of them."}}) {
    EXPECT_EQ(fh_plan_create(&p, target, &plan), FH_INVALID_PROBLEM) << target;
    EXPECT_NE(std::string(fh_last_error()).find(said), std::string::npos) << fh_last_error();
  }
  for (const char* const target : {"mine", "a100", "h800", "gh200"}) {
    EXPECT_EQ(fh_plan_create(&p, target, &plan), FH_INVALID_PROBLEM) << target;
    EXPECT_EQ(std::string(fh_last_error()).find("did you mean"), std::string::npos) << fh_last_error();
  }
  EXPECT_EQ(fh_plan_create(&p, "mine 0sm", &plan), FH_INVALID_PROBLEM);
  EXPECT_NE(std::string(fh_last_error()).find("\"0sm\" must be one of a GPU's numbers, each 1 or more."),
            std::string::npos)
      << fh_last_error();
  EXPECT_EQ(plan, nullptr);
}

TEST(run, why_nothing_is_computed_is_said) {
  const std::pair<const char*, const char*> all[] = {
      {"fwd bf16 b0 hq2 hkv1 sq5 skv5 d64", "batch is 0"},
      {"fwd bf16 b2 hq2 hkv1 sq0 skv5 d64", "seq_q is 0"},
      {"fwd bf16 b2 hq2 hkv1 sq5 skv5 d64 varlen tq0 tkv9", "total_q is 0"},
      {"bwd bf16 b0 hq2 hkv1 sq5 skv5 d64", "batch is 0"},
      {"bwd bf16 b2 hq2 hkv1 sq0 skv0 d64", "seq_q and seq_kv are 0"},
      {"bwd bf16 b2 hq2 hkv1 sq5 skv5 d64 varlen tq0 tkv0", "total_q and total_kv are 0"},
      {"quantise bf16 kv=e4m3 b0 hq2 hkv1 sq5 skv5 d64", "batch is 0"},
      {"append bf16 b2 hq2 hkv1 sq0 skv5 d64", "seq_q is 0"},
  };
  for (const auto& [line, why] : all)
    for (const char* const target : {"cpu", "h200"}) {
      const std::string words = text("nothing to compute, as {}", why);
      const fh_problem p = problem_of(line).user_struct();
      EXPECT_NE(std::string(fh_explain(&p, target)).find(words), std::string::npos) << fh_explain(&p, target);
      EXPECT_NE(plan_of(line, target)->line.find(words), std::string::npos) << plan_of(line, target)->line;
    }
  for (const char* const line :
       {"fwd bf16 b2 hq2 hkv1 sq5 skv0 d64", "bwd bf16 b2 hq2 hkv1 sq0 skv5 d64",
        "bwd bf16 b0 hq2 hkv1 sq5 skv5 d64 sink", "fwd bf16 b2 hq2 hkv1 sq0 skv5 d64 maxlogit",
        "quantise bf16 kv=e4m3 b2 hq2 hkv1 sq5 skv5 d64 varlen tq0 tkv0",
        "quantise bf16 kv=e4m3 b2 hq2 hkv1 sq0 skv0 d64"})
    for (const char* const target : {"cpu", "h200"})
      EXPECT_EQ(plan_of(line, target)->line.find("nothing"), std::string::npos) << plan_of(line, target)->line;
}

TEST(run, hints_are_read_and_belong_to_a_gpu) {
  const auto hinted = read_target("hopper:1 tiles=128x64s3 deferred=4");
  ASSERT_TRUE(hinted) << hinted.failure().text;
  EXPECT_EQ(hinted->ordinal, 1);
  EXPECT_EQ(hinted->hints.line(), " tiles=128x64s3 deferred=4");
  EXPECT_EQ(read_target("h200 tail=30%")->hints.tail_percent, 30);
  for (const char* const target : {"cpu tiles=128x64s3", "hopper tiles=128", "hopper tail=100%", "hopper deferred=-1",
                                   "hopper section=0MiB", "hopper 1", "auto cpu", "tiles=128x64s3"}) {
    const auto refused = read_target(target);
    ASSERT_FALSE(refused) << target;
    EXPECT_EQ(refused.failure().status, FH_INVALID_PROBLEM);
    EXPECT_NE(refused.failure().text.find(target), std::string::npos) << refused.failure().text;
  }
  const Problem p = problem_of("fwd bf16 b1 hq8 hkv8 sq4096 skv4096 d128 causal");
  const auto plan = make_plan(p, *read_target("h200 tiles=128x64s3"));
  ASSERT_TRUE(plan) << plan.failure().text;
  EXPECT_NE(plan->line.find(".q128.kv64.s3."), std::string::npos) << plan->line;
  const auto too_large = make_plan(p, *read_target("h200 tiles=256x256s2"));
  ASSERT_FALSE(too_large);
  EXPECT_EQ(too_large.failure().status, FH_UNSUPPORTED);
  EXPECT_NE(too_large.failure().text.find("tiles=256x256s2 cannot be used"), std::string::npos)
      << too_large.failure().text;
}

TEST(run, auto_follows_the_tensors) {
  const Problem p = problem_of("fwd bf16 b1 hq1 hkv1 sq1 skv1 d64");
  int on_host = 0;
  fh_tensors tensors = fh_tensors_init();
  tensors.q.data = &on_host;
  for (const char* const target : {"auto", static_cast<const char*>(nullptr)}) {
    const auto plan = cached_plan(p.user_struct(), target, &tensors);
    ASSERT_TRUE(plan) << plan.failure().text;
    EXPECT_TRUE((*plan)->cpu()) << "host memory, so the CPU, also where there is a GPU";
    EXPECT_EQ((*plan)->why_cpu, "the tensors are in host memory.");
  }
  tensors.q.data = nullptr;  // without queries o says where
  tensors.o.data = &on_host;
  EXPECT_TRUE((*cached_plan(p.user_struct(), "auto", &tensors))->cpu());
}

TEST(run, explain_plans_once_and_has_the_status_of_its_plan) {
  const Problem f32 = problem_of("fwd f32 b1 hq1 hkv1 sq9 skv9 d64");
  EXPECT_EQ(explain(f32, *read_target("cpu")).status, FH_OK);
  EXPECT_EQ(explain(f32, *read_target("h200")).status, FH_UNSUPPORTED);
  EXPECT_NE(explain(f32, *read_target("h200")).text.find("dtype is f32"), std::string::npos);
}

TEST(run, the_same_question_has_the_same_plan) {
  const char* const line = "fwd f32 b1 hq2 hkv1 sq5 skv5 d64";
  const char* const other = "fwd f32 b1 hq2 hkv1 sq6 skv5 d64";
  const auto first = plan_of(line, "cpu"), second = plan_of(other, "cpu");
  EXPECT_NE(first, second);
  EXPECT_EQ(second->problem().seq_q, 6);
  EXPECT_EQ(plan_of(line, "cpu"), first);   // from the table
  EXPECT_EQ(plan_of(line, "cpu"), first);   // from this thread
  EXPECT_NE(plan_of(line, "auto"), first);  // another target
  EXPECT_EQ(plan_of(line, nullptr), plan_of(line, "auto"));
  const std::string copy = "cpu";  // the text counts, not its address
  EXPECT_EQ(plan_of(line, copy.c_str()), first);
}

TEST(run, the_cache_does_not_grow_without_end) {
  fh_problem p = problem_of("fwd f32 b1 hq2 hkv1 sq5 skv5 d64").user_struct();
  std::vector<std::weak_ptr<const fh_plan>> made;
  for (p.seq_q = 100; p.seq_q < 5100; ++p.seq_q) made.push_back(*cached_plan(p, "cpu", nullptr));
  int kept = 0;
  for (const auto& plan : made) kept += plan.expired() ? 0 : 1;
  EXPECT_LE(kept, 4096);
  EXPECT_EQ((*cached_plan(p, "cpu", nullptr))->problem().seq_q, 5100);
}

// Host memory in the place of a GPU's: the workspace is looked at first.
TEST(run, a_bad_workspace_is_refused) {
  const Problem p = problem_of("fwd bf16 b1 hq1 hkv1 sq1 skv1 d64");
  auto plan = make_plan(p, *read_target("h200 132sm"));
  ASSERT_TRUE(plan) << plan.failure().text;
  plan->runs_here = true;
  ASSERT_EQ(plan->workspace_bytes(), 8u);

  alignas(16) std::array<std::array<uint16_t, 64>, 4> rows{};
  fh_tensors t = fh_tensors_init();
  t.q.data = &rows[0], t.k.data = &rows[1], t.v.data = &rows[2], t.o.data = &rows[3];
  alignas(256) char workspace[512];

  const auto refusal = [&](void* address, size_t bytes) {
    const auto result = run(*plan, t, address, bytes, nullptr);
    EXPECT_FALSE(result);
    EXPECT_EQ(result.failure().status, FH_INVALID_TENSOR);
    return result.failure().text;
  };
  EXPECT_EQ(refusal(nullptr, 8),
            "workspace is NULL; this plan needs 8 bytes (fh_plan_workspace_bytes). Give it GPU memory.");
  EXPECT_EQ(refusal(workspace, 7),
            "workspace_bytes is 7; this plan needs 8 (fh_plan_workspace_bytes). Give it more.");
  EXPECT_NE(refusal(workspace + 128, 8).find("workspace must be at a multiple of 256 bytes, as memory "),
            std::string::npos);
}

// Not a benchmark, which other programs would disturb: the best of many tries, with room for a slow machine.
TEST(run, a_plan_asked_for_again_and_again_stays) {
  fh_problem often = problem_of("fwd f16 b1 hq2 hkv2 sq7 skv7 d64").user_struct(), once = often;
  const auto kept = *cached_plan(often, "cpu", nullptr);
  for (once.seq_q = 8; once.seq_q < 10000; ++once.seq_q) {
    ASSERT_TRUE(cached_plan(once, "cpu", nullptr));
    if (once.seq_q % 1000 != 0) continue;
    ASSERT_EQ(*cached_plan(often, "cpu", nullptr), kept) << once.seq_q;
  }
}

TEST(run, a_cached_plan_is_found_quickly) {
  const fh_problem p = problem_of("fwd f32 b1 hq2 hkv1 sq5 skv5 d64").user_struct();
  double best_ns = 1e9;
  for (int tries = 0; tries < 50; ++tries) {
    constexpr int calls = 200;
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) ASSERT_TRUE(cached_plan(p, "cpu", nullptr));
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    best_ns = std::min(best_ns, took.count() / calls);
  }
  RecordProperty("nanoseconds", std::to_string(best_ns));
  EXPECT_LT(best_ns, 1000);
}

}  // namespace
}  // namespace froghopper
