// SPDX-License-Identifier: Apache-2.0
// contract: how rows of several query heads share a tile, and how the keys of a tile are cut into parts.
//
// PackGQA. Where there are few query rows, a tile has rows of several query heads that share a key head, so that K
// and V are read once for all of them: row r is row r % rows of head r / rows, as a TMA box lays them down. Rows
// beyond heads x rows are padding: their q is zero and they are never stored.
//
// Split. Where there are few tiles, each one's kv tiles are cut into parts, and a part is a work item. What a part
// makes of a row, its sums as they are and the row max they count from, goes to the workspace, and the kernel
// `combine` sums the parts in the order of their numbers: the same bits, whoever was first. How many parts a tile has
// follows from its own keys, so tiles with one part go straight to O and lse. (In FlashAttention-3 a part is a split,
// and SplitParams::most is num_splits.)
//
// Split evenly. Where lengths are on the device, a fixed number of keys in a part is a guess. So the kv tiles of all q
// tiles are numbered, and every CTA has equally many of them, as in Stream-K (Osama et al. 2023). Heads (with
// PackGQA, the heads of a tile together) are divided into C classes (EvenParams::classes): class k has the heads
// k, k + C, ... and the CTAs k, k + C, .... Each class has its own numbering of kv tiles, by sequence, head, q tile
// and, within a q tile, in descending key order; the j-th CTA of a class has the kv tiles [j n, (j + 1) n), where n is
// tiles_of_cta(). So CTAs that run at the same time read the same rows of K and V, whose heads lie together in memory,
// and the CTA of a class that comes after CTA c is c + C.
// A CTA then has the end of one q tile, or a piece of it; whole q tiles; and the beginning of another. Whole q tiles
// go straight to O and lse. The others leave what they make of a row in one of two tiles that their CTA has in the
// workspace, whose size so follows only from the number of CTAs. A record of each CTA (SharedQTile) tells `combine`
// which q tile goes on in the next CTAs of the class.
#pragma once
#include "contract/mask.h"
#include "contract/tile_sequence.h"

namespace froghopper {

struct PackGqaParams {
  int heads;  // query heads in a tile
  int rows;   // query rows of each in a tile: 64 / heads, rounded down
};

// Softmax of a row over some keys, before the division.
struct PartOfRow {
  float row_max;  // as attn::OnlineSoftmax::row_max: it may be stale
  // Of weights. Negative: the row is large (OnlineSoftmax::large_magnitude), and row_max is a score as it is, which has
  // not been multiplied by the scale. Only parts of OnlineSoftmax have large rows.
  float sum;
};

// A q tile whose kv tiles several CTAs share, recorded by the CTA that begins it.
struct alignas(16) SharedQTile {
  int batch, first_row;  // of o
  int rows, head;        // rows of a head in the tile; its first head
  int parts;             // CTAs that have a part of it; 0: this CTA begins no such tile
};

// Even splits only.
struct EvenParams {
  int classes;         // of heads; not the weight classes of sequences (contract/order.h)
  int heads_of_class;  // which each of its CTAs takes one after the other
  int sequences;
  int ctas_of_class;
  SharedQTile* shared_q_tiles;  // [CTA]: written by the forward kernel, read by combine
};

struct SplitParams {
  float* o;             // [part][row][head][dim_v]: weights x V; evenly: [CTA][2][row of the tile][dim_v]
  PartOfRow* rows;      // one for each row of this o: likewise, without dim_v
  long long row_heads;  // rows x heads: from one part to the next
  int tiles;            // kv tiles of a part, as planned: tiles_of_part()
  int most;             // parts that a q tile has at most
  EvenParams even;
};

// Even splits: the most classes that divide all heads equally and leave at most a sixteenth of the CTAs without work.
constexpr int classes_of_heads(int heads, int ctas) {
  for (int classes = heads < ctas ? heads : ctas; classes > 1; --classes)
    if (heads % classes == 0 && ctas % classes * 16 <= ctas) return classes;
  return 1;
}
// Kv tiles of a CTA.
constexpr int tiles_of_cta(int tiles_of_class, int ctas_of_class) {
  return tiles_of_class / ctas_of_class + (tiles_of_class % ctas_of_class > 0);
}
// The CTAs that go on with a q tile, after the one that begins it, where `left` of its kv tiles are left for them.
constexpr int ctas_that_go_on(int left, int of_cta) { return (left - 1) / of_cta + 1; }
// The tile of the workspace in which a CTA leaves a part: its second one is for the q tile that it begins.
constexpr int workspace_tile_of_part(int cta, bool begins) { return 2 * cta + begins; }
// The tile of part number `part` of the q tile that `cta` begins.
constexpr int workspace_tile_of_part_from(int cta, int part, int classes) {
  return workspace_tile_of_part(cta + part * classes, part == 0);
}

// How many kv tiles a part has, of a q tile that attends to `tiles`: as many as planned; or more where the sequence is
// longer than it was planned for, because the workspace has room for `most` parts.
template <class Int>
constexpr Int tiles_of_part(TileSequence<Int> tiles, Int planned, Int most) {
  const Int least = (tiles.count() - 1) / most + 1;  // there is one tile at least
  return planned > least ? planned : least;
}
template <class Int>
constexpr Int parts_of(TileSequence<Int> tiles, Int planned, Int most) {
  return (tiles.count() - 1) / tiles_of_part(tiles, planned, most) + 1;
}
// The number of a part of a fixed split, where each part has `size` of these tiles. Numbers rise with the keys. (Of an
// even split, part 0 is that of the CTA that begins the q tile, and has the highest keys.)
template <class Int>
constexpr Int number_of_part(TileSequence<Int> tiles, TileSequence<Int> part, Int size) {
  return (part.last() - tiles.last()) / size;
}
// Part number `part` of them; without tiles: there is no such part.
template <class Int>
constexpr TileSequence<Int> part_of(TileSequence<Int> tiles, Int part, Int planned, Int most) {
  const Int size = tiles_of_part(tiles, planned, most), begin = tiles.begin + part * size;
  return {begin, tiles.end - begin < size ? tiles.end : begin + size};
}

// Batch-invariant variants (FwdVariant::batch_invariant). Parts begin at multiples of batch_invariant_part_tiles tiles
// of batch_invariant_tile_kv keys, counted from key 0, whatever a q tile attends to, so that a row's keys are cut at
// the same keys in every q tile. Of a sequence that is longer than it was planned for, the part with the highest keys
// has the rest.
constexpr int batch_invariant_tile_kv = 64;
constexpr int batch_invariant_part_tiles = 16;
template <class Int>
constexpr Int batch_invariant_part_at(Int tile) {
  return tile / batch_invariant_part_tiles;
}
template <class Int>
constexpr Range<Int> batch_invariant_parts(TileSequence<Int> tiles, Int most) {
  const Int begin = batch_invariant_part_at(tiles.last()), end = batch_invariant_part_at(tiles.first());
  return {begin < most ? begin : most - 1, (end < most ? end : most - 1) + 1};
}
// How many parts the q tiles of a sequence with `keys` keys have: a tile of rows that attend to no key has the kv tile
// above all keys (MaskRule::tiles), which may be the first one of a part.
template <class Int>
constexpr Int batch_invariant_parts_of_sequence(Int keys, Int most) {
  const Int above = ((keys > 1 ? keys : 1) + batch_invariant_tile_kv - 1) / batch_invariant_tile_kv;
  const Int parts = batch_invariant_part_at(above) + 1;
  return parts < most ? parts : most;
}
// Part number `part`; without tiles: there is no such part.
template <class Int>
constexpr TileSequence<Int> batch_invariant_part_of(TileSequence<Int> tiles, Int part, Int most) {
  const Int begin = part * batch_invariant_part_tiles, end = begin + batch_invariant_part_tiles;
  return {begin > tiles.begin ? begin : tiles.begin, end < tiles.end && part + 1 < most ? end : tiles.end};
}

// The part in which a tile lies, from that tile on.
template <class Int>
constexpr TileSequence<Int> batch_invariant_part_from(TileSequence<Int> tiles, Int tile) {
  const Int begin = batch_invariant_part_at(tile) * batch_invariant_part_tiles;
  return {begin > tiles.begin ? begin : tiles.begin, tile + 1};
}

}  // namespace froghopper
