// SPDX-License-Identifier: Apache-2.0
// The contract's own functions, which kernels run too: the order of work items and the mask rule. Compared with
// counting and with the definition of a mask, key by key.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ostream>
#include <vector>

#include "contract/bwd_params.h"
#include "contract/mask.h"
#include "contract/order.h"

namespace froghopper {
namespace {

// ---- Order ----

struct Shape {
  int pairs, items_of_pair, section, tail, in_sections;
};

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (int pairs : {1, 2, 3, 7, 24, 100})
    for (int items_of_pair : {1, 2, 3, 8, 33})
      for (int section : {1, 2, 5, 24, pairs})
        for (int tail : {0, 1, items_of_pair / 2, items_of_pair - 1})
          if (section <= pairs && tail < items_of_pair)
            for (int in_sections : {pairs, pairs / 2 / section * section})
              all.push_back({pairs, items_of_pair, section, tail, in_sections});
  return all;
}

TEST(Order, FixedLengthsVisitEveryItemOnce) {
  for (const auto& [pairs, items_of_pair, section, tail, in_sections] : shapes())
    for (bool tiles_falling : {false, true}) {
      const Order order = {pairs * items_of_pair, pairs, items_of_pair, section, in_sections, tail, 0};
      std::vector<int> visits(order.items);
      for (int number = 0; number < order.items; ++number) {
        const auto [pair, index] = item_at(order, number, tiles_falling);
        ASSERT_TRUE(pair >= 0 && pair < pairs && index >= 0 && index < items_of_pair) << number;
        ++visits[pair * items_of_pair + index];
      }
      EXPECT_EQ(std::count(visits.begin(), visits.end(), 1), order.items)
          << pairs << " pairs, " << items_of_pair << " items each, section " << section << ", tail " << tail << ", "
          << in_sections << " in sections";
    }
}

// Of one pair the tiles come in order, which CTAs that add in order rely on: of the first pairs the last one first.
// That is so exactly where dq_order_fits() says it, except for a single tile, which always comes in order.
TEST(Order, TilesOfAPairComeInOrderFromTheLightestOrTheHeaviest) {
  for (const auto& [pairs, items_of_pair, section, tail, in_sections] : shapes())
    // Gradients have no tail.
    for (int pairs_light_first = 0; pairs_light_first <= pairs && tail == 0; ++pairs_light_first) {
      const Order order = {pairs * items_of_pair, pairs, items_of_pair, section, in_sections, tail, 0};
      std::vector<int> taken(pairs);
      bool in_order = true;
      for (int number = 0; number < order.items; ++number) {
        const ItemOfPair item = item_in_dq_order(order, number, pairs_light_first);
        ASSERT_TRUE(item.pair >= 0 && item.pair < pairs) << number;
        const int its = taken[item.pair]++;
        in_order = in_order && item.index_in_pair == (item.pair < pairs_light_first ? items_of_pair - 1 - its : its);
      }
      EXPECT_EQ(in_order, items_of_pair == 1 || dq_order_fits(order, pairs_light_first))
          << pairs << " pairs, " << items_of_pair << " tiles, section " << section << ", " << in_sections
          << " in sections, light first " << pairs_light_first;
      EXPECT_EQ(std::ranges::count(taken, items_of_pair), pairs);
    }
}
TEST(Order, DqOrderDoesNotFitWithATail) { EXPECT_FALSE(dq_order_fits(Order{8, 4, 2, 2, 4, /*tail=*/1, 0}, 2)); }

// In a section no item is heavier than the one before; the tail comes last, over all pairs.
TEST(Order, HeavyItemsComeFirstAndTheTailLast) {
  for (const auto& [pairs, items_of_pair, section, tail, in_sections] : shapes()) {
    const Order order = {pairs * items_of_pair, pairs, items_of_pair, section, in_sections, tail, 0};
    const int first_of_tail = pairs * (items_of_pair - tail);
    ItemOfPair before = item_at(order, 0, true);
    for (int number = 1; number < order.items; ++number) {
      const ItemOfPair item = item_at(order, number, true);
      EXPECT_EQ(item.index_in_pair < tail, number >= first_of_tail) << number;
      const auto section_of = [&](int pair) { return std::min(pair, in_sections) / section; };
      const bool together =
          number >= first_of_tail + 1 || (number < first_of_tail && section_of(item.pair) == section_of(before.pair));
      if (together) { EXPECT_LE(item.index_in_pair, before.index_in_pair) << number; }
      before = item;
    }
  }
}

TEST(Order, RaggedSequencesVisitEveryItemOnce) {
  for (const auto& [heads, items_of_pair, section, tail, in_sections] : shapes()) {
    std::vector<int> visits(heads * items_of_pair);
    for (int number = 0; number < heads * items_of_pair; ++number) {
      const auto [head, index] = item_in_sequence(number, items_of_pair, heads, section);
      ASSERT_TRUE(head >= 0 && head < heads && index >= 0 && index < items_of_pair) << number;
      ++visits[head * items_of_pair + index];
    }
    EXPECT_EQ(std::count(visits.begin(), visits.end(), 1), heads * items_of_pair)
        << heads << " heads, " << items_of_pair << " items each, section " << section;
  }
}

TEST(Order, EveryLengthHasOneWeightClassAndLongerOnesComeFirst) {
  for (int longest : {0, 1, 2, 3, 7, 8, 1000, 1 << 29})
    for (int keys : {0, 1, 2, 3, 4, 7, 8, 250, 251, 500, 501, 1000, 2000, 1 << 29}) {
      const int weight_class = weight_class_of(keys, longest);
      EXPECT_TRUE(weight_class >= 0 && weight_class < weight_classes) << keys << " of " << longest;
      EXPECT_LE(weight_class_of(keys + 1, longest), weight_class) << keys << " of " << longest;
    }
  EXPECT_EQ(weight_class_of(501, 1000), 0);
  EXPECT_EQ(weight_class_of(500, 1000), 1);
  EXPECT_EQ(weight_class_of(251, 1000), 1);
  EXPECT_EQ(weight_class_of(250, 1000), 2);
  EXPECT_EQ(weight_class_of(63, 1000), 2);
  EXPECT_EQ(weight_class_of(62, 1000), 3);
}

// Of no item are there more tiles of its sequence still to come than of the one before it; so of one sequence and head
// tiles come in turn, which the order of adds to grad_q relies on.
TEST(Order, SequencesTogetherVisitEveryItemOnceTheHeaviestFirst) {
  for (const std::vector<int>& tiles : std::vector<std::vector<int>>{
           {1}, {7}, {0, 3, 0}, {1, 2, 3, 4}, {4, 4, 4}, {33, 1, 8, 0, 8, 2}, std::vector<int>(32, 5)})
    for (int heads : {1, 2, 3, 8}) {
      const auto above = [&](int level) {
        int all = 0;
        for (int its : tiles) all += std::max(0, its - level);
        return all;
      };
      const int most = std::ranges::max(tiles);
      std::vector<int> items_of_level(most + 1);
      int last_level = most;
      for (int number = 0; number < above(0) * heads; ++number) {
        const auto [level, index] = level_at(number, heads, most, above);
        ASSERT_TRUE(level >= 1 && level <= last_level) << number;
        EXPECT_EQ(index, items_of_level[level]++) << number;
        last_level = level;
      }
      for (int level = 1; level <= most; ++level)
        EXPECT_EQ(items_of_level[level], heads * std::ranges::count_if(tiles, [&](int its) { return its >= level; }));
    }
}

// ---- Mask rule ----

constexpr int unbounded = -1;  // as users say it

struct Case {
  int rows, keys, diagonal, left, right, chunk = 0;

  int chunk_of(int key) const { return static_cast<int>(std::floor(static_cast<double>(key) / chunk)); }
  bool attends(int row, int key) const {
    const bool after_left = left == unbounded || key >= row + diagonal - left;
    const bool before_right = right == unbounded || key <= row + diagonal + right;
    const bool in_chunk = chunk == 0 || chunk_of(key) == chunk_of(row + diagonal);
    return key >= 0 && key < keys && after_left && before_right && in_chunk;
  }
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.rows << " rows, " << c.keys << " keys, diagonal " << c.diagonal << ", window " << c.left << ", "
             << c.right << ", chunks of " << c.chunk;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (int rows : {1, 5, 40})
    for (int keys : {0, 1, 7, 16, 33, 64})
      for (int diagonal : {0, keys - rows})
        for (int left : {unbounded, 0, 3, 20, 100})
          for (int right : {unbounded, 0, 5, 50})
            for (int chunk : {0, 1, 7, 16, 40}) all.push_back({rows, keys, diagonal, left, right, chunk});
  return all;
}

template <Mask Kind, class Int>
MaskRule<Kind, Int> rule_of(const Case& c) {
  return {c.keys, c.diagonal, c.left == unbounded ? no_bound<Int> : c.left,
          c.right == unbounded ? no_bound<Int> : c.right, c.chunk};
}

// visit(the host's rule)
template <class Visit>
void on_host(const Case& c, Visit&& visit) {
  if (c.chunk > 0) return visit(rule_of<Mask::chunk, std::int64_t>(c));
  visit(rule_of<Mask::window, std::int64_t>(c));
}

// visit(the rule of every kind of kernel that can compute this case)
template <class Visit>
void for_each_kind(const Case& c, Visit&& visit) {
  if (c.chunk > 0) return visit(rule_of<Mask::chunk, int>(c));
  if (c.left == unbounded && c.right == unbounded) visit(rule_of<Mask::none, int>(c));
  if (c.left == unbounded) visit(rule_of<Mask::causal, int>(c));
  visit(rule_of<Mask::window, int>(c));
}

TEST(MaskRule, IsItsDefinitionOnTheHost) {
  for (const Case& c : cases()) {
    on_host(c, [&](const auto& rule) {
      for (int row = 0; row < c.rows; ++row)
        for (int key = 0; key < c.keys + 5; ++key)
          EXPECT_EQ(rule.begin(row) <= key && key < rule.end(row), c.attends(row, key))
              << c << ": " << row << ", " << key;
    });
  }
}

TEST(MaskRule, OfEveryKernelIsTheHosts) {
  for (const Case& c : cases()) {
    on_host(c, [&](const auto& host) {
      for_each_kind(c, [&](const auto& rule) {
        for (int row = 0; row < c.rows; ++row) {
          EXPECT_EQ(rule.begin(row), host.begin(row)) << c << ": row " << row;
          EXPECT_EQ(rule.end(row), host.end(row)) << c << ": row " << row;
        }
      });
    });
  }
}

// The largest sizes that a kernel takes: sums of rows, diagonal and bounds still fit an int.
TEST(MaskRule, FitsAnIntAtTheLargestSizes) {
  constexpr int most = (1 << 29) - 1;
  for (const Case& c : {Case{most, most, 0, unbounded, 0}, Case{most, 1, 1 - most, unbounded, unbounded},
                        Case{1, most, most - 1, unbounded, unbounded}, Case{most, most, 0, most, most},
                        Case{most, most, 0, unbounded, 0, no_bound<int>}, Case{most, 1, 1 - most, most, most, most},
                        Case{1, most, most - 1, unbounded, unbounded, 4096}})
    on_host(c, [&](const auto& host) {
      const auto same = [&](const auto& rule) {
        for (int row : {0, c.rows / 2, c.rows - 1}) {
          EXPECT_EQ(rule.begin(row), host.begin(row)) << c << ": row " << row;
          EXPECT_EQ(rule.end(row), host.end(row)) << c << ": row " << row;
        }
      };
      c.chunk > 0 ? same(rule_of<Mask::chunk, int>(c)) : same(rule_of<Mask::window, int>(c));
    });
}

// first and last row of a q tile, kv tile's rows
template <class Visit>
void for_each_tiling(const Case& c, Visit&& visit) {
  for (int tile_q : {1, 8, 64})
    for (int tile_kv : {1, 4, 16})
      for (int first = 0; first < c.rows; first += tile_q)
        visit(first, std::min(first + tile_q, c.rows) - 1, tile_kv);
}

TEST(MaskRule, TilesHoldEveryKeyThatIsSeenAndNoTileTooMany) {
  for (const Case& c : cases())
    for_each_kind(c, [&](const auto& rule) {
      for_each_tiling(c, [&](int first, int last, int tile_kv) {
        const auto tiles = rule.tiles(first, last, tile_kv);
        ASSERT_LT(tiles.begin, tiles.end) << c;
        int lowest = c.keys, highest = -1;  // keys that a row of the tile sees
        for (int row = first; row <= last; ++row)
          for (int key = 0; key < c.keys; ++key)
            if (c.attends(row, key)) lowest = std::min(lowest, key), highest = std::max(highest, key);
        if (highest < 0) {
          EXPECT_EQ(tiles.end - tiles.begin, 1) << c << ": rows " << first << " to " << last;
        } else {
          EXPECT_EQ(tiles.begin, lowest / tile_kv) << c << ": rows " << first << " to " << last;
          EXPECT_EQ(tiles.end, highest / tile_kv + 1) << c << ": rows " << first << " to " << last;
        }
      });
    });
}

// The kernel walks tiles from the last to the first and takes those between the two bounds without a mask.
TEST(MaskRule, NoRowOfAnUncutTileHasAHiddenKeyThere) {
  for (const Case& c : cases())
    for_each_kind(c, [&](const auto& rule) {
      for_each_tiling(c, [&](int first, int last, int tile_kv) {
        const int uncut = rule.lowest_interior_tile(last, tile_kv),
                  cut = rule.lowest_upper_boundary_tile(first, tile_kv);
        for (int key = std::max(0, uncut * tile_kv); key < cut * tile_kv; ++key)
          for (int row = first; row <= last; ++row)
            EXPECT_TRUE(c.attends(row, key)) << c << ": " << row << ", " << key << ", tiles of " << tile_kv;
        if (uncut > 0) {
          EXPECT_FALSE(c.attends(last, (uncut - 1) * tile_kv)) << c << ": the tile below is cut for row " << last;
        }
      });
    });
}

// So the guarded softmax, which needs a reference, never meets a row without one.
TEST(MaskRule, RowsHaveSeenAKeyBeforeTheFirstUncutTile) {
  for (const Case& c : cases())
    for_each_kind(c, [&](const auto& rule) {
      for_each_tiling(c, [&](int first, int last, int tile_kv) {
        const int cut = rule.lowest_upper_boundary_tile(first, tile_kv),
                  uncut = rule.lowest_interior_tile(last, tile_kv);
        if (cut <= uncut) return;  // no uncut tile
        for (int row = first; row <= last; ++row) {
          bool seen = false;
          for (int key = cut * tile_kv; key < c.keys; ++key) seen = seen || c.attends(row, key);
          EXPECT_TRUE(seen) << c << ": row " << row << ", tiles of " << tile_kv;
        }
      });
    });
}

// ---- The other way round, as the backward pass walks: keys stay, rows go by --------------------------------------

TEST(MaskRule, RowsThatSeeAKeyAreInARange) {
  for (const Case& c : cases())
    for_each_kind(c, [&](const auto& rule) {
      for (int key = 0; key < c.keys; ++key)
        for (int row = 0; row < c.rows; ++row)
          EXPECT_EQ(row >= rule.first_row(key) && row < rule.end_row(key), c.attends(row, key))
              << c << ": row " << row << ", key " << key;
    });
}

// first and last key of a kv tile, q tile's rows
template <class Visit>
void for_each_kv_tiling(const Case& c, Visit&& visit) {
  for (int tile_kv : {1, 4, 16})
    for (int tile_q : {1, 8, 64})
      for (int first = 0; first < c.keys; first += tile_kv)
        visit(first, std::min(first + tile_kv, c.keys) - 1, tile_q);
}

TEST(MaskRule, QTilesHoldEveryRowThatSeesAKeyAndNoTileTooMany) {
  for (const Case& c : cases())
    for_each_kind(c, [&](const auto& rule) {
      for_each_kv_tiling(c, [&](int first, int last, int tile_q) {
        const auto tiles = rule.q_tiles(first, last, c.rows, tile_q);
        int lowest = c.rows, highest = -1;  // rows that see a key of the tile
        for (int row = 0; row < c.rows; ++row)
          for (int key = first; key <= last; ++key)
            if (c.attends(row, key)) lowest = std::min(lowest, row), highest = std::max(highest, row);
        EXPECT_EQ(tiles.begin < tiles.end, highest >= 0) << c << ": keys " << first << " to " << last;
        if (highest < 0) return;
        EXPECT_EQ(tiles.begin, lowest / tile_q) << c << ": keys " << first << " to " << last;
        EXPECT_EQ(tiles.end, highest / tile_q + 1) << c << ": keys " << first << " to " << last;
      });
    });
}

TEST(MaskRule, SpansAreAllIterationsAndUnmaskedOnesHideNothing) {
  for (const Case& c : cases())
    for_each_kind(c, [&](const auto& rule) {
      for_each_kv_tiling(c, [&](int first, int last, int tile_q) {
        for (const int count : {last + 1 - first, last + 2 - first}) {  // the second may reach past the last key
          const auto tiles = rule.q_tiles(first, last, c.rows, tile_q);
          const auto spans = rule.spans(first, count, tiles, c.rows, tile_q);
          EXPECT_GE(std::min({spans.masked, spans.unmasked, spans.masked_last}), 0) << c;
          EXPECT_EQ(spans.masked + spans.unmasked + spans.masked_last, tiles.end - tiles.begin) << c;
          const int begin = (tiles.begin + spans.masked) * tile_q;
          for (int row = begin; row < std::min(c.rows, begin + spans.unmasked * tile_q); ++row)
            for (int key = first; key < first + count; ++key)
              EXPECT_TRUE(key < c.keys && c.attends(row, key)) << c << ": row " << row << ", key " << key;
        }
      });
    });
}

// Where CTAs add to grad_q in order, each waits until as many have added as there are kv tiles before its own in
// tiles(). One that never came, or came although tiles() does not know it, would let the others wait for ever.
TEST(MaskRule, KvTilesOfAQTileAreThoseWhoseQTilesHoldIt) {
  for (const Case& c : cases())
    for_each_kind(c, [&](const auto& rule) {
      for (const auto& [tile_q, tile_kv] : {std::pair{8, 16}, {16, 8}, {1, 4}, {64, 1}, {4, 4}})
        for (int first = 0; first < c.rows; first += tile_q) {
          const auto seen = rule.tiles(first, std::min(first + tile_q, c.rows) - 1, tile_kv);
          int visits = 0;
          for (int kv_tile = 0; kv_tile * tile_kv < c.keys; ++kv_tile) {
            const int last = std::min((kv_tile + 1) * tile_kv, c.keys) - 1;
            const auto tiles = rule.q_tiles(kv_tile * tile_kv, last, c.rows, tile_q);
            if (first / tile_q < tiles.begin || first / tile_q >= tiles.end) continue;
            EXPECT_EQ(kv_tile - seen.begin, visits) << c << ": q tile " << first / tile_q << ", kv tile " << kv_tile;
            ++visits;
          }
        }
    });
}

// ---- Rows by fours ----

// A thread of a quad holds two neighbouring columns of every 8, which are rows here, and takes those of 16 at once.
TEST(RowsByFours, LieForOneLoadToBringAThreadsFour) {
  for (int sixteen = 0; sixteen < 64; sixteen += 16)
    for (int thread = 0; thread < 4; ++thread) {
      const int first = sixteen + 2 * thread, index = sixteen + 4 * thread;
      EXPECT_EQ(index_of_row(true, first), index);
      EXPECT_EQ(index_of_row(true, first + 1), index + 1);
      EXPECT_EQ(index_of_row(true, first + 8), index + 2);
      EXPECT_EQ(index_of_row(true, first + 9), index + 3);
    }
  for (int row = 0; row < 128; ++row) EXPECT_EQ(index_of_row(false, row), row);
}

}  // namespace
}  // namespace froghopper
