// SPDX-License-Identifier: Apache-2.0
// device/bwd: which work item a ticket means. The order is contract/order.h's, which tests run on the host.
#pragma once
#include "contract/bwd_params.h"
#include "contract/bwd_variant.h"
#include "contract/fields.h"
#include "contract/mask.h"
#include "contract/order.h"
#include "contract/tile_sequence.h"
#include "contract/types.h"
#include "device/attn/lengths.cuh"
#include "device/attn/mask.cuh"
#include "device/attn/sequences.cuh"
#include "device/bwd/q_tile_sequence.cuh"
#include "device/bwd/score_mod.cuh"
#include "device/ptx/registers.cuh"
#include "device/tile/accum.cuh"

namespace froghopper::bwd {

// One kv tile of a key head, and the q tiles of every query head that reads it.
struct alignas(16) WorkItem {
  int kv_tile, head_kv, sequence;  // kv_tile is negative: no item is left
  QTileSequence q;                 // none where no row attends to the keys
  bool keys_falling;               // deterministic only: its pair's kv tiles come in descending key order
  attn::Lengths lengths;           // of the sequence

  __device__ bool is_end() const { return kv_tile < 0; }
};

// What the QLoader tells the Consumers about an iteration, so that they need not keep it in registers.
struct QIteration {
  int q_tile;
  int dq_tile;  // of grad_q, in the workspace; deterministic variants: a marked_tile()
};
// The number of a tile of grad_q, or ~ of it, which is below 0, where its CTA is the first to add to it and so writes.
__device__ inline int marked_tile(int number, bool adds_first) { return adds_first ? ~number : number; }
struct QIterationWithSlope : QIteration {
  float slope;  // of its query head, in base 2
};
template <BwdVariant V>
using QIterationOf = Pick<V.score_mods.alibi, QIterationWithSlope, QIteration>;

// What the delta kernel has found for the rows of one q tile; as in the workspace, so that one load brings both.
template <int Rows>
struct RowsOfQIteration {
  alignas(128) float values[2 * Rows];
  __device__ const float* lse() const { return values; }  // base 2
  __device__ const float* delta() const { return values + Rows; }
};

// Which of a thread's values are weights of a row that does not attend to the key; by index, whatever the score is.
struct MaskedOut {
  // Rows that attend to the thread's two keys, from its first column on
  int first_top, first_bottom, end_top, end_bottom;
  bool has_end;

  __device__ __forceinline__ bool operator()(int i) const {
    const int at = tile::col_of(i);
    return at < ((i & 2) ? first_bottom : first_top) || (has_end && at >= ((i & 2) ? end_bottom : end_top));
  }
};

// The mask rule for keys along rows and queries along columns, of one sequence.
template <BwdVariant V>
struct KeyMask : MaskRule<V.mask> {
  __device__ KeyMask(const BwdParams& params, const attn::Lengths& lengths)
      : MaskRule<V.mask>{lengths.seq_kv, params.mask.top_left ? 0 : lengths.seq_kv - lengths.seq_q, params.mask.left,
                         params.mask.right, params.chunk} {}

  // Whether no row of the q tile attends to a key of the M tile that begins with this one.
  __device__ __forceinline__ bool is_fully_masked(int q_tile, int key) const {
    const int row = q_tile * V.tiles.q;
    bool nothing = row + V.tiles.q <= first(key);
    if constexpr (V.mask == Mask::window) nothing |= row >= this->end_row(key + m_tile_rows - 1);
    return __shfl_sync(~0u, nothing, 0);
  }

  // key: of this thread's top values. The bounds of its chunk take a division; kept over iterations they take registers
  // that there are not.
  __device__ __forceinline__ MaskedOut masked_out(int key, int q_tile) const {
    if constexpr (V.mask == Mask::chunk) key = ptx::opaque(key);
    const int col = q_tile * V.tiles.q + tile::thread_col();
    return {first(key) - col, first(key + 8) - col, this->end_row(key) - col, this->end_row(key + 8) - col,
            bounded_below(V.mask)};
  }
  // Here because ALiBi's distance counts from the mask's diagonal.
  __device__ __forceinline__ ScoreMod<V> score_mod(int key, const QIterationOf<V>& q_iteration) const {
    if constexpr (V.score_mods.alibi) {
      const int diagonal_key = q_iteration.q_tile * V.tiles.q + tile::thread_col() + this->diagonal;
      return {{q_iteration.slope, q_iteration.slope * static_cast<float>(diagonal_key - key)}};
    } else {
      return {};
    }
  }

 private:
  // No row attends to what lies after the last key.
  __device__ int first(int key) const { return key < this->keys ? this->first_row(key) : no_bound<int>; }
};

// Traversal, q_tile_sequence.cuh, says what is gained where query heads share keys. Where CTAs add to grad_q in
// order: under a causal mask the last rows attend to every kv tile. Items that come from the heaviest to the lightest
// begin with these rows, so that CTAs that begin together meet every tile of grad_q in the order of their keys, one
// an iteration; or, where they begin one after the other, with the first rows. Items that come from the lightest on
// begin with the first row that attends to their keys, and meet it in the other order:
//   items (kv tiles) of a pair                           q tiles of an item
//   falling (tiles_falling, keys_falling), lightest      rows_rising
//   first: of the first pairs_light_first pairs
//   rising, heaviest first: of the others                rows_falling; in every second group of same_traversal pairs
//                                                        rows_rising
template <BwdVariant V>
__device__ Traversal traversal_of(const BwdParams& params, int pair, bool keys_falling) {
  if (keys_falling) return Traversal::rows_rising;
  if (params.same_traversal == 0) return V.deterministic ? Traversal::rows_falling : Traversal::by_heads;
  return pair / params.same_traversal % 2 == 0 ? Traversal::rows_falling : Traversal::rows_rising;
}

template <BwdVariant V>
__device__ WorkItem make_item(const BwdParams& params, int sequence, int head_kv, int kv_tile,
                              const attn::Lengths& lengths) {
  const int first_key = kv_tile * V.tiles.kv, last_key = min(first_key + V.tiles.kv, lengths.seq_kv) - 1;
  const KeyMask<V> key_mask(params, lengths);
  const Range<int> tiles = key_mask.q_tiles(first_key, last_key, lengths.seq_q, V.tiles.q);
  const int first_dq_tile = V.ragged && params.ragged.cu_q
                                ? first_tile_of_packed(lengths.q_first, sequence, V.tiles.q)
                                : sequence * params.q_tiles.tiles_of_sequence;
  const int pair = sequence * params.heads_kv + head_kv;
  // In ragged variants pairs_light_first is 0 (step_of, src/plan/backward.cpp): RaggedSchedule finds kv tiles in
  // rising order only.
  const bool keys_falling = V.deterministic && V.mask == Mask::causal && pair < params.pairs_light_first;
  const Traversal traversal = traversal_of<V>(params, pair, keys_falling);
  const auto spans_of = [&](int m_tile_index) -> Spans<int> {
    const Spans<int> spans =
        key_mask.spans(first_key + m_tile_index * m_tile_rows, m_tile_rows, tiles, lengths.seq_q, V.tiles.q);
    if (traversal == Traversal::rows_falling) return {spans.masked_last, spans.unmasked, spans.masked};
    return spans;
  };
  return {.kv_tile = kv_tile,
          .head_kv = head_kv,
          .sequence = sequence,
          .q = {tiles.begin, tiles.end, first_dq_tile, {spans_of(0), spans_of(1)}, traversal},
          .keys_falling = keys_falling,
          .lengths = lengths};
}

// The kv tiles that add to a q tile of the item's sequence.
template <BwdVariant V>
__device__ TileSequence<int> kv_tiles_of(const BwdParams& params, const WorkItem& item, int q_tile) {
  const int first_row = q_tile * V.tiles.q, last_row = min(first_row + V.tiles.q, item.lengths.seq_q) - 1;
  return KeyMask<V>(params, item.lengths).tiles(first_row, last_row, V.tiles.kv);
}

// Where CTAs add to grad_q in order, it is the order in which items come. The rank of the item's kv tile is how many kv
// tiles add to the q tile before it.
template <BwdVariant V>
__device__ int rank_of_tile(const BwdParams& params, const WorkItem& item, int q_tile) {
  const bool keys_falling = V.mask == Mask::causal && item.keys_falling;
  if (!bounded_below(V.mask) && !keys_falling) return item.kv_tile;
  const TileSequence<int> tiles = kv_tiles_of<V>(params, item, q_tile);
  return keys_falling ? tiles.end - 1 - item.kv_tile : item.kv_tile - tiles.begin;
}

// How many kv tiles add to a q tile to which the item's adds.
template <BwdVariant V>
__device__ int tiles_in_order(const BwdParams& params, const WorkItem& item, int q_tile) {
  const TileSequence<int> tiles = kv_tiles_of<V>(params, item, q_tile);
  return tiles.end - tiles.begin;
}

template <BwdVariant V>
struct UniformSchedule {
  const BwdParams& params;

  __device__ WorkItem find(int number) {
    if (number >= params.order.items) return {.kv_tile = -1};
    const ItemOfPair item = item_in_dq_order(params.order, number, V.deterministic ? params.pairs_light_first : 0);
    return make_item<V>(params, item.pair / params.heads_kv, item.pair % params.heads_kv, item.index_in_pair,
                        {0, params.seq_q, 0, params.seq_kv});
  }
  __device__ int items() const { return params.order.items; }
};

template <BwdVariant V>
struct RaggedSchedule {
  const BwdParams& params;
  attn::Sequences<attn::TilesOf::kv, attn::KvTilesOfSequence<V.tiles.kv>> sequences;

  __device__ RaggedSchedule(const BwdParams& params)
      : params(params),
        sequences{params.ragged,
                  params.seq_q,
                  params.seq_kv,
                  params.heads_kv,
                  params.order.section,
                  params.sequences,
                  params.order.in_sections / params.heads_kv} {}

  __device__ WorkItem find(int number) {
    attn::TileOfSequence found;
    if (!sequences.find(number, found)) return {.kv_tile = -1};
    const int last = (found.lengths.seq_kv + V.tiles.kv - 1) / V.tiles.kv - 1;
    return make_item<V>(params, found.sequence, found.head, last - found.index_in_pair, found.lengths);
  }
  // Valid once find() has found none.
  __device__ int items() const { return sequences.items(); }
};

}  // namespace froghopper::bwd
