// SPDX-License-Identifier: Apache-2.0
// Plans are values, so they are tested as text: people read tests/golden/plans.txt in every change of the planner.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "contract/fwd_legality.h"
#include "src/base/text.hpp"
#include "src/plan/plan.hpp"
#include "tests/support/preset_lists.hpp"

namespace froghopper {
namespace {

using test::lines_of;

std::string planned(const std::string& device_line, const std::string& problem_line) {
  Hints hints;
  std::vector<std::string> words;
  for (const std::string& word : split(device_line, ' '))
    if (!hints.read(word)) words.push_back(word);
  auto device = Device::parse(words);
  if (!device) return device.failure().text;
  auto problem = Problem::parse(problem_line);
  if (!problem) return problem.failure().text;
  auto plan = make_gpu_plan(*problem, *device, hints);
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

const Device h200 = known_device("h200");

// Two CTAs share the columns then, and v has the tile of q and k.
TEST(Plan, OfGradientsAbove256ColumnsIsThereForEveryPairOfHeadDims) {
  for (int64_t dim_qk = 8; dim_qk <= 512; dim_qk += 8)
    for (int64_t dim_v = 8; dim_v <= 512; dim_v += 8) {
      if (dim_qk <= 256 && dim_v <= 256) continue;
      for (const char* rest :
           {"sq700 skv900", "sq700 skv900 causal softcap20 det", "sq300 skv300 varlen tq500 tkv900"}) {
        const auto problem = Problem::parse(text("bwd f16 b2 hq4 hkv2 d{} dv{} {}", dim_qk, dim_v, rest));
        ASSERT_TRUE(problem) << problem.failure().text;
        const auto plan = make_gpu_plan(*problem, h200);
        ASSERT_TRUE(plan) << problem->line() << ": " << plan.failure().text;
        const int64_t columns = std::max(dim_qk, dim_v) <= 384 ? 384 : 512;
        const BwdVariant& v = std::get<BackwardStep>(plan->launches.at(1).step).variant;
        EXPECT_TRUE(bwd_by_columns(v) && v.dims.qk == columns && v.dims.v == columns) << plan->line();
        EXPECT_EQ(plan->launches[1].kernel.smem_bytes, bwd_smem_bytes(v));
        EXPECT_LE(bwd_smem_bytes(v), smem_bytes_per_cta);
      }
    }
}

// Tiles that hold the columns, with a half of v's that is not empty; whatever else is asked for.
TEST(Plan, IsThereForEveryPairOfHeadDims) {
  for (int64_t dim_qk = 8; dim_qk <= 512; dim_qk += 8)
    for (int64_t dim_v = 8; dim_v <= 512; dim_v += 8) {
      if (dim_qk <= 256 && dim_v <= 256) continue;
      for (const char* rest :
           {"sq700 skv900", "sq700 skv900 causal softcap20", "sq1 skv9000", "sq300 skv9000 window70,0",
            "sq100 skv900 acc", "sq300 skv300 varlen tq500 tkv900 sink"}) {
        const auto problem = Problem::parse(text("fwd f16 b2 hq4 hkv2 d{} dv{} {}", dim_qk, dim_v, rest));
        ASSERT_TRUE(problem) << problem.failure().text;
        const auto plan = make_gpu_plan(*problem, h200);
        ASSERT_TRUE(plan) << problem->line() << ": " << plan.failure().text;
        const FwdVariant& v = std::get<ForwardStep>(plan->launches[0].step).variant;
        EXPECT_TRUE(v.dims.qk >= dim_qk && v.dims.v >= dim_v) << plan->line();
        EXPECT_TRUE(fwd_consumers_per_m_tile(v) == 1 || dim_v > fwd_columns(v)) << plan->line();
      }
    }
}

TEST(Kernel, PresetNamesReadBackAsTheirVariants) {
  for (const std::string& name : lines_of("presets/fwd.txt")) {
    const auto variant = parse_variant<FwdVariant>("fwd", name);
    ASSERT_TRUE(variant) << variant.failure().text;
    EXPECT_EQ(kernel_of(*variant).name, name);
    EXPECT_EQ(why_invalid(*variant), nullptr) << name;
    const auto named = kernel_named(name);
    ASSERT_TRUE(named);
    EXPECT_EQ(named->source, kernel_of(*variant).source);
  }
  for (const char* const name :
       {"fwd.bf16.d128", "fwd.bf16.d128.q128.kv128.s2.causal.causal", "bwd.bf16.d128.q128.kv128.s2",
        "fwd.bf16.d128.q128.kv128x.s2", "", "fwd.bf16.d128.dv128.q128.kv128.s2",  // dv is not spelled where it is d
        "fwd.bf16.d128.q128.kv128.s2147483647", "fwd.f32.d128.q128.kv128.s2",     // variants that cannot be
        "fwd.bf16.e4m3.d128.dv512.q64.kv48.s2.dequantised.blocks", "fwd.e4m3.d512.q64.kv32.s2.packgqa.split",
        "fwd.bf16.e4m3.d128.q64.kv128.s2.packgqa.split.tokenscales"})
    EXPECT_FALSE(kernel_named(name)) << name;
}

TEST(Kernel, NamesOfTheBackwardPassReadBack) {
  for (const std::string& name : lines_of("presets/bwd.txt")) {
    const auto named = kernel_named(name);
    ASSERT_TRUE(named) << named.failure().text;
    EXPECT_EQ(named->name, name);
    EXPECT_GT(named->smem_bytes, 0) << "the compiler keeps no constant that is 0";
    EXPECT_LE(named->smem_bytes, smem_bytes_per_cta);
  }
  for (const char* const name :
       {"bwd.f16.d96.q64.kv128.s2.chunk.ragged.softcap.det.alibi", "bwd.bf16.d192.dv128.q64.kv128.s3.causal.alibi"}) {
    const auto named = kernel_named(name);
    ASSERT_TRUE(named) << named.failure().text;
    EXPECT_EQ(named->name, name);
  }
  for (const char* const name :
       {"bwd.bf16.d64.q64.kv128.s2", "bwd.bf16.d128.q64.kv64.s2", "bwd.f32.d64.q128.kv128.s2",
        "bwd.bf16.d256.q64.kv64.s3", "bwd.bf16.d512.dv384.q64.kv64.s2", "bwd.bf16.d512.q64.kv128.s2",
        "delta.bf16.dv96", "delta.f32.dv64", "gradq.bf16.d64.q32"})
    EXPECT_FALSE(kernel_named(name)) << name;
}

TEST(Kernel, EachFieldOfAVariantChangesItsName) {
  FwdVariant plain{};
  plain.dtype = plain.kv.dtype = Dtype::bf16, plain.dims = {192, 128}, plain.tiles = {128, 96, 2};
  plain.mask = Mask::none;
  EXPECT_EQ(kernel_of(plain).name, "fwd.bf16.d192.dv128.q128.kv96.s2");
  std::set<std::string> names{kernel_of(plain).name}, sources{kernel_of(plain).source};
  int fields = 0;
  visit_fields(plain, [&](auto&&...) { ++fields; });
  for (int changed = 0; changed < fields; ++changed) {
    FwdVariant other = plain;
    int at = 0;
    visit_fields(other, [&]<class T>(const char*, T& field, auto...) {
      if (at++ != changed) return;
      if constexpr (std::is_same_v<T, Dtype>)
        field = Dtype::f16;
      else if constexpr (std::is_same_v<T, Mask>)
        field = Mask::window;
      else if constexpr (std::is_same_v<T, KvLayout>)
        field = KvLayout::page_rows;
      else if constexpr (std::is_same_v<T, SplitKv>)
        field = SplitKv::even;
      else if constexpr (std::is_same_v<T, bool>)
        field = !field;
      else
        field += 32;
    });
    EXPECT_NE(other, plain) << "field " << changed;
    const KernelSpec spec = kernel_of(other);
    EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
    EXPECT_TRUE(sources.insert(spec.source).second) << spec.source;
    const auto back = parse_variant<FwdVariant>("fwd", spec.name);
    ASSERT_TRUE(back) << back.failure().text;
    EXPECT_EQ(*back, other) << spec.name;
  }
}

TEST(Device, LinesReadBack) {
  for (const char* const line :
       {"h200 132sm l2=60MiB clock=1980MHz memory=4800GB/s", "h100 114sm l2=32MiB clock=1755MHz memory=2000GB/s",
        "mine 64sm l2=40MiB clock=1500MHz memory=2000GB/s"}) {
    const auto device = Device::parse(split(line, ' '));
    ASSERT_TRUE(device) << device.failure().text;
    EXPECT_EQ(device->line(), line);
  }
  for (const char* const line : {"", "mine", "h200 0sm", "h200 132", "h200 colour=red", "h200 clock=0MHz",
                                 "h200 memory=2000", "mine 64sm l2=40MiB clock=1500MHz", "h200 tiles=128x64s3"})
    EXPECT_FALSE(Device::parse(split(line, ' '))) << line;
}

// What the order's functions take (contract/order.h); tests/order_test.cpp holds that they visit every item once then.
TEST(Plan, OrderIsOneThatVisitsEveryItemOnce) {
  for (int64_t seq : {1, 500, 1024, 2000, 4096, 20000})
    for (int64_t batch : {1, 3, 40}) {
      Problem p;
      p.batch = batch, p.heads_q = 6, p.heads_kv = 2, p.seq_q = seq, p.seq_kv = seq, p.window_right = 0;
      auto plan = make_gpu_plan(p, h200);
      ASSERT_TRUE(plan);
      const Order& order = std::get<ForwardStep>(plan->launches.at(0).step).order;
      EXPECT_EQ(order.items, order.pairs * order.items_of_pair) << plan->line();
      EXPECT_TRUE(order.tail >= 0 && order.tail < order.items_of_pair) << plan->line();
      EXPECT_TRUE(order.section >= 1 && order.section <= order.pairs) << plan->line();
    }
}

// Sums and products of such numbers pass 2^63 where nobody looks: with UBSan this says so.
TEST(Plan, OfTheLargestNumbersHasNoOverflow) {
  constexpr int64_t most = INT64_MAX;
  Problem p;
  p.batch = 2, p.heads_q = p.heads_kv = 16, p.seq_q = p.seq_kv = 16384, p.dim_qk = p.dim_v = 96;
  p.window_left = p.window_right = 16384;
  const auto kernel = [&] { return make_gpu_plan(p, h200)->launches.at(0).kernel.name; };
  const std::string all_keys_seen = kernel();
  for (auto [left, right] :
       {std::pair{most, most}, {most, int64_t{0}}, {int64_t{0}, most}, {most / 2, most / 2 + 1}}) {
    p.window_left = left, p.window_right = right;
    EXPECT_EQ(kernel(), all_keys_seen) << p.line();
  }
  const auto heavy = Problem::parse("fwd bf16 b16777216 hq1 hkv1 sq1 skv536870911 d256 causal");
  ASSERT_TRUE(heavy) << heavy.failure().text;
  Device vast = h200;
  vast.l2_bytes = int64_t{INT32_MAX} << 20;
  Hints plain;
  ASSERT_TRUE(plain.read("packgqa=0"));
  const auto plan = make_gpu_plan(*heavy, vast, plain);
  ASSERT_TRUE(plan) << plan.failure().text;
  EXPECT_EQ(std::get<ForwardStep>(plan->launches.at(0).step).order.section, 1093) << plan->line();
}

// seq_q bounds the longest of packed sequences and may pass all rows there are; a section holds as many pairs as those
// rows fill. 2^28 rows of 2^24 heads would be 2^63 bytes.
TEST(Plan, OfPackedGradientsCountsTheRowsThereAre) {
  const auto section_of = [](const std::string& line) {
    const auto problem = Problem::parse(line);
    EXPECT_TRUE(problem) << problem.failure().text;
    const auto plan = make_gpu_plan(*problem, h200);
    EXPECT_TRUE(plan) << plan.failure().text;
    return std::get<BackwardStep>(plan->launches.at(1).step).order.section;
  };
  const std::string heads = "bwd bf16 b1 hq4194304 hkv4194304 ";
  EXPECT_EQ(section_of(heads + "sq268435456 skv1 d256 varlen tq1 tkv1 causal"), 8192) << "16 MiB";
  EXPECT_EQ(section_of(heads + "sq1 skv1 d256 varlen tq1 tkv1 causal"), 8192);
  const auto few_rows = [](int64_t seq_q) {
    return text("bwd bf16 b4 hq64 hkv64 sq{} skv4096 d128 varlen tq2000 tkv9000 causal", seq_q);
  };
  EXPECT_LT(section_of(few_rows(2000)), 64);
  EXPECT_EQ(section_of(few_rows(100000)), section_of(few_rows(2000)));
}

// Their numbers differ, so plans for one are not plans for the other.
TEST(Device, H100IsNotH200) {
  const Device h100 = known_device("h100");
  EXPECT_EQ(h100.line(), Device::parse({"h100"})->line());
  EXPECT_LT(h100.memory_gbps, h200.memory_gbps);
  EXPECT_LT(h100.l2_bytes, h200.l2_bytes);
  EXPECT_EQ(known_device("h300").sms, 0);
}

TEST(Hints, AreReadAndPrinted) {
  Hints hints;
  EXPECT_EQ(hints.line(), "");
  for (const char* const word :
       {"parts=4", "dequantised=1", "packgqa=1", "deferred=8", "tail=30%", "section=16MiB", "tiles=128x176s2"})
    EXPECT_TRUE(hints.read(word)) << word;
  EXPECT_EQ(hints.line(), " tiles=128x176s2 section=16MiB tail=30% deferred=8 packgqa=1 parts=4 dequantised=1");
  EXPECT_EQ(Hints::why_wrong("tail=300%"), "the hint tail=300% must be a percentage from 0 to 99, such as tail=30%.");
  EXPECT_EQ(Hints::why_wrong("tails=3"), "");
  // Their names before 0.4.
  Hints renamed;
  EXPECT_TRUE(renamed.read("late=8") && renamed.read("packed=1"));
  EXPECT_EQ(renamed.line(), " deferred=8 packgqa=1");
  EXPECT_EQ(Hints::why_wrong("packed=2"), "the hint packed=2 must be packgqa=0 or packgqa=1.");
  for (const char* const word : {"tiles=128", "tiles=128x64s3x", "tiles=0x64s3", "tiles=128x64s262144",
                                 "tiles=-128x64s3", "section=0MiB", "section=16", "tail=30", "tail=100%", "tail=-1%",
                                 "deferred=", "deferred=-1", "deferred=8x", "dequantised=2", "h200", "64sm", ""}) {
    Hints none;
    EXPECT_FALSE(none.read(word)) << word;
  }
}

TEST(Hints, ChangeThePlan) {
  const auto problem = Problem::parse("fwd bf16 b4 hq16 hkv16 sq4096 skv4096 d128 causal");
  ASSERT_TRUE(problem);
  const auto order_with = [&](const char* word) {
    Hints hints;
    EXPECT_TRUE(hints.read(word));
    return std::get<ForwardStep>(make_gpu_plan(*problem, h200, hints)->launches.at(0).step).order;
  };
  std::set<std::string> lines;
  for (const char* const word :
       {"deferred=0", "deferred=3", "deferred=1073741824", "tail=0%", "section=4MiB", "tiles=128x80s2"}) {
    Hints hints;
    ASSERT_TRUE(hints.read(word)) << word;
    const std::string line = make_gpu_plan(*problem, h200, hints)->line();
    EXPECT_TRUE(lines.insert(line).second) << word << ": a decision that cannot be read: " << line;
  }
  EXPECT_EQ(order_with("deferred=3").deferred_tiles, 3);
  EXPECT_EQ(order_with("tail=0%").tail, 0);
  EXPECT_LT(order_with("section=4MiB").section, order_with("section=64MiB").section);
  Hints tiles;
  ASSERT_TRUE(tiles.read("tiles=128x80s2"));
  EXPECT_EQ(make_gpu_plan(*problem, h200, tiles)->launches.at(0).kernel.name, "fwd.bf16.d128.q128.kv80.s2.causal");
  ASSERT_TRUE(tiles.read("tiles=128x72s2"));
  EXPECT_FALSE(make_gpu_plan(*problem, h200, tiles)) << "kv tiles are multiples of 16";
}

// A hint without effect would be measured as one with it.
TEST(Hints, OfForwardOrdersAreRefusedForGradients) {
  const auto problem = Problem::parse("bwd bf16 b4 hq16 hkv16 sq4096 skv4096 d128 causal");
  ASSERT_TRUE(problem);
  const auto with = [&](const char* word) {
    Hints hints;
    EXPECT_TRUE(hints.read(word));
    return make_gpu_plan(*problem, h200, hints);
  };
  for (const char* const word : {"tail=0%", "tail=30%", "deferred=0", "deferred=8"}) {
    const auto plan = with(word);
    ASSERT_FALSE(plan) << word;
    EXPECT_EQ(plan.failure().status, FH_UNSUPPORTED);
    EXPECT_TRUE(plan.failure().text.starts_with(word)) << plan.failure().text;
    EXPECT_NE(plan.failure().text.find("Leave " + std::string(word, std::strcspn(word, "=")) + " out"),
              std::string::npos)
        << plan.failure().text;
  }
  for (const char* const word : {"section=64MiB", "tiles=64x128s3"}) {
    const auto plan = with(word), plain = make_gpu_plan(*problem, h200);
    ASSERT_TRUE(plan) << plan.failure().text;
    EXPECT_NE(plan->line(), plain->line()) << word;
  }
}

TEST(Workspace, SlicesLieApartAndAligned) {
  Workspace workspace;
  const Slice first = workspace.take(8), second = workspace.take(1000), third = workspace.take(4);
  EXPECT_EQ(first.offset, 0u);
  EXPECT_EQ(second.offset, 256u);
  EXPECT_EQ(third.offset, 256u + 1024u);
  EXPECT_EQ(workspace.bytes, third.offset + 4);
}

}  // namespace
}  // namespace froghopper
