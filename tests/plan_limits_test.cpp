// SPDX-License-Identifier: Apache-2.0
// Claims: a GPU of absurd numbers is refused in words; the largest problems and GPUs are planned, timed and printed in
// little time and memory, without a number that overflows (as a build with -fsanitize=undefined shows).
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <random>

#include "src/base/text.hpp"
#include "src/plan/time.hpp"

namespace froghopper {
namespace {

TEST(PlanLimits, RefuseWhatNoGpuHas) {
  const struct {
    const char *most, *more, *message;
  } all[] = {{"4096sm", "1073741824sm", "1073741824 SMs are more than any GPU has; plans are made for up to 4096."},
             {"4096sm", "4097sm", "4097 SMs are more"},
             {"l2=1048576MiB", "l2=2147483647MiB", "2147483647 MiB of L2 are more"},
             {"clock=100000MHz", "clock=2147483647MHz", "2147483647 MHz are more"},
             {"memory=1000000GB/s", "memory=2147483647GB/s", "2147483647 GB/s are more"}};
  for (const auto& [most, more, message] : all) {
    EXPECT_TRUE(Device::parse({"h200", most})) << most;
    const auto device = Device::parse({"h200", more});
    ASSERT_FALSE(device) << more;
    EXPECT_EQ(device.failure().text.find(message), 0u) << device.failure().text;
  }
}

int64_t most_kib() {
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

// Of as many tiles as an item's number can count.
TEST(PlanLimits, TakeLittleMemoryForTheLargestProblems) {
  const Device h200 = known_device("h200");
  Hints parts;
  ASSERT_TRUE(parts.read("parts=7"));
  const int64_t before = most_kib();
  for (const char* const line : {"fwd bf16 b1 hq1 hkv1 sq536870911 skv536870911 d64 causal",
                                 "fwd bf16 b1 hq64 hkv8 sq536870911 skv536870911 d128 window1000,0",
                                 "bwd bf16 b1 hq1 hkv1 sq536870911 skv536870911 d64 causal"}) {
    const auto p = Problem::parse(line);
    ASSERT_TRUE(p) << p.failure().text;
    for (const Hints& hints : {Hints{}, parts}) {
      const auto plan = make_gpu_plan(*p, h200, hints);
      if (plan) { EXPECT_TRUE(estimate(*plan, h200)) << plan->line(); }
    }
  }
  EXPECT_LT(most_kib() - before, 64 << 10);
}

TEST(PlanLimits, HoldForAnySizes) {
  std::mt19937_64 random(7);
  const auto one_of = [&](const auto& all) { return all[random() % std::size(all)]; };
  const auto size = [&] {  // of any magnitude
    const int64_t below = int64_t{1} << random() % 62;
    return static_cast<int64_t>(random() % static_cast<uint64_t>(below)) + (random() % 2 == 0 ? 0 : below);
  };
  const std::array devices = {known_device("h200"),
                              *Device::parse({"mine", "4096sm", "l2=1048576MiB", "clock=1MHz", "memory=1GB/s"}),
                              *Device::parse({"mine", "1sm", "l2=1MiB", "clock=100000MHz", "memory=1000000GB/s"})};
  const char* const hints[] = {"",
                               "",
                               "parts=1024",
                               "packgqa=1",
                               "section=1048576MiB",
                               "tail=99%",
                               "dequantised=1",
                               "deferred=2147483647",
                               "section=1MiB"};
  int planned = 0, timed = 0;
  for (int round = 0; round < 10'000; ++round) {
    fh_problem user = fh_problem_init();
    user.op = one_of(std::array{FH_FORWARD, FH_FORWARD, FH_BACKWARD, FH_QUANTISE});
    user.dtype = one_of(std::array{FH_BF16, FH_F16, FH_E4M3});
    if (user.op == FH_QUANTISE || random() % 8 == 0) user.dtype_kv = FH_E4M3;
    const bool small = random() % 2 == 0;  // often enough that some are planned
    user.batch = small ? static_cast<int64_t>(random() % 5) : size();
    user.heads_kv = 1 + (small ? static_cast<int64_t>(random() % 9) : size());
    const int64_t group = 1 + static_cast<int64_t>(random() % 70);
    if (__builtin_mul_overflow(user.heads_kv, group, &user.heads_q)) continue;
    user.seq_q = size(), user.seq_kv = size();
    user.dim_qk = one_of(std::array{64, 128, 192, 256, 512}), user.dim_v = one_of(std::array{0, 64, 128});
    if (random() % 4 == 0) user.varlen = 1, user.total_q = size(), user.total_kv = size();
    user.seqused = random() % 4 == 0;
    user.causal = random() % 2 == 0;
    if (random() % 4 == 0) user.window_left = size();
    if (random() % 8 == 0) user.attention_chunk = size();
    user.deterministic = random() % 2 == 0, user.smooth = user.dtype_kv == FH_E4M3 && random() % 2 == 0;
    user.alibi = random() % 8 == 0, user.max_logit = user.op == FH_FORWARD && random() % 8 == 0;
    if (random() % 4 == 0) user.max_sms = size();
    if (user.op == FH_QUANTISE) {
      user.causal = 0, user.window_left = FH_ALL, user.attention_chunk = 0, user.alibi = 0;
      user.scale_rows = one_of(std::array{0, 128});
    }
    const auto p = Problem::from(user);
    if (!p) continue;
    Hints hint;
    if (const std::string word = one_of(hints); !word.empty()) hint.read(word);
    const Device& device = one_of(devices);
    const auto plan = make_gpu_plan(*p, device, hint);
    if (!plan) continue;
    ++planned;
    for (const Launch& launch : plan->launches) ASSERT_GE(launch.grid, 1) << plan->line();
    EXPECT_FALSE(plan->line().empty());
    if (const auto time = estimate(*plan, device)) {
      ++timed;
      ASSERT_GE(time->us, 0) << plan->line();
    }
  }
  EXPECT_GT(planned, 300);
  EXPECT_GT(timed, 100);
}

}  // namespace
}  // namespace froghopper
