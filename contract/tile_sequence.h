// SPDX-License-Identifier: Apache-2.0
// contract: which KV tiles a work item visits, and in which order. The schedule makes a sequence. Loaders, Consumers,
// the parts of split-KV (contract/split.h) and the planner's model of time ask it. Today the tiles form one range. A
// list of tiles, or a range of which some are skipped, changes this file and everything that takes the tiles of a
// sequence for neighbours, or a number for a position:
//   contract/mask.h                      MaskRule::tiles() gives one range
//   contract/split.h                     parts are ranges, cut at equal distances
//   device/fwd/schedule.cuh              EvenSchedule cuts a range in two or three
//   device/fwd/rows.cuh                  MTile: first_tile() and headroom(); lowest_upper_boundary_tile() and
//                                        lowest_interior_tile() tell boundary tiles from interior ones by one number
//   device/fwd/consumer.cuh              take_item() shuffles begin and end; without a mask only first_kv_iteration()
//                                        masks, so only the tile visited first may go beyond the keys
//   device/fwd/mma_order.cuh             skip() counts from begin to end
//   device/fwd/kv_loop_of_parts.cuh      the tile visited before a tile is kv_tile + 1
//   device/fwd/promotion.cuh             a promotion is due by the tile's number
//   device/fwd/scales.cuh                the tile after the last one is read ahead; it may be -1
//   device/fwd/kv_source.cuh             the block table is read ahead for the keys before
//   device/fwd/token_scales.cuh          counts tiles down by itself, up to three ahead
//   device/fwd/part_epilogue.cuh         the number of a part follows from its last tile
//   device/fwd/batch_invariant.cuh       an item has one part if the numbers of its first and last tile are of one
//   device/fwd/combine.cuh               how many parts a row has follows from the number of its tiles
//   device/bwd/schedule.cuh              rank_of_tile() counts the kv tiles that add before by begin and end
#pragma once

namespace froghopper {

template <class Int>
struct Range {
  Int begin, end;
};

// The tiles of [begin, end), visited in descending key order: first() is the tile with the highest keys, last() the one
// with the lowest. Where a mask has an upper bound, its boundary tiles are visited first, and every row has attended to
// a key before the guarded softmax begins.
// There are three ways to have no keys:
//   none()          begin == end    no item is left: the end marker of the forward kernel (WorkItem::is_end)
//   without_keys()  {1, 0}          a part of split-KV in which the q tile attends to no key: count() is negative, so
//                                   that it differs from the end marker. It is never published (WorkItem::has_no_keys)
//   {n, n + 1}      n above all     a q tile that attends to no key at all. It visits one tile, whose keys are all
//                   keys            masked, so that its rows of O and lse are written (MaskRule::tiles)
template <class Int>
struct TileSequence {
  Int begin, end;

  constexpr Int count() const { return end - begin; }
  constexpr Int first() const { return end - 1; }
  constexpr Int last() const { return begin; }
  constexpr bool is_last(Int tile) const { return tile == begin; }

  constexpr bool none() const { return begin == end; }
  static constexpr TileSequence without_keys() { return {1, 0}; }

  constexpr bool not_past_last(Int tile) const { return tile >= begin; }  // of a tile that next() has given
  static constexpr Int next(Int tile) { return tile - 1; }
  // The next one; the last one again where there is none.
  constexpr Int next_or_last(Int tile) const { return next(tile) > begin ? next(tile) : begin; }
  // The one after which `count` tiles are left; the first one of a sequence of no more than `count` tiles.
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

  // In the order of the visit: a tile and those after it; those before it.
  constexpr TileSequence visited_from(Int tile) const { return {begin, tile + 1}; }
  constexpr TileSequence visited_before(Int tile) const { return {tile + 1, end}; }
};

}  // namespace froghopper
