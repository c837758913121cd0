// SPDX-License-Identifier: Apache-2.0
// Whether 8-bit k and v beside 16-bit q are dequantised by a launch of their own: src/plan/dequantise.cpp.
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "src/plan/plan.hpp"

namespace froghopper {
namespace {

// Once for all q tiles where that takes less time than each CTA's work in every one of them; where a tile has scales of
// its own, beside bf16 q alone.
TEST(Plan, WidensKeysAndValuesInALaunchOfTheirOwnWhereThatPays) {
  const auto dequantises = [](const std::string& line, const char* hint = nullptr) -> std::optional<bool> {
    const auto problem = Problem::parse(line);
    EXPECT_TRUE(problem) << line;
    Hints hints;
    if (hint) { EXPECT_TRUE(hints.read(hint)); }
    const auto plan = make_gpu_plan(*problem, known_device("h200"), hints);
    if (!plan) return std::nullopt;
    const bool first = std::holds_alternative<DequantiseStep>(plan->launches[0].step);
    const size_t bytes = plan->workspace.dequantised_k.bytes + plan->workspace.dequantised_v.bytes;
    const auto numbers = problem->rows_kv() * problem->heads_kv * (problem->dim_qk + problem->dim_v);
    EXPECT_EQ(bytes, first ? 2 * static_cast<size_t>(numbers) : 0) << line;
    for (const Launch& launch : plan->launches) {
      const auto* const step = std::get_if<ForwardStep>(&launch.step);
      EXPECT_TRUE(step == nullptr || fwd_dequantised_by_earlier_launch(step->variant) == first) << line;
    }
    return first;
  };
  const std::string few = "fwd bf16 kv=e4m3 b1 hq8 hkv8 sq128 skv4096 d128";
  const std::string many = "fwd bf16 kv=e4m3 b4 hq32 hkv8 sq2048 skv2048 d128 causal";
  EXPECT_EQ(dequantises(many), true);
  EXPECT_EQ(dequantises(many, "dequantised=0"), false);
  EXPECT_EQ(dequantises(few), false);
  EXPECT_EQ(dequantises(few, "dequantised=1"), true);
  for (const char* more : {" scales128", " vcolumns"}) {
    EXPECT_EQ(dequantises(many + more), true) << more;
    EXPECT_EQ(dequantises("fwd f16 kv=e4m3 b4 hq32 hkv8 sq2048 skv2048 d128" + std::string(more), "dequantised=1"),
              std::nullopt)
        << "weights times scales of v are beyond the range of f16";
  }
  const std::string wide = "fwd bf16 kv=e4m3 b4 hq8 hkv2 sq2048 skv2048 d512 causal";
  for (const char* more : {"", " scales128", " vcolumns"}) EXPECT_EQ(dequantises(wide + more), true) << more;
  const std::string short_ones = "fwd bf16 kv=e4m3 b4096 hq32 hkv8 sq65536 skv65536 d128 varlen tq65536 tkv65536";
  EXPECT_EQ(dequantises(short_ones), true);
  EXPECT_EQ(dequantises(short_ones + " scales128"), true);
  EXPECT_EQ(dequantises("fwd bf16 kv=e4m3 b65536 hq32 hkv8 sq65536 skv65536 d128 varlen tq65536 tkv65536 scales128"),
            false)
      << "scales of sequences as long as they may be would fill 2 GiB";
  for (const char* more : {" softcap20", " alibi", " smooth", " maxlogit"}) {
    EXPECT_EQ(dequantises(many + more), false) << more;
    EXPECT_EQ(dequantises(many + more, "dequantised=1"), std::nullopt) << more;
  }
  EXPECT_EQ(dequantises(many + " seqused"), true) << "as if all of it were used: both ways take less of less";
  EXPECT_EQ(dequantises("fwd bf16 kv=e4m3 b8 hq32 hkv8 sq8192 skv131072 d128"), false) << "4 GiB";
  EXPECT_EQ(dequantises("fwd bf16 b4 hq32 hkv8 sq2048 skv2048 d128", "dequantised=1"), std::nullopt);
  EXPECT_EQ(dequantises("fwd e4m3 b4 hq32 hkv8 sq2048 skv2048 d128", "dequantised=1"), std::nullopt);
}

}  // namespace
}  // namespace froghopper
