// SPDX-License-Identifier: Apache-2.0
// contract: the mask rule. The diagonal passes through (r, r + diagonal): query row r. It attends to the keys of
// [begin(r), end(r)); both bounds grow by one a row, or by a chunk where the next one begins. The kernels use it with
// int and their own kind of mask, the host with int64_t and Mask::window, which holds the kinds before it, or
// Mask::chunk.
#pragma once
#include "contract/tile_sequence.h"
#include "contract/types.h"

namespace froghopper {

// A bound further away than any key. Rows and keys of a kernel are fewer than half of it, so that sums fit.
template <class Int>
constexpr Int no_bound = Int{1} << (sizeof(Int) * 8 - 2);

// Iterations of an M tile of keys with one query head, with a mask and without one, in the order in which they come.
template <class Int>
struct Spans {
  Int masked, unmasked, masked_last;
};

template <Mask Kind, class Int = int>
struct MaskRule {
  Int keys;         // of the sequence
  Int diagonal;     // 0, or keys - rows for a mask aligned to the bottom-right corner
  Int left, right;  // keys attended before and after the diagonal; no_bound: all
  Int chunk = 0;    // Mask::chunk: keys of a chunk, from key 0 on; at most no_bound

  constexpr Int begin(Int row) const {
    if constexpr (!bounded_below(Kind)) return 0;
    Int first = row + diagonal - left;
    if constexpr (Kind == Mask::chunk) first = larger(first, chunk_of(row + diagonal));
    return first > 0 ? first : 0;
  }
  constexpr Int end(Int row) const {
    if constexpr (Kind == Mask::none) return keys;
    Int last = row + diagonal + right + 1;
    if constexpr (Kind == Mask::chunk) last = smaller(last, chunk_of(row + diagonal) + chunk);
    return last < keys ? last : keys;
  }

  // The first key of the chunk of this one, which may lie before key 0: rows whose diagonal is there attend to none.
  constexpr Int chunk_of(Int key) const {
    const Int rest = key % chunk;
    return key - (rest < 0 ? rest + chunk : rest);
  }
  static constexpr Int larger(Int a, Int b) { return a > b ? a : b; }
  static constexpr Int smaller(Int a, Int b) { return a < b ? a : b; }

  // The other way round: rows [first_row, end_row) attend to a key, as far as there are rows.
  constexpr Int first_row(Int key) const {
    if constexpr (Kind == Mask::none) return 0;
    Int first = key - diagonal - right;
    if constexpr (Kind == Mask::chunk) first = larger(first, chunk_of(key) - diagonal);
    return first > 0 ? first : 0;
  }
  constexpr Int end_row(Int key) const {
    if constexpr (!bounded_below(Kind)) return no_bound<Int>;
    Int last = key - diagonal + left + 1;
    if constexpr (Kind == Mask::chunk) last = smaller(last, chunk_of(key) + chunk - diagonal);
    return last > 0 ? last : 0;
  }
  // The q tiles in which a row of a sequence of `rows` rows attends to any key of [first, last]; empty: begin == end.
  constexpr Range<Int> q_tiles(Int first, Int last, Int rows, Int tile_q) const {
    const Int from = first_row(first), bound = end_row(last), to = bound < rows ? bound : rows;
    if (from >= to) return {0, 0};
    return {from / tile_q, (to + tile_q - 1) / tile_q};
  }
  // Of the q tiles [tiles.begin, tiles.end), one after the other: those in which some row does not attend to all of
  // `count` keys from `first` on, those in which all rows do, and the others again.
  constexpr Spans<Int> spans(Int first, Int count, Range<Int> tiles, Int rows, Int tile_q) const {
    if (first + count > keys) return {tiles.end - tiles.begin, 0, 0};
    const Int bound = end_row(first), from = (first_row(first + count - 1) + tile_q - 1) / tile_q;
    const Int to = bound >= rows ? tiles.end : bound / tile_q;
    const Int begin = from < tiles.begin ? tiles.begin : from < tiles.end ? from : tiles.end;
    const Int end = to < begin ? begin : to < tiles.end ? to : tiles.end;
    return {begin - tiles.begin, end - begin, tiles.end - end};
  }

  // The kv tiles that rows [first, last] attend to any key of. If they attend to none: the one tile above all keys
  // (TileSequence), which TMA fills with zeros and the mask removes.
  constexpr TileSequence<Int> tiles(Int first, Int last, Int tile_kv) const {
    const Int from = begin(first) / tile_kv, to = (end(last) + tile_kv - 1) / tile_kv;
    const Int after = ((keys > 1 ? keys : 1) + tile_kv - 1) / tile_kv;
    if (end(last) > 0 && from < to) return {from, to};
    return {after, after + 1};
  }

  // This tile and those of higher keys are boundary tiles of the mask's upper bound for one of the rows from `first`
  // on. It is the tile in which row `first` ends, so every row has attended to a key once it is done.
  constexpr Int lowest_upper_boundary_tile(Int first, Int tile_kv) const {
    const Int last = end(first) - 1;
    return (last > 0 ? last : 0) / tile_kv;
  }
  // Tiles below this one are boundary tiles of the mask's lower bound for one of the rows up to `last`.
  constexpr Int lowest_interior_tile(Int last, Int tile_kv) const { return (begin(last) + tile_kv - 1) / tile_kv; }
};

}  // namespace froghopper
