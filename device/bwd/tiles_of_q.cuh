// SPDX-License-Identifier: Apache-2.0
// device/bwd: which rows a q tile of the workspace holds; sums over a CTA.
#pragma once
#include "contract/bwd_params.h"
#include "contract/shared_params.h"
#include "device/attn/lengths.cuh"

namespace froghopper::bwd {

struct WorkspaceQTile {
  int head, batch, first_row;  // of the tensors; the tile's first row
  int row, rows;               // first row in its sequence; rows of the sequence
  int sequence;
};

// A tile in which no row lies is given to the sequence before it, or, where sequences are not packed, to the one in
// whose batch it lies; it begins beyond the rows of that one: row >= rows. numbering: how the workspace numbers q
// tiles. number: that of this tile.
__device__ inline WorkspaceQTile find_workspace_q_tile(const RaggedParams& ragged, const QTiles& numbering,
                                                       int sequences, int seq_q, int tile_q, bool is_ragged,
                                                       int number) {
  const int head = number % numbering.heads_q, at = number / numbering.heads_q;
  const int* cu = is_ragged ? ragged.cu_q : nullptr;
  if (!cu) {
    const int sequence = at / numbering.tiles_of_sequence, row = at % numbering.tiles_of_sequence * tile_q;
    const int rows = is_ragged ? attn::lengths_of(ragged, seq_q, /*seq_kv=*/0, sequence).seq_q : seq_q;
    return {head, sequence, row, row, rows, sequence};
  }
  if (sequences == 0) return {head, 0, 0, 0, 0, 0};  // total_q / tile_q tiles without a sequence
  int sequence = 0;                                  // the last one whose first tile is not after this
  for (int end = sequences; end - sequence > 1;) {
    const int middle = (sequence + end) / 2;
    (first_tile_of_packed(cu[middle], middle, tile_q) <= at ? sequence : end) = middle;
  }
  const attn::Lengths its = attn::lengths_of(ragged, seq_q, /*seq_kv=*/0, sequence);
  const int row = (at - first_tile_of_packed(its.q_first, sequence, tile_q)) * tile_q;
  return {head, 0, its.q_first + row, row, its.seq_q, sequence};
}

// In thread 0; in the same order in every run. All threads call it, once.
template <int Warps>
__device__ float sum_of_cta(float (&of_warp)[Warps], float mine) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) mine += __shfl_xor_sync(~0u, mine, apart);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
  __syncthreads();
  float sum = 0.f;
  if (threadIdx.x == 0)
    for (float x : of_warp) sum += x;
  return sum;
}

}  // namespace froghopper::bwd
