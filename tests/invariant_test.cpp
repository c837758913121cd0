// SPDX-License-Identifier: Apache-2.0
// tests: `invariant`: bits on the CPU, alone and in company, by every kernel and with any number of threads; and what
// the planner promises for GPUs: kernels whose rows do not depend on each other, tiles of the same keys, parts at the
// same places.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>

#include "contract/split.h"
#include "src/cpu/cpu.hpp"
#include "src/cpu/work.hpp"
#include "src/plan/kernel.hpp"
#include "src/plan/plan.hpp"
#include "src/problem/tensors.hpp"
#include "tests/support/rows_alone.hpp"

namespace froghopper {
namespace {

using test::RowsAlone;

constexpr const char* lines[] = {
    "fwd f32 b1 hq2 hkv2 sq1100 skv1100 d40 causal invariant",
    "fwd f32 b1 hq1 hkv1 sq600 skv900 d24 invariant",
    "fwd f32 b1 hq6 hkv2 sq700 skv700 d64 window300,0 sink invariant",
    "fwd bf16 b1 hq4 hkv1 sq1100 skv1100 d64 causal invariant",
    "fwd bf16 b1 hq2 hkv2 sq500 skv2300 d128 softcap20 invariant",
    "fwd bf16 b1 hq2 hkv2 sq800 skv800 d64 dv40 window200,0 invariant",
    "fwd f16 b1 hq4 hkv2 sq900 skv900 d96 causal sink invariant",
    // 8-bit types: scales of a head or of 128 rows, so that rows computed side by side have different ones.
    "fwd e4m3 o=f32 b1 hq6 hkv2 sq521 skv700 d32 invariant",
    "fwd e4m3 o=f32 b1 hq1 hkv1 sq529 skv529 d16 causal invariant",
    "fwd e4m3 o=f32 b1 hq2 hkv2 sq516 skv700 d16 scales128 invariant",
    "fwd e5m2 o=f32 b1 hq5 hkv1 sq515 skv515 d16 dv32 causal scales128 smooth invariant",
    "fwd e4m3 o=f32 b1 hq4 hkv2 sq530 skv900 d16 window300,0 vcolumns sink invariant",
    "fwd bf16 kv=e4m3 o=f32 b1 hq2 hkv1 sq517 skv800 d16 scales128 invariant",
    "fwd f16 kv=e5m2 o=f32 b1 hq2 hkv1 sq519 skv519 d16 causal smooth invariant",
};

// By one kernel, with so many threads.
Result<void> run_on(const cpu::Kernel& kernel, int64_t threads, const fh_problem& p, const fh_tensors& t) {
  const auto problem = Problem::from(p);
  if (!problem) return problem.failure();
  const auto views = bind(*problem, t);
  if (!views) return views.failure();
  cpu::Plan plan = cpu::plan_with(kernel, *problem);
  plan.threads = threads;
  return cpu::run(plan, *views);
}

TEST(Invariant, BitsOnTheCpuInAnyCompany) {
  for (const char* line : lines) {
    const RowsAlone rows(line);
    const auto problem = Problem::from(rows.problem());
    ASSERT_TRUE(problem);
    for (const cpu::Kernel* kernel : cpu::kernels(cpu::multiplied_as(*problem))) {
      SCOPED_TRACE(kernel->name);
      int64_t calls = 0;
      expect_invariant(
          rows, [&](const fh_problem& p, const fh_tensors& t) { return run_on(*kernel, 1 + calls++ % 3, p, t); },
          /*unused=*/true);
    }
  }
}

// 8-bit q, k and v of random numbers, and what is found of o and lse.
struct EightBits {
  static constexpr int64_t rows = 20, heads = 4, keys = 700, dim = 48;

  explicit EightBits(const char* options) : options(options) {
    std::mt19937 random(3);
    for (auto* const x : {&q, &k, &v})
      for (uint8_t& number : *x) number = static_cast<uint8_t>(random() % 2 << 7 | (0x28 + random() % 24));
    for (auto* const x : {&scale_q, &scale_k, &scale_v})
      for (float& scale : *x) scale = 0.1f + static_cast<float>(random() % 4096) / 4096.0f;
  }

  // The first `used` of `there` rows of `count` heads from `head` on: o and then lse of each, [head][row][dim_v + 1].
  std::vector<float> run(const cpu::Kernel& kernel, int64_t used, int64_t there, int64_t head, int64_t count) {
    const auto problem = Problem::parse(text("fwd e4m3 o=f32 b1 hq{} hkv1 sq{} skv{} d{}{}{} invariant", count, there,
                                             keys, dim, used < there ? " seqused" : "", options));
    EXPECT_TRUE(problem) << problem.failure().text;
    const auto rows_used = static_cast<int32_t>(used);
    std::vector<float> o(there * count * dim), lse(there * count), found;
    fh_tensors t = fh_tensors_init();
    t.q = {&q[head * dim], 0, heads * dim, dim}, t.k = {k.data(), 0, dim, dim}, t.v = {v.data(), 0, dim, dim};
    t.o = {o.data(), 0, count * dim, dim}, t.lse = lse.data();
    t.scale_q = {&scale_q[head], 0, heads, 1}, t.scale_k = {scale_k.data(), 0, 1, 1};
    t.scale_v = {scale_v.data(), 0, 1, 1};
    if (used < there) t.seqused_q = &rows_used;
    const auto done = run_on(kernel, 1, problem->user_struct(), t);
    EXPECT_TRUE(done) << done.failure().text;
    for (int64_t h = 0; h < count; ++h)
      for (int64_t row = 0; row < used; ++row) {
        for (int64_t c = 0; c < dim; ++c) found.push_back(o[(row * count + h) * dim + c]);
        found.push_back(lse[h * there + row]);
      }
    return found;
  }

  const char* options;
  std::vector<uint8_t> q = std::vector<uint8_t>(rows * heads * dim), k = std::vector<uint8_t>(keys * dim), v = k;
  std::vector<float> scale_q = std::vector<float>(heads), scale_k = std::vector<float>(keys), scale_v = scale_k;
};

// Neither rows beside that do not count, which have no scale, nor heads beside with scales of their own change a bit.
TEST(Invariant, ScalesOfOtherLanesDoNotChangeBits) {
  for (const char* const options : {"", " scales128", " softcap20"}) {
    EightBits numbers(options);
    for (const cpu::Kernel* kernel : cpu::kernels(Dtype::bf16)) {
      SCOPED_TRACE(kernel->name);
      const std::vector<float> all = numbers.run(*kernel, 16, 16, 0, numbers.heads);
      EXPECT_EQ(numbers.run(*kernel, 16, 17, 0, numbers.heads), all) << options;
      for (int64_t head = 0; head < numbers.heads; ++head) {
        const auto begin = all.begin() + head * static_cast<int64_t>(all.size()) / numbers.heads;
        const std::vector<float> its(begin, begin + static_cast<int64_t>(all.size()) / numbers.heads);
        EXPECT_EQ(numbers.run(*kernel, 16, 16, head, 1), its) << options << ", head " << head << " alone";
        EXPECT_EQ(numbers.run(*kernel, 16, 17, head, 1), its) << options << ", head " << head << " of 17 rows";
      }
    }
  }
}

Result<Plan> plan_of(const std::string& line, const Device& device, const Hints& hints = {}) {
  const auto problem = Problem::parse(line);
  if (!problem) return problem.failure();
  return make_gpu_plan(*problem, device, hints);
}

// Of any batch, lengths and SMs: every kernel takes the exact step on tiles of 64 keys; parts have 1024.
TEST(Invariant, KernelsOfEveryPlanKeepRowsApart) {
  for (const char* dims : {"d64", "d96", "d128", "d192 dv128", "d192", "d256"})
    for (const char* mask : {"", " causal", " window500,0", " softcap30"})
      for (const int group : {1, 4, 8})
        for (const int batch : {1, 7, 128})
          for (const auto& [seq_q, seq_kv] : {std::pair{1, 1}, {1, 8192}, {3, 131072}, {130, 700}, {4096, 4096}})
            for (const char* ragged : {"", " varlen tq4096 tkv131072", " seqused"})
              for (const int sms : {66, 114, 132}) {
                Device device = known_device("h200");
                device.sms = sms;
                const auto line = text("fwd bf16 b{} hq{} hkv2 sq{} skv{} {}{}{} invariant", batch, 2 * group, seq_q,
                                       seq_kv, dims, ragged, mask);
                const auto plan = plan_of(line, device);
                ASSERT_TRUE(plan) << line << ": " << plan.failure().text;
                ASSERT_FALSE(plan->launches.empty());
                const auto& step = std::get<ForwardStep>(plan->launches[0].step);
                EXPECT_TRUE(step.variant.batch_invariant) << plan->line();
                EXPECT_EQ(step.variant.tiles.kv, batch_invariant_tile_kv) << plan->line();
                EXPECT_EQ(step.parts.tiles, batch_invariant_part_tiles) << plan->line();
                const int parts = (seq_kv + 1023) / 1024;
                EXPECT_EQ(step.parts.most, fwd_splits(step.variant) ? parts : 1) << plan->line();
                EXPECT_EQ(plan->launches.size(), fwd_splits(step.variant) && parts > 1 ? 2u : 1u) << plan->line();
                if (plan->launches.size() == 2) {
                  EXPECT_TRUE(std::get<CombineStep>(plan->launches[1].step).variant.batch_invariant) << plan->line();
                }
                // Items with several parts need room for what they join.
                const bool joins =
                    !fwd_splits(step.variant) && (seq_kv > 1024 || std::string(ragged).find("varlen") == 1);
                EXPECT_EQ(plan->workspace.sums.bytes > 0, joins) << plan->line();
              }
}

// The parts of a tile are each of its kv tiles once, and cut at the same keys for every tile.
TEST(Invariant, PartsBeginAtTheSameKeysForEveryTile) {
  for (const int begin : {0, 3, 15, 16, 40})
    for (const int count : {1, 2, 16, 17, 100})
      for (const int most : {1, 2, 9, 100}) {
        const TileSequence<int> tiles{begin, begin + count};
        const auto parts = batch_invariant_parts(tiles, most);
        ASSERT_TRUE(0 <= parts.begin && parts.begin < parts.end && parts.end <= most);
        int at = begin;
        for (int part = 0; part < most; ++part) {
          const auto its = batch_invariant_part_of(tiles, part, most);
          if (part < parts.begin || part >= parts.end) {
            EXPECT_LE(its.count(), 0);
            continue;
          }
          EXPECT_EQ(its.begin, at);
          EXPECT_TRUE(at == begin || at == part * batch_invariant_part_tiles);
          EXPECT_GT(its.count(), 0);
          at = its.end;
        }
        EXPECT_EQ(at, tiles.end);
      }
}

// A q tile whose rows attend to no key has the kv tile above all keys, which may be the first one of a part.
TEST(Invariant, EveryTileLiesInThePartsThatItsSequenceHas) {
  constexpr int tile_q = 16;
  for (const int keys : {0, 1, 64, 959, 960, 961, 1023, 1024, 1025, 2048, 3000})
    for (const int rows : {1, 100, 1200, 3100})
      for (const int most : {1, 2, 3, 4}) {
        const MaskRule<Mask::causal> rule{keys, keys - rows, no_bound<int>, 0};
        const int parts = batch_invariant_parts_of_sequence(keys, most);
        ASSERT_LE(parts, most);
        for (int first = 0; first < rows; first += tile_q) {
          const int last = std::min(first + tile_q, rows) - 1;
          const TileSequence<int> tiles = rule.tiles(first, last, batch_invariant_tile_kv);
          int count = 0;
          for (int part = 0; part < parts; ++part)
            count += std::max(batch_invariant_part_of(tiles, part, most).count(), 0);
          EXPECT_EQ(count, tiles.count()) << keys << " keys, " << rows << " rows, row " << first << ", most " << most;
        }
      }
}

TEST(Invariant, HintsThatWouldChangeBitsAreRefused) {
  const std::string line = "fwd bf16 b1 hq32 hkv8 sq1 skv8192 d128 invariant";
  const Device h200 = known_device("h200");
  const auto refusal = [&](const char* word) {
    Hints hints;
    EXPECT_TRUE(hints.read(word));
    const auto plan = plan_of(line, h200, hints);
    return plan ? "planned: " + plan->line() : plan.failure().text;
  };
  EXPECT_EQ(refusal("parts=4"), "parts=4 is a hint and invariant is set; its parts have 1024 keys. Leave parts out.");
  EXPECT_NE(refusal("tiles=64x128s2").find("batch-invariant kernels have tiles of 64 keys"), std::string::npos);
  EXPECT_EQ(refusal("packgqa=0").find("planned: "), 0u);
  EXPECT_EQ(
      plan_of("fwd e4m3 b1 hq8 hkv8 sq1 skv512 d128 invariant", h200).failure().text,
      "invariant is set and dtype is e4m3; the Hopper kernels have it for f16 and bf16. Set invariant to 0, or use "
      "target \"cpu\".");
}

// Packed tiles take room for the parts of seq_kv keys; where that is much, plain ones compute the same bits.
TEST(Invariant, ManyPartsOfManyRowsAreNotPacked) {
  const auto few = plan_of("fwd bf16 b8 hq32 hkv8 sq1 skv131072 d128 invariant", known_device("h200"));
  ASSERT_TRUE(few);
  EXPECT_EQ(std::get<ForwardStep>(few->launches[0].step).variant.pack_gqa, true);
  const auto many = plan_of("fwd bf16 b1000 hq32 hkv8 sq1 skv131072 d128 invariant", known_device("h200"));
  ASSERT_TRUE(many);
  EXPECT_EQ(std::get<ForwardStep>(many->launches[0].step).variant.pack_gqa, false);
}

// What a batch-invariant variant cannot compute: finish_part() has no share for O that is merged, the loop of parts no
// scales; chunks and alibi are not looked at there.
TEST(Kernel, OfABatchInvariantVariantIsRefusedWhereItsResultWouldBeWrong) {
  EXPECT_TRUE(kernel_named("fwd.bf16.d128.q128.kv64.s4.causal.invariant"));
  for (const auto& [name, why] :
       {std::pair{"fwd.bf16.e4m3.d128.q128.kv64.s4.causal.invariant",
                  "8-bit q, k and v have no batch-invariant kernel"},
        {"fwd.e4m3.d128.q128.kv64.s4.causal.invariant", "8-bit q, k and v have no batch-invariant kernel"},
        {"fwd.bf16.d128.q128.kv128.s2.causal.invariant", "batch-invariant kernels have tiles of 64 keys"}}) {
    const auto named = kernel_named(name);
    ASSERT_FALSE(named) << name;
    EXPECT_NE(named.failure().text.find(why), std::string::npos) << named.failure().text;
  }
}

}  // namespace
}  // namespace froghopper
