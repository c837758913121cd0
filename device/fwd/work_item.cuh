// SPDX-License-Identifier: Apache-2.0
// device/fwd: a work item of the forward kernel, and which rows and heads it has.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "contract/tile_sequence.h"
#include "device/attn/lengths.cuh"
#include "device/attn/mask.cuh"

namespace froghopper::fwd {

struct alignas(16) WorkItem {
  int q_tile, head, sequence;
  TileSequence<int> kv;   // the kv tiles that it visits
  attn::Lengths lengths;  // of its sequence; read in ragged variants only
  // Even splits: the workspace_tile_of_part(), contract/split.h. -1: none, as the item has all kv tiles of the q tile.
  int workspace_tile = -1;

  // TileSequence, contract/tile_sequence.h, has the three ways to have no keys.
  __device__ bool is_end() const { return kv.none(); }  // no item is left: all roles end
  // Split-KV variants: a part in which the q tile attends to no key. The Dispatcher does not publish it.
  __device__ bool has_no_keys() const { return kv.count() < 0; }
};

template <FwdVariant V>
using MaskRange = attn::MaskRange<V.mask, V.tiles.kv>;

// Query rows of a sequence that a q tile has, of each of its heads.
template <FwdVariant V>
__device__ int rows_of_tile(const FwdParams& params) {
  return V.pack_gqa ? params.pack_gqa.rows : V.tiles.q;
}

// What an item's `head` counts: query heads; PackGQA: as many query heads together as a tile has.
template <FwdVariant V>
__device__ int heads_of_items(const FwdParams& params) {
  return V.pack_gqa ? params.heads_q / params.pack_gqa.heads : params.heads_q;
}
template <FwdVariant V>
__device__ int kv_head(const FwdParams& params, const WorkItem& item) {
  return V.pack_gqa ? item.head * params.pack_gqa.heads / params.heads_per_kv : item.head / params.heads_per_kv;
}

// Where an item's sequence begins in q, o and lse: its batch, and its first row there.
template <FwdVariant V>
__device__ __forceinline__ long long batch_of(const FwdParams& params, const WorkItem& item) {
  return V.ragged && params.ragged.cu_q ? 0 : item.sequence;
}
template <FwdVariant V>
__device__ __forceinline__ int first_row_of(const WorkItem& item) {
  return V.ragged ? item.lengths.q_first : 0;
}

}  // namespace froghopper::fwd
