// SPDX-License-Identifier: Apache-2.0
// Plans are values, so they are tested as text: people read tests/golden/plans.txt in every change of the planner.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "src/base/text.hpp"
#include "src/plan/plan.hpp"

namespace froghopper {
namespace {

// path: from the project's folder, wherever the test runs.
std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream in(FROGHOPPER_SOURCE_DIR "/" + path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);)
    if (!line.empty() && line[0] != '#') lines.push_back(line);
  EXPECT_FALSE(lines.empty()) << path << " is not there";
  return lines;
}

std::string planned(const std::string& device_line, const std::string& problem_line) {
  auto device = Device::parse(device_line);
  if (!device) return device.failure().text;
  auto problem = Problem::parse(problem_line);
  if (!problem) return problem.failure().text;
  auto plan = plan_forward(*problem, *device);
  return plan ? plan->line() : text("{} -> refused: {}", problem->line(), plan.failure().text);
}

TEST(Plan, IsWhatTheGoldenFileSays) {
  const auto lines = lines_of("tests/golden/plans.txt");
  ASSERT_GT(lines.size(), 20u);
  for (const std::string& line : lines) {
    const size_t bar = line.find(" | "), arrow = line.find(" -> ");
    ASSERT_TRUE(bar != std::string::npos && arrow != std::string::npos) << line;
    const std::string device = line.substr(0, bar), problem = line.substr(bar + 3, arrow - bar - 3);
    EXPECT_EQ(device + " | " + planned(device, problem), line);
  }
}

std::vector<Problem> problems_of_every_kind() {
  std::vector<Problem> all;
  for (Dtype dtype : {Dtype::bf16, Dtype::f16})
    for (int64_t dim_qk = 8; dim_qk <= 256; dim_qk += 8)
      for (int64_t dim_v : {dim_qk, int64_t{8}, int64_t{128}, int64_t{256}})
        for (auto [left, right] : {std::pair{all_keys, all_keys},
                                   {all_keys, int64_t{0}},
                                   {int64_t{128}, int64_t{0}},
                                   {int64_t{9000}, all_keys}})
          for (auto [varlen, seq_kv] : {std::pair{false, int64_t{900}},
                                        {true, int64_t{900}},
                                        {false, int64_t{4000}},
                                        {true, int64_t{20000}}}) {
            Problem p;
            p.dtype = dtype;
            p.batch = 3, p.heads_q = 4, p.heads_kv = 2, p.seq_q = 700, p.seq_kv = seq_kv;
            p.dim_qk = dim_qk, p.dim_v = dim_v;
            p.window_left = left, p.window_right = right;
            p.varlen = varlen, p.total_q = varlen ? 1500 : 0, p.total_kv = varlen ? 30000 : 0;
            p.scale = default_scale(dim_qk);
            all.push_back(p);
          }
  return all;
}

// So that nobody waits for a compiler, or needs one, without softcap.
TEST(Plan, OfEveryProblemWithoutSoftcapIsAPreset) {
  const auto presets = lines_of("presets/fwd.txt");
  for (const Problem& p : problems_of_every_kind()) {
    auto plan = plan_forward(p, Device{});
    ASSERT_TRUE(plan) << p.line() << ": " << plan.failure().text;
    EXPECT_NE(std::find(presets.begin(), presets.end(), variant_name(plan->variant)), presets.end()) << plan->line();
  }
}

TEST(Plan, CoversTheHeadDims) {
  for (const Problem& p : problems_of_every_kind()) {
    auto plan = plan_forward(p, Device{});
    ASSERT_TRUE(plan);
    EXPECT_GE(plan->variant.dim_qk, p.dim_qk);
    EXPECT_GE(plan->variant.dim_v, p.dim_v);
    EXPECT_LE(plan->smem_bytes, smem_bytes_per_cta);
  }
}

TEST(Plan, PresetNamesReadBackAsTheirVariants) {
  for (const std::string& name : lines_of("presets/fwd.txt")) {
    auto variant = parse_variant(name);
    ASSERT_TRUE(variant) << variant.failure().text;
    EXPECT_EQ(variant_name(*variant), name);
    EXPECT_EQ(why_invalid(*variant), nullptr) << name;
  }
  EXPECT_FALSE(parse_variant("fwd.bf16.d128"));
  EXPECT_FALSE(parse_variant("fwd.bf16.d128.q128.kv128.s2.causal.causal"));
  EXPECT_FALSE(parse_variant("bwd.bf16.d128.q128.kv128.s2"));
  EXPECT_FALSE(parse_variant("fwd.bf16.d128.q128.kv128x.s2"));
  EXPECT_FALSE(parse_variant(""));
}

TEST(Plan, DeviceLinesReadBack) {
  for (const char* line : {"h200 132sm l2=60MiB", "h100 114sm l2=32MiB tiles=128x176s2"}) {
    auto device = Device::parse(line);
    ASSERT_TRUE(device) << device.failure().text;
    EXPECT_EQ(device->line(), line);
  }
  for (const char* line : {"h200", "", "h200 0sm", "h200 132", "h200 132sm tiles=128", "h200 132sm colour=red"})
    EXPECT_FALSE(Device::parse(line)) << line;
}

// What the order's functions take (contract/order.h); tests/order_test.cpp holds that they visit every item once then.
TEST(Plan, OrderIsOneThatVisitsEveryItemOnce) {
  for (int64_t seq : {1, 500, 1024, 2000, 4096, 20000})
    for (int64_t batch : {1, 3, 40}) {
      Problem p;
      p.batch = batch, p.heads_q = 6, p.heads_kv = 2, p.seq_q = seq, p.seq_kv = seq, p.window_right = 0;
      auto plan = plan_forward(p, Device{});
      ASSERT_TRUE(plan);
      const Order& order = plan->order;
      EXPECT_EQ(order.items, order.pairs * order.q_tiles) << plan->line();
      EXPECT_TRUE(order.tail >= 0 && order.tail < order.q_tiles) << plan->line();
      EXPECT_TRUE(order.section >= 1 && order.section <= order.pairs) << plan->line();
    }
}

}  // namespace
}  // namespace froghopper
