// SPDX-License-Identifier: Apache-2.0
// Claims about the model of time, without a GPU. That it is near what was measured is bench/fit_times.py --check's.
#include "src/plan/time.hpp"

#include <gtest/gtest.h>

#include "src/plan/forward.hpp"
#include "src/plan/rates.hpp"

namespace froghopper {
namespace {

const Device h200 = known_device("h200"), h100 = known_device("h100");

std::optional<Estimate> estimated(const std::string& line, const Device& device = h200,
                                  const std::string& hint = "") {
  const auto problem = Problem::parse(line);
  EXPECT_TRUE(problem) << problem.failure().text;
  Hints hints;
  EXPECT_TRUE(hint.empty() || hints.read(hint)) << hint;
  const auto plan = make_gpu_plan(*problem, device, hints);
  EXPECT_TRUE(plan) << plan.failure().text;
  return estimate(*plan, device);
}

// 132 SMs: 132 equal items are one round, 133 are two.
TEST(Time, CountsRoundsOfEqualItems) {
  const std::string tiles = "tiles=128x128s2";
  const auto one = estimated("fwd bf16 b1 hq132 hkv132 sq128 skv8192 d128", h200, tiles);
  const auto two = estimated("fwd bf16 b1 hq133 hkv133 sq128 skv8192 d128", h200, tiles);
  ASSERT_TRUE(one && two);
  EXPECT_EQ(one->busiest.iterations, 64);
  EXPECT_EQ(one->busiest.items, 1);
  EXPECT_EQ(one->busy, 1);
  EXPECT_EQ(two->busiest.iterations, 128);
  EXPECT_NEAR(two->average.iterations, 64.0 * 133 / 132, 1e-9);
  EXPECT_NEAR(two->busy, 133.0 / 264, 1e-9);
}

// Of a mixed step as many sequences as possible have one row, and the others the rest: the times of experiment 51 are
// of such steps. Where no sequence has many rows, or all have, only one of the two launches has work.
TEST(Time, OfAMixedStepIsThatOfTheSequencesOfBothLaunches) {
  const auto us_of = [](int rows, const Device& device) {
    const auto e = estimated(text("fwd bf16 b64 hq32 hkv8 sq512 skv8192 d128 varlen tq{} tkv0 seqused causal page16 "
                                  "pages32768",
                                  rows),
                             device);
    EXPECT_TRUE(e);
    return e ? e->us : 0;
  };
  EXPECT_NEAR(us_of(63 + 512, h200), 608, 0.06 * 608);
  EXPECT_NEAR(us_of(63 + 512, h100), 844, 0.06 * 844);
  const auto decode = estimated("fwd bf16 b64 hq32 hkv8 sq1 skv8192 d128 causal seqused page16 pages32768");
  ASSERT_TRUE(decode);
  for (const int rows : {64, 79}) EXPECT_NEAR(us_of(rows, h200), decode->us, 3) << rows;  // and a launch without work
  EXPECT_LT(us_of(20, h200), us_of(64, h200) / 3);
  const double one = us_of(63 + 512, h200) - us_of(63, h200);  // a sequence of 512 rows
  EXPECT_NEAR(us_of(62 + 1024, h200) - us_of(62, h200), 2 * one, 0.3 * one);
  EXPECT_GT(us_of(64 * 512, h200), 40 * one);
  // Two sequences of 15 rows, so that rounding leaves the third none.
  EXPECT_TRUE(estimated("fwd bf16 b3 hq32 hkv8 sq20 skv64 d128 varlen tq30 tkv0 seqused causal page16 pages12"));
}

// What all SMs do together is each pair of a query tile and a key tile once, in whatever order and number of launches.
TEST(Time, CountsEachTurnOnce) {
  const auto causal = estimated("fwd bf16 b3 hq5 hkv5 sq1024 skv1024 d128 causal", h200, "tiles=128x128s2");
  ASSERT_TRUE(causal);
  EXPECT_NEAR(causal->average.iterations * 132, 15 * (1 + 2 + 3 + 4 + 5 + 6 + 7 + 8), 1e-9);
  EXPECT_NEAR(causal->average.items * 132, 15 * 8, 1e-9);
  const auto backward = estimated("bwd bf16 b3 hq10 hkv5 sq1024 skv1024 d128 causal");  // 64 rows a turn, 128 keys
  ASSERT_TRUE(backward);
  EXPECT_NEAR(backward->average.iterations * 132, 30 * (2 + 4 + 6 + 8 + 10 + 12 + 14 + 16), 1e-9);
  const auto chunks = estimated("bwd bf16 b3 hq10 hkv5 sq1024 skv1024 d128 causal chunk=256");
  ASSERT_TRUE(chunks);
  EXPECT_NEAR(chunks->average.iterations * 132, 30 * 4 * (4 + 2), 1e-9);
  const auto packed = estimated("fwd bf16 b4 hq32 hkv8 sq1 skv4096 d128", h200, "parts=7");
  ASSERT_TRUE(packed);
  EXPECT_NEAR(packed->average.iterations * 132, 4 * 8 * 64, 1e-9);
}

// Too many items to hand out one by one: the same time for an item as a little fewer have.
TEST(Time, OfManyItemsIsTheirMean) {
  const auto per_item = [](int64_t batch) {
    const auto e = estimated(text("fwd bf16 b{} hq16 hkv16 sq1024 skv1024 d128 causal", batch));
    EXPECT_TRUE(e);
    return e->us / static_cast<double>(batch);
  };
  EXPECT_NEAR(per_item(4096) / per_item(256), 1, 0.02);
}

TEST(Time, NamesWhatBounds) {
  const auto bound = [](const std::string& line) { return estimated(line)->bound; };
  EXPECT_EQ(bound("fwd bf16 b1 hq16 hkv16 sq16384 skv16384 d128"), Bound::tensor_core);
  EXPECT_EQ(bound("fwd bf16 b64 hq32 hkv8 sq1 skv8192 d128"), Bound::memory);
  EXPECT_EQ(bound("fwd bf16 b1 hq2 hkv2 sq512 skv512 d256"), Bound::few_items);
  EXPECT_EQ(bound("quantise bf16 kv=e4m3 b4 hq16 hkv16 sq4096 skv4096 d128 rotate"), Bound::memory);
  EXPECT_EQ(bound("fwd bf16 b1 hq1 hkv1 sq64 skv64 d64"), Bound::few_items);
}

TEST(Time, SaysHowNearTheRoofAMeasurementIs) {
  Estimate e;
  e.us = 100, e.tensor_core = 0.5, e.exponentials = 0.25, e.memory = 0.1;
  EXPECT_EQ(share_of_roof(e, 125), "40% tensor 1.25");
  e.memory = 0.9;
  EXPECT_EQ(share_of_roof(e, 90), "100% memory 0.90");
}

// An SM multiplies twice as many 8-bit numbers, and takes as many exponentials.
TEST(Time, Of8BitsIsNotThatOf16) {
  const auto narrow = estimated("fwd e4m3 b4 hq32 hkv32 sq4096 skv4096 d64");
  const auto usual = estimated("fwd bf16 b4 hq32 hkv32 sq4096 skv4096 d64");
  ASSERT_TRUE(narrow && usual);
  EXPECT_LT(narrow->us, 1.05 * usual->us);
  EXPECT_NEAR(narrow->tensor_core * narrow->us, usual->tensor_core * usual->us / 2, 0.03 * usual->us);
  EXPECT_EQ(narrow->bound, Bound::exponentials);
}

TEST(Time, IsNotKnownOfWhatWasNeverMeasured) {
  EXPECT_FALSE(estimated("fwd e4m3 b1 hq16 hkv16 sq4096 skv4096 d96"));
  EXPECT_FALSE(estimated("bwd bf16 b1 hq16 hkv16 sq4096 skv4096 d128 softcap30"));
  EXPECT_FALSE(estimated("fwd bf16 b0 hq16 hkv16 sq4096 skv4096 d128")) << "nothing is launched";
}

template <class Variant>
Variant variant_of(const MeasuredKernel& of) {
  Variant v{};
  v.dtype = of.fp8_mma ? Dtype::e4m3 : Dtype::bf16;
  if constexpr (std::is_same_v<Variant, FwdVariant>)
    v.kv.dtype = v.dtype;
  else
    v.deterministic = of.det;
  v.dims = of.dims, v.tiles = {of.q, of.kv, 2}, v.mask = of.mask;
  return v;
}

// What bench/fit_times.py files a kernel under is what the planner looks it up by.
TEST(Time, OfAMeasuredKernelIsThatOfItsOwnRow) {
  for (const MeasuredRate& m : measured_rates) {
    const auto check = [&](const auto& v) {
      const Rate rate = rate_of(v, known_device(m.card));
      EXPECT_EQ(rate.iteration_us, m.iteration_us) << m.card << " " << kernel_of(v).name;
      EXPECT_EQ(rate.item_us, m.item_us) << m.card << " " << kernel_of(v).name;
    };
    m.of.backward ? check(variant_of<BwdVariant>(m.of)) : check(variant_of<FwdVariant>(m.of));
  }
}

// A candidate takes the place of the best before it only where it takes less than its share of the time.
TEST(Time, TheQuickestCandidateIsTaken) {
  const auto p = Problem::parse("fwd bf16 b4 hq16 hkv16 sq4096 skv4096 d128");
  ASSERT_TRUE(p) << p.failure().text;
  const Device device = known_device("h200");
  const FwdVariant slow = plain_variant(*p, {128, 128}, {64, 64, 2});
  const FwdVariant quick = plain_variant(*p, {128, 128}, {192, 64, 4});
  const double ratio = forward_us(*p, quick, 1, device) / forward_us(*p, slow, 1, device);
  ASSERT_LT(ratio, 1);
  const auto taken = [&](const FwdVariant& first, const FwdVariant& second, double below) {
    const Candidate candidates[] = {{.variant = first}, {.variant = second, .below = below}};
    return quickest(*p, candidates, device).variant;
  };
  EXPECT_EQ(taken(slow, quick, 1), quick);
  EXPECT_EQ(taken(quick, slow, 1), quick);
  EXPECT_EQ(taken(slow, quick, 0.99 * ratio), slow) << "not by enough";
  EXPECT_EQ(taken(slow, slow, 1), slow);
}

// The launches around a kernel count: what dequantises k and v, and what combines parts.
TEST(Time, OfAVariantHasTheLaunchesAroundIt) {
  const auto p = Problem::parse("fwd bf16 kv=e4m3 b1 hq8 hkv8 sq2048 skv2048 d128");
  ASSERT_TRUE(p) << p.failure().text;
  const Device device = known_device("h100");
  FwdVariant v = plain_variant(*p, {128, 128}, {128, 128, 2});
  EXPECT_EQ(forward_us(*p, v, 4, device), kernel_us(*p, v, 4, device) + combine_us(*p, 4));
  EXPECT_EQ(forward_us(*p, v, 1, device), kernel_us(*p, v, 1, device));
  v.kv.dequantised = true;
  EXPECT_EQ(forward_us(*p, v, 1, device), kernel_us(*p, v, 1, device) + dequantise_us(*p, device));
}

// Of 64x64 tiles of 256 columns windows alone were measured, and chunks of none.
TEST(Time, OfAKernelThatWasNotMeasuredIsThatOfTheMostSimilarOne) {
  const auto iteration_us = [](Mask mask, int tile_q) {
    const MeasuredKernel of = {false, false, false, {256, 256}, tile_q, 64, mask};
    return rate_of(variant_of<FwdVariant>(of), h200).iteration_us;
  };
  EXPECT_EQ(iteration_us(Mask::chunk, 128), iteration_us(Mask::causal, 128));
  EXPECT_EQ(iteration_us(Mask::causal, 64), iteration_us(Mask::window, 64));
  EXPECT_EQ(iteration_us(Mask::none, 64), iteration_us(Mask::none, 128) / 2);
}

// A card of one's own: half of the clock takes twice the time where the tensor cores bound it, half of the memory where
// that does.
TEST(Time, FollowsClockAndMemory) {
  const auto device = [](int clock, int memory) {
    const auto parsed =
        Device::parse({"mine", "132sm", "l2=60MiB", text("clock={}MHz", clock), text("memory={}GB/s", memory)});
    EXPECT_TRUE(parsed);
    return *parsed;
  };
  const auto ratio = [&](const std::string& line, const Device& slow) {
    return estimated(line, slow)->us / estimated(line, device(1980, 4800))->us;
  };
  EXPECT_NEAR(ratio("fwd bf16 b1 hq16 hkv16 sq16384 skv16384 d128", device(990, 4800)), 2, 0.01);
  EXPECT_NEAR(ratio("quantise bf16 kv=e4m3 b4 hq16 hkv16 sq8192 skv8192 d128", device(1980, 2400)), 2, 0.02);
}

// The planner's own use: no number of parts near the chosen one is better by the model, and 8 heads of 512 queries on
// 16k keys make one round of 128 parts.
TEST(Time, ChoosesPartsOfUnequalItems) {
  const std::string line = "fwd bf16 b1 hq8 hkv8 sq512 skv16384 d128 causal";
  const auto chosen = estimated(line);
  ASSERT_TRUE(chosen);
  EXPECT_EQ(chosen->busiest.items, 1);
  for (const int parts : {2, 3, 5, 6})
    EXPECT_GT(estimated(line, h200, text("parts={}", parts))->us, chosen->us) << parts << " parts";
}

// Parts as short as a ring are fetched while others are at work: 8 causal heads of 1k keys, measured on an H200, take
// 11.8 us in two parts and 15.9 in three.
TEST(Time, KnowsThatShortPartsAreDrawnEarly) {
  const auto us = [](int parts) {
    return estimated("fwd bf16 b1 hq8 hkv8 sq1024 skv1024 d64 causal", h200, text("parts={}", parts))->us;
  };
  EXPECT_GT(us(3), 1.2 * us(2));
}

// 64 pairs of 300 rows: two tiles of 192 each are one round, three of 128 are two.
TEST(Time, ChoosesTilesByRounds) {
  const auto tiles = [](const std::string& line, const Device& device) {
    const auto problem = Problem::parse(line);
    const auto plan = make_gpu_plan(*problem, device);
    return std::get<ForwardStep>(plan->launches.at(0).step).variant.tiles.q;
  };
  for (const Device& device : {h200, h100}) {
    EXPECT_EQ(tiles("fwd bf16 b2 hq32 hkv8 sq300 skv300 d128", device), 192);
    EXPECT_EQ(tiles("fwd bf16 b1 hq16 hkv16 sq2048 skv2048 d128", device), 128);
  }
}

}  // namespace
}  // namespace froghopper
