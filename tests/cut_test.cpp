// SPDX-License-Identifier: Apache-2.0
// Claims about packed tiles and split keys, without a GPU: parts of a tile's keys are each of its kv tiles once and in
// order; the second kernel counts as many parts as the first one hands out; what the planner packs and cuts, and what
// hints make of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "contract/split.h"
#include "src/base/text.hpp"
#include "src/plan/plan.hpp"

namespace froghopper {
namespace {

TEST(Parts, AreEachKvTileOnceAndInOrder) {
  for (const int begin : {0, 3})
    for (const int count : {1, 2, 7, 9, 64})
      for (const auto& [size, most] : {std::pair{1, 64}, {2, 32}, {5, 13}, {64, 1}, {100, 1}, {2, 4}, {1, 3}}) {
        const TileSequence<int> tiles{begin, begin + count};
        const int parts = parts_of(tiles, size, most);
        EXPECT_LE(parts, most) << "the workspace has no room for more";
        int at = begin;
        for (int part = 0; part < parts; ++part) {
          const auto its = part_of(tiles, part, size, most);
          EXPECT_EQ(its.begin, at);
          EXPECT_TRUE(its.count() > 0 && its.count() <= tiles_of_part(tiles, size, most));
          at = its.end;
        }
        EXPECT_EQ(at, begin + count);
        const auto after = part_of(tiles, parts, size, most);
        EXPECT_LE(after.count(), 0) << "a part too many has keys";
      }
}

TEST(TileSequence, VisitsEachTileOnceFromTheLastToTheFirst) {
  for (const int begin : {0, 3})
    for (const int count : {1, 2, 9}) {
      const TileSequence<int> tiles{begin, begin + count};
      std::vector<int> visited;
      for (const int tile : tiles.in_order()) visited.push_back(tile);
      ASSERT_EQ(visited.size(), tiles.count());
      EXPECT_EQ(visited.front(), tiles.first());
      EXPECT_EQ(visited.back(), tiles.last());
      for (size_t at = 0; at < visited.size(); ++at) {
        const int tile = visited[at], left = static_cast<int>(visited.size() - at) - 1;
        EXPECT_EQ(tiles.is_last(tile), left == 0);
        EXPECT_EQ(tiles.not_past_last(tiles.next(tile)), left > 0);
        EXPECT_EQ(tiles.next_or_last(tile), left > 0 ? visited[at + 1] : tile);
        EXPECT_EQ(tiles.with_left(left), tile);
        EXPECT_EQ(tiles.visited_from(tile).count(), left + 1);
        EXPECT_EQ(tiles.visited_before(tile).count(), at);
      }
      EXPECT_EQ(tiles.with_left(count), tiles.first()) << "fewer are left after every tile";
    }
}

TEST(Parts, KnowTheirNumbers) {
  for (const int begin : {0, 3, 15, 40})
    for (const int count : {1, 7, 64})
      for (const int most : {1, 5, 64}) {
        const TileSequence<int> tiles{begin, begin + count};
        const int size = tiles_of_part(tiles, 2, most);
        for (int part = 0; part < parts_of(tiles, 2, most); ++part)
          EXPECT_EQ(number_of_part(tiles, part_of(tiles, part, 2, most), size), part);
        for (const int tile : tiles.in_order()) {
          const auto its = batch_invariant_part_from(tiles, tile);
          const int number = batch_invariant_part_at(tile);
          EXPECT_EQ(its.first(), tile);
          EXPECT_EQ(its.last(), batch_invariant_part_of(tiles, number, number + 2).last());
        }
      }
}

// combine.cuh takes the rule of a window for every mask; the forward kernel that of its own.
TEST(Parts, OfARowAreThoseOfItsTileWhateverTheKernelsMask) {
  constexpr int all = no_bound<int>;
  for (const int rows : {1, 5, 64, 300})
    for (const int keys : {0, 1, 127, 128, 1000})
      for (const int diagonal : {0, keys - rows})
        for (const int size : {1, 3}) {
          const MaskRule<Mask::none> none{keys, diagonal, all, all};
          const MaskRule<Mask::causal> causal{keys, diagonal, all, 0};
          const MaskRule<Mask::window> as_none{keys, diagonal, all, all}, as_causal{keys, diagonal, all, 0};
          for (int first = 0; first < rows; first += 16) {
            const int last = std::min(first + 16, rows) - 1;
            EXPECT_EQ(parts_of(none.tiles(first, last, 128), size, 100),
                      parts_of(as_none.tiles(first, last, 128), size, 100));
            EXPECT_EQ(parts_of(causal.tiles(first, last, 128), size, 100),
                      parts_of(as_causal.tiles(first, last, 128), size, 100));
          }
        }
}

Result<Plan> plan_of(const std::string& line, const std::string& hint_words = "") {
  const auto problem = Problem::parse(line);
  EXPECT_TRUE(problem) << line << ": " << problem.failure().text;
  Hints hints;
  for (const std::string& word : split(hint_words, ' ')) EXPECT_TRUE(hints.read(word)) << word;
  return make_gpu_plan(*problem, known_device("h200"), hints);
}

const ForwardStep& forward_of(const Plan& plan) { return std::get<ForwardStep>(plan.launches.at(0).step); }

TEST(Packed, TilesHoldEveryRowOfEveryHeadOnce) {
  for (const int heads_kv : {1, 3})
    for (const int group : {1, 2, 3, 4, 5, 8, 16, 64, 71, 128})
      for (const int rows : {1, 2, 5, 16, 33}) {
        const auto plan = plan_of(text("fwd bf16 b2 hq{} hkv{} sq{} skv4000 d128", group * heads_kv, heads_kv, rows));
        ASSERT_TRUE(plan) << plan.failure().text;
        const ForwardStep& step = forward_of(*plan);
        if (!step.variant.pack_gqa) continue;
        const PackGqaParams pack = step.pack_gqa;
        EXPECT_LE(pack.heads * pack.rows, m_tile_rows) << plan->line();
        EXPECT_EQ(group % pack.heads, 0) << "a tile's heads share a key head: " << plan->line();
        const int tiles = step.order.items_of_pair / step.parts.most;
        EXPECT_GE(tiles * pack.rows, rows) << plan->line();
        EXPECT_LT((tiles - 1) * pack.rows, rows) << plan->line();
        EXPECT_EQ(step.order.pairs, 2 * heads_kv * group / pack.heads) << plan->line();
        EXPECT_EQ(step.order.items, step.order.pairs * step.order.items_of_pair) << plan->line();
      }
}

TEST(Packed, IsForFewRowsAlone) {
  EXPECT_TRUE(forward_of(*plan_of("fwd bf16 b4 hq32 hkv8 sq1 skv4000 d128")).variant.pack_gqa);
  EXPECT_TRUE(forward_of(*plan_of("fwd bf16 b4 hq32 hkv32 sq1 skv4000 d64")).variant.pack_gqa);
  EXPECT_FALSE(forward_of(*plan_of("fwd bf16 b4 hq32 hkv8 sq512 skv4000 d128")).variant.pack_gqa);
  EXPECT_FALSE(forward_of(*plan_of("fwd bf16 b4 hq32 hkv8 sq1 skv4000 d128", "packgqa=0")).variant.pack_gqa);
  EXPECT_TRUE(forward_of(*plan_of("fwd bf16 b4 hq32 hkv8 sq512 skv4000 d128", "packgqa=1")).variant.pack_gqa);
}

TEST(Split, IsInTheWorkspaceAndInASecondLaunch) {
  const auto plan = plan_of("fwd bf16 b1 hq32 hkv8 sq1 skv8192 d128", "parts=4");
  ASSERT_TRUE(plan) << plan.failure().text;
  ASSERT_EQ(plan->launches.size(), 2u) << plan->line();
  const ForwardStep& step = forward_of(*plan);
  EXPECT_TRUE(fwd_splits(step.variant));
  EXPECT_EQ(step.parts.most, 4);
  EXPECT_EQ(step.parts.tiles, 8192 / step.variant.tiles.kv / 4);
  EXPECT_EQ(plan->workspace.part_o.bytes, 4u * 32 * 128 * sizeof(float));
  EXPECT_EQ(plan->workspace.part_rows.bytes, 4u * 32 * sizeof(PartOfRow));
  EXPECT_TRUE(plan->launches[1].overlaps);
  const auto whole = plan_of("fwd bf16 b1 hq32 hkv8 sq1 skv8192 d128", "parts=1");
  EXPECT_EQ(whole->launches.size(), 1u) << whole->line();
  EXPECT_EQ(whole->workspace.bytes, 8u);
}

TEST(Split, FillsTheSmsWhereTilesAreFewAndLeavesTheRestAlone) {
  for (const char* const few : {"fwd bf16 b1 hq32 hkv8 sq1 skv8192 d128", "fwd bf16 b1 hq1 hkv1 sq8192 skv8192 d128",
                                "fwd bf16 b1 hq1 hkv1 sq1 skv100000 d64"}) {
    const auto plan = plan_of(few);
    ASSERT_TRUE(plan) << plan.failure().text;
    EXPECT_TRUE(fwd_splits(forward_of(*plan).variant)) << plan->line();
    EXPECT_GE(plan->launches[0].grid, 64) << plan->line();
    EXPECT_LE(plan->workspace.bytes, size_t{1} << 28) << plan->line();
  }
  for (const char* const many :
       {"fwd bf16 b8 hq16 hkv16 sq2048 skv2048 d128", "fwd bf16 b1 hq16 hkv16 sq16384 skv16384 d64 causal",
        "fwd bf16 b4 hq16 hkv16 sq4096 skv4096 d256", "fwd f16 b32 hq16 hkv16 sq512 skv512 d128 causal"}) {
    const auto plan = plan_of(many);
    EXPECT_FALSE(fwd_splits(forward_of(*plan).variant)) << plan->line();
    EXPECT_FALSE(forward_of(*plan).variant.pack_gqa) << plan->line();
  }
}

// Two CTAs of this kernel find room on an SM. Where there are SMs for all, none shares one; and where no CTA has a
// second item and items are short, none fetches a ticket.
TEST(Split, CtasShareSmsOnlyWhereTheyMustAndDrawTicketsOnlyWhereItemsAreLeft) {
  struct Row {
    const char *line, *hints;
    int grid;
    bool one_cta_an_sm, has_tickets;
  };
  for (const Row& row : {Row{"fwd bf16 b4 hq32 hkv8 sq1 skv2048 d128", "parts=4", 128, true, false},
                         Row{"fwd bf16 b4 hq32 hkv8 sq1 skv2048 d128", "parts=8", 256, false, false},
                         Row{"fwd bf16 b4 hq32 hkv8 sq1 skv4096 d128", "parts=4", 128, true, true},  // long items
                         Row{"fwd bf16 b4 hq32 hkv8 sq1 skv2048 d128 seqused", "parts=4", 132, true, false},
                         Row{"fwd bf16 b4 hq32 hkv8 sq1 skv2048 d128 seqused", "parts=8", 264, false, false},
                         Row{"fwd bf16 b64 hq32 hkv8 sq1 skv512 d128", "parts=1", 264, false, true},
                         Row{"fwd bf16 b64 hq32 hkv8 sq1 skv512 d128 seqused", "parts=1", 264, false, true},
                         Row{"fwd bf16 b4 hq32 hkv8 sq1 skv1024 d128 sms64", "parts=2", 64, true, false},
                         Row{"fwd bf16 b1 hq8 hkv8 sq512 skv512 d128", "", 32, false, false},
                         Row{"fwd bf16 b4 hq16 hkv16 sq4096 skv4096 d128", "", 132, false, true}}) {
    const auto plan = plan_of(row.line, row.hints);
    ASSERT_TRUE(plan) << plan.failure().text;
    EXPECT_EQ(plan->launches[0].grid, row.grid) << plan->line();
    EXPECT_EQ(plan->launches[0].one_cta_an_sm, row.one_cta_an_sm) << plan->line();
    EXPECT_EQ(forward_of(*plan).has_tickets, row.has_tickets) << plan->line();
  }
}

// However long a sequence may be, and however many there may be.
TEST(Split, HasABoundedWorkspace) {
  for (const char* const line :
       {"fwd bf16 b1 hq128 hkv128 sq1 skv500000000 d256 seqused",
        "fwd bf16 b4096 hq64 hkv8 sq1 skv1000000 d128 seqused", "fwd bf16 b1 hq1 hkv1 sq60000 skv400000000 d128"}) {
    const auto plan = plan_of(line);
    ASSERT_TRUE(plan) << plan.failure().text;
    EXPECT_LE(plan->workspace.bytes, (size_t{1} << 28) + 4096) << plan->line();
  }
}

// A mixed step: the sequences with many rows first, then those with as few as a PackGQA tile has, whose keys are split
// evenly. Both launches fetch from counters of their own, and each row is one launch's.
TEST(Mixed, StepsAreTwoLaunches) {
  const std::string words = "fwd bf16 b64 hq32 hkv8 sq512 skv8192 d128 varlen tq4096 causal ";
  const auto plan = plan_of(words + "seqused page16 pages8192");
  ASSERT_TRUE(plan) << plan.failure().text;
  ASSERT_EQ(plan->launches.size(), 3u) << plan->line();
  const ForwardStep& many = forward_of(*plan);
  const auto& few = std::get<ForwardStep>(plan->launches[1].step);
  const auto& combine = std::get<CombineStep>(plan->launches[2].step);
  EXPECT_FALSE(many.variant.pack_gqa || many.second) << plan->line();
  EXPECT_TRUE(few.second && fwd_splits_evenly(few.variant) && !few.has_tickets) << plan->line();
  EXPECT_EQ(few.pack_gqa.rows, 16);
  for (const int rows : {0, 1, 16, 17, 512}) EXPECT_NE(many.rows.has(rows), few.rows.has(rows)) << rows;
  EXPECT_EQ(plan->workspace.tickets.bytes, 16u);
  EXPECT_EQ(combine.even.ctas, plan->launches[1].grid);
  for (const char* const one : {"tkv9000", "seqused page16 pages8192 invariant"})
    EXPECT_FALSE(std::get<ForwardStep>(plan_of(words + one)->launches[0].step).rows.least > 0) << one;
  EXPECT_EQ(plan_of("fwd bf16 b1 hq32 hkv8 sq512 skv8192 d128 varlen tq512 causal seqused page16 pages512")
                ->launches.size(),
            1u);
  // Plain hints are for all sequences.
  EXPECT_EQ(plan_of(words + "seqused page16 pages8192", "tiles=128x128s2")->launches.size(), 1u);
}

// The workspace of an even split follows from the CTAs alone.
TEST(Split, EvenlyHasPlacesForEveryCta) {
  for (const char* const size :
       {"b64 hq32 hkv8 sq1 skv9000", "b64 hq32 hkv8 sq1 skv400000", "b900 hq32 hkv8 sq2 skv9000",
        "b9 hq12 hkv3 sq1 skv60000", "b2 hq71 hkv71 sq1 skv60000"}) {
    const auto plan = plan_of(text("fwd bf16 {} d128 causal seqused page16 pages90000", size));
    ASSERT_TRUE(plan) << plan.failure().text;
    const ForwardStep& step = forward_of(*plan);
    ASSERT_TRUE(fwd_splits_evenly(step.variant)) << plan->line();
    const int ctas = plan->launches[0].grid, heads = static_cast<int>(plan->problem.heads_q) / step.pack_gqa.heads;
    EXPECT_EQ(step.even.ctas, ctas);
    EXPECT_EQ(ctas % step.even.classes, 0) << plan->line();
    EXPECT_EQ(heads % step.even.classes, 0) << plan->line();
    EXPECT_GE(ctas * 16, 264 * 15) << "few CTAs without work: " << plan->line();
    EXPECT_EQ(plan->workspace.part_o.bytes, size_t{2} * ctas * 64 * 128 * sizeof(float));
    EXPECT_LE(plan->workspace.bytes, size_t{64} << 20) << plan->line();
  }
}

// Every kv tile is one CTA's, and combine finds all parts of a tile in order.
TEST(Split, EvenlyGivesEveryTileOnce) {
  for (const int all : {1, 7, 33, 132, 1000, 4097})
    for (const int ctas : {1, 16, 33, 132}) {
      const int of_cta = tiles_of_cta(all, ctas);
      EXPECT_GE(of_cta * ctas, all);
      EXPECT_LT((of_cta - 1) * ctas, all);
      for (const int count : {1, 2, 5, 64, 300})  // a tile's, from kv tile number `first` on
        for (int first = 0; first + count <= all; first += 13) {
          const int begins = first / of_cta, of_first = std::min(count, (begins + 1) * of_cta - first);
          const int last = (first + count - 1) / of_cta;
          if (of_first == count) continue;
          EXPECT_EQ(ctas_that_go_on(count - of_first, of_cta), last - begins);
        }
    }
  for (const int beside : {1, 8}) {
    EXPECT_EQ(workspace_tile_of_part_from(16, 0, beside), workspace_tile_of_part(16, true));
    for (const int part : {1, 2, 3})
      EXPECT_EQ(workspace_tile_of_part_from(16, part, beside), workspace_tile_of_part(16 + part * beside, false));
  }
}

// Tiles of chunks are plain; where one chunk has all keys that causal rows see, there are none.
TEST(Packed, AndSplitTilesHaveNoChunks) {
  const auto variant = [](const std::string& words) {
    const auto plan = plan_of("fwd bf16 b2 hq8 hkv2 " + words);
    EXPECT_TRUE(plan) << plan.failure().text;
    return forward_of(*plan).variant;
  };
  EXPECT_EQ(variant("sq1 skv3000 d128 causal chunk=3000"), variant("sq1 skv3000 d128 causal"));
  for (const char* const words :
       {"sq1 skv3000 d128 causal chunk=2999", "sq1 skv3000 d128 chunk=3000",
        "sq4000 skv3000 d128 causal chunk=3000 topleft", "sq1 skv100 d128 varlen tq9 tkv300 causal chunk=200"}) {
    EXPECT_EQ(variant(words).mask, Mask::chunk) << words;
    EXPECT_FALSE(variant(words).pack_gqa || fwd_splits(variant(words))) << words;
  }
}

TEST(Hints, ThatCutAreRefusedWhereNothingWouldHeedThem) {
  const auto refused = [](const char* line, const char* words) {
    const auto plan = plan_of(line, words);
    EXPECT_FALSE(plan) << words;
    return plan ? "" : plan.failure().text;
  };
  EXPECT_NE(refused("bwd bf16 b1 hq4 hkv4 sq64 skv64 d64", "parts=2").find("parts=2 is a hint for forward"),
            std::string::npos);
  EXPECT_NE(refused("bwd bf16 b1 hq4 hkv4 sq64 skv64 d64", "packgqa=1").find("Leave packgqa out"), std::string::npos);
  EXPECT_NE(
      refused("fwd e4m3 b1 hq4 hkv4 sq300 skv640 d64", "parts=2").find("plain tiles of 8-bit q have no split-KV"),
      std::string::npos);
  for (const char* const word : {"acc", "alibi", "causal chunk=100"})
    EXPECT_NE(refused(("fwd bf16 b1 hq4 hkv4 sq64 skv640 d64 " + std::string(word)).c_str(), "packgqa=1")
                  .find("packgqa=1 is a hint for problems without accumulate, attention_chunk and alibi"),
              std::string::npos);
  EXPECT_NE(refused("fwd bf16 b1 hq4 hkv4 sq64 skv640 d64", "packgqa=1 tiles=128x64s3").find("64 rows"),
            std::string::npos);
  for (const char* const word : {"parts=0", "parts=-1", "parts=5000", "parts=x", "packgqa=2", "packgqa"}) {
    Hints none;
    EXPECT_FALSE(none.read(word)) << word;
  }
}

}  // namespace
}  // namespace froghopper
