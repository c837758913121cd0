// SPDX-License-Identifier: Apache-2.0
// contract: which KV tiles a work item visits, and in which order. The schedule makes a sequence. Loaders, Consumers,
// the parts of split-KV (contract/split.h) and the planner's model of time ask it. Today the tiles form one range. A
// list of tiles, or a range of which some are skipped, changes this file, split.h, and the places where a tile's number
// counts: MTile::first_tile() and max_offset(), Promotion, and the table reads ahead in kv_source.cuh.
#pragma once

namespace froghopper {

template <class Int>
struct Range {
  Int begin, end;
};

// The tiles of [begin, end), in descending order, so that first() is the tile with the largest number. Where a mask has
// an upper bound, its boundary tiles come first in this order, and every row has attended to a key before the guarded
// softmax begins.
template <class Int>
struct TileSequence {
  Int begin, end;

  constexpr Int count() const { return end - begin; }
  constexpr Int first() const { return end - 1; }
  constexpr Int last() const { return begin; }
  constexpr bool is_last(Int tile) const { return tile == begin; }

  constexpr bool none() const { return begin == end; }
  // Of a part of split-KV that has no keys: count() is negative, so that it differs from none().
  static constexpr TileSequence without_keys() { return {1, 0}; }

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
