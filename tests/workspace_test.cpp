// SPDX-License-Identifier: Apache-2.0
// tests: what a plan takes of the workspace is what its kernels are given, and nothing else.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "src/plan/plan.hpp"
#include "src/runtime/params/params.hpp"
#include "tests/support/planned.hpp"

namespace froghopper::runtime {
namespace {

using test::planned;

// A slice that the plan has not taken has no address: that of the workspace would be what lies at its start.
TEST(Workspace, HasScalesOfBlocksOnlyWhereEachBlockHasItsOwn) {
  alignas(16) static char memory[64];
  for (const auto& [words, prepares] : {std::pair{"", false}, {" scales128", true}, {" vcolumns", true}}) {
    const Plan plan = planned("fwd bf16 kv=e4m3 b4 hq32 hkv8 sq2048 skv2048 d128 causal" + std::string(words));
    Views views;
    views.k = views.v = {memory, Element::e4m3, 4, 2048, 8, 128, 2048 * 8 * 128, 8 * 128, 128};
    char workspace[8];
    const runtime::Run run{plan, views, workspace, 7};
    const auto made = make_params(Driver{}, run, std::get<DequantiseStep>(plan.launches.at(0).step));
    ASSERT_TRUE(made) << made.failure().text;
    const auto& params = std::get<DequantiseParams>(*made);
    EXPECT_EQ(params.scales.to.data != nullptr, prepares) << plan.line();
    EXPECT_EQ(params.k.to, workspace + plan.workspace.dequantised_k.offset);
    for (const auto& [name, slice] : workspace_slices)
      EXPECT_EQ(run.slice<char>(plan.workspace.*slice) != nullptr, (plan.workspace.*slice).bytes > 0) << name;
  }
}

// seq_kv says how many keys of packed sequences to plan for; one may have more, whose sums need their room too.
TEST(Workspace, HasRoomForTheSumsOfPackedSequencesThatAreLongerThanPlannedFor) {
  const auto room = [](const std::string& line) { return planned(line).workspace.sums.bytes; };
  EXPECT_GT(room("fwd e4m3 b2 hq8 hkv8 sq100 skv100 d128 varlen tq5000 tkv5000"), 0u);
  EXPECT_EQ(room("fwd e4m3 b2 hq8 hkv8 sq100 skv100 d128 varlen tq500 tkv500"), 0u);
  EXPECT_EQ(room("fwd e4m3 b50 hq8 hkv8 sq100 skv100 d128"), 0u);
}

}  // namespace
}  // namespace froghopper::runtime
