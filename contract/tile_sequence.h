// SPDX-License-Identifier: Apache-2.0
// contract: which KV tiles a work item visits, and in which order. The schedule makes a sequence. Loaders, Consumers,
// the parts of split-KV and the planner's model of time ask it, and know nothing else about the tiles. They are those
// of one range today; a list of tiles, or a range of which some are skipped, would answer the same questions.
#pragma once

namespace froghopper {

template <class Int>
struct Range {
  Int begin, end;
};

// The tiles of [begin, end), from the last one to the first one: where a mask has an upper bound, its boundary tiles
// come first, so that every row has attended to a key before the guarded softmax begins.
template <class Int>
struct TileSequence {
  Int begin, end;

  constexpr Int count() const { return end - begin; }
  constexpr Int first() const { return end - 1; }
  constexpr Int last() const { return begin; }
  constexpr bool is_last(Int tile) const { return tile == begin; }

  constexpr bool none() const { return begin == end; }

  constexpr bool has(Int tile) const { return tile >= begin; }  // of a tile that next() has given
  static constexpr Int next(Int tile) { return tile - 1; }
  // The next one; the last one again where there is none.
  constexpr Int next_or_last(Int tile) const { return next(tile) > begin ? next(tile) : begin; }
  // The one after which so many are left; the first one where there are fewer.
  constexpr Int with_left(Int count) const { return begin + count < first() ? begin + count : first(); }

  // for (Int tile : sequence.in_order()) visits all of them.
  struct Iterator {
    Int tile;
    constexpr Int operator*() const { return tile; }
    constexpr void operator++() { --tile; }
    constexpr bool operator!=(Iterator of_last) const { return tile >= of_last.tile; }
  };
  struct InOrder {
    Int first_tile, last_tile;
    constexpr Iterator begin() const { return {first_tile}; }
    constexpr Iterator end() const { return {last_tile}; }
  };
  constexpr InOrder in_order() const { return {first(), last()}; }

  // Those from a tile on, and those before it.
  constexpr TileSequence from(Int tile) const { return {begin, tile + 1}; }
  constexpr TileSequence before(Int tile) const { return {tile + 1, end}; }
};

}  // namespace froghopper
