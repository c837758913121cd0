// SPDX-License-Identifier: Apache-2.0
// Claim: the planner finds a kernel for every problem, and one that is compiled ahead of time for those that presets/
// promises, so that with presets their users wait for no compiler.
#include <gtest/gtest.h>

#include <algorithm>
#include <variant>

#include "src/base/text.hpp"
#include "src/plan/plan.hpp"
#include "tests/support/preset_lists.hpp"

namespace froghopper {
namespace {

using test::lines_of;

const Device h200 = known_device("h200");

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
            p.dtype = p.dtype_kv = p.dtype_o = dtype;
            p.batch = 3, p.heads_q = 4, p.heads_kv = 2, p.seq_q = 700, p.seq_kv = seq_kv;
            p.dim_qk = dim_qk, p.dim_v = dim_v;
            p.window_left = left, p.window_right = right;
            p.varlen = varlen, p.total_q = varlen ? 1500 : 0, p.total_kv = varlen ? 30000 : 0;
            p.scale = default_scale(dim_qk);
            all.push_back(p);
          }
  return all;
}

// So that without softcap no user waits for a compiler, or needs one.
TEST(Presets, AreThereForEveryProblemWithoutSoftcap) {
  auto presets = lines_of("presets/fwd.txt");
  for (const std::string& name : lines_of("presets/combine.txt")) presets.push_back(name);
  for (Problem p : problems_of_every_kind())
    for (const int64_t seq_q : {700, 1, 5}) {
      p.seq_q = seq_q;
      auto plan = make_gpu_plan(p, h200);
      ASSERT_TRUE(plan) << p.line() << ": " << plan.failure().text;
      for (const Launch& launch : plan->launches)
        EXPECT_NE(std::find(presets.begin(), presets.end(), launch.kernel.name), presets.end()) << plan->line();
    }
}

// The models that most engines serve.
TEST(Presets, AreThereForBf16InPagesOf64And128Columns) {
  const auto presets = test::listed_presets();
  for (const char* columns : {"d64", "d128"})
    for (const char* heads : {"hq32 hkv8", "hq8 hkv8", "hq16 hkv1", "hq64 hkv8"})
      for (const int64_t batch : {1, 64, 256})
        for (const int64_t rows : {1, 4, 64, 512, 4096})
          for (const int64_t keys : {1024, 8192, 65536})
            for (const int64_t page : {1, 16, 256})
              for (const char* mask : {"causal", "window4095,0"}) {
                const auto p =
                    Problem::parse(text("fwd bf16 b{} {} sq{} skv{} {} seqused {} page{} pages{}", batch, heads, rows,
                                        keys, columns, rows == 1 ? "" : mask, page, batch * keys / page));
                ASSERT_TRUE(p) << p.failure().text;
                const auto plan = make_gpu_plan(*p, h200);
                ASSERT_TRUE(plan) << p->line() << ": " << plan.failure().text;
                for (const Launch& launch : plan->launches)
                  EXPECT_TRUE(presets.contains(launch.kernel.name)) << plan->line();
              }
}

// Of the types that are presets, and of sequences of one length.
TEST(Presets, AreThereForPlain8BitProblems) {
  auto presets = lines_of("presets/fwd.txt");
  for (const std::string& name : lines_of("presets/dequantise.txt")) presets.push_back(name);
  for (const char* types : {"e4m3", "bf16 kv=e4m3"})
    for (const char* dims : {"d64", "d96", "d128", "d192 dv128", "d192", "d256"})
      for (const char* mask : {"", " causal"})
        for (const int rows : {300, 16384}) {
          const auto p = Problem::parse(text("fwd {} b2 hq16 hkv16 sq{} skv{} {}{}", types, rows, rows, dims, mask));
          ASSERT_TRUE(p) << p.failure().text;
          const auto plan = make_gpu_plan(*p, h200);
          ASSERT_TRUE(plan) << p->line() << ": " << plan.failure().text;
          const bool dequantises = std::holds_alternative<DequantiseStep>(plan->launches.at(0).step);
          ASSERT_EQ(plan->launches.size(), dequantises ? 2u : 1u);
          for (const Launch& launch : plan->launches)
            EXPECT_NE(std::find(presets.begin(), presets.end(), launch.kernel.name), presets.end()) << plan->line();
        }
}

TEST(Presets, AreThereForGradientsOfBf16WithoutSoftcapAndDet) {
  const auto presets = lines_of("presets/bwd.txt");
  for (Problem p : problems_of_every_kind()) {
    p.op = FH_BACKWARD;
    p.dtype = p.dtype_kv = p.dtype_o = Dtype::bf16;
    auto plan = make_gpu_plan(p, h200);
    ASSERT_TRUE(plan) << p.line() << ": " << plan.failure().text;
    ASSERT_EQ(plan->launches.size(), 3u) << plan->line();
    for (const Launch& launch : plan->launches)
      EXPECT_NE(std::find(presets.begin(), presets.end(), launch.kernel.name), presets.end()) << plan->line();
  }
}

TEST(Presets, CoverTheHeadDims) {
  for (const Problem& p : problems_of_every_kind()) {
    auto plan = make_gpu_plan(p, h200);
    ASSERT_TRUE(plan);
    const Launch& launch = plan->launches.at(0);
    const FwdVariant& variant = std::get<ForwardStep>(launch.step).variant;
    EXPECT_GE(variant.dims.qk, p.dim_qk);
    EXPECT_GE(variant.dims.v, p.dim_v);
    EXPECT_LE(launch.kernel.smem_bytes, smem_bytes_per_cta);
    EXPECT_EQ(launch.kernel.name, kernel_of(variant).name);
  }
}

}  // namespace
}  // namespace froghopper
