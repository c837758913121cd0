// SPDX-License-Identifier: Apache-2.0
// device/quantise: which tiles a CTA takes, and where they lie. One thread finds that out for all, some tiles ahead,
// and leaves it in shared memory.
#pragma once
#include "contract/quantise.h"
#include "contract/quantise_params.h"
#include "contract/shared_params.h"

namespace froghopper::quantise {

// Rows of a sequence that count.
struct RowsOfSequence {
  int first, count;  // first: in a packed tensor
};
template <class Tensor>
__device__ RowsOfSequence rows_of(const Tensor& tensor, int sequence) {
  int first = 0, rows = tensor.rows;
  if (tensor.cu) {
    first = tensor.cu[sequence];
    rows = min(rows, tensor.cu[sequence + 1] - first);
  }
  if (tensor.used) rows = min(rows, tensor.used[sequence]);
  return {first, rows};
}

struct alignas(16) Tile {
  const char* from;  // its first row; null: there is no such tile
  long long from_row;
  char* to;
  long long to_row;  // bytes from row to row
  int rows;          // that count; at most 0: none
  int dim;           // head dim in memory
  int rotation;      // columns of a block; 0: not rotated
  float norm;        // 1/sqrt(rotation), or 1
  float* scale;      // null: another tile's is the same
  float* largest;    // of the sequence's first tile, in the workspace
  int tile;          // of the sequence
  int tiles, heads;
  int mean;  // smooth variants: its number in the workspace; -1: none
};

// The items first, first + step, ... of all. It lies in shared memory too, so that it takes no registers of the
// others. Divisions only where a tensor begins.
struct Walk {
  int item, step;
  int tensor, end;  // which one of the params, and the first item after it
  int sequence, tile, head;
  int sequences_a_step, tiles_a_step, heads_a_step;

  __device__ void begin(const QuantiseParams& params) {
    if (item >= params.items) return;
    tensor = 0;
    while (tensor + 1 < params.count && item >= params.tensors[tensor + 1].first_item) ++tensor;
    end = tensor + 1 < params.count ? params.tensors[tensor + 1].first_item : params.items;
    const unsigned heads = params.tensors[tensor].heads, tiles = params.tensors[tensor].tiles;
    const unsigned number = item - params.tensors[tensor].first_item;
    const unsigned row_tile = number / heads, row_tiles_a_step = step / heads;
    sequence = row_tile / tiles;
    tile = row_tile - sequence * tiles;
    head = number - row_tile * heads;
    sequences_a_step = row_tiles_a_step / tiles;
    tiles_a_step = row_tiles_a_step - sequences_a_step * tiles;
    heads_a_step = step - row_tiles_a_step * heads;
  }

  __device__ void next(const QuantiseParams& params) {
    item += step;
    if (item >= end) return begin(params);
    const int heads = params.tensors[tensor].heads, tiles = params.tensors[tensor].tiles;
    const int new_head = head + heads_a_step, one_more_tile = new_head >= heads;
    const int new_tile = tile + tiles_a_step + one_more_tile, one_more_sequence = new_tile >= tiles;
    head = new_head - (one_more_tile ? heads : 0);
    tile = new_tile - (one_more_sequence ? tiles : 0);
    sequence += sequences_a_step + one_more_sequence;
  }

  template <bool Smooth>
  __device__ void put(const QuantiseParams& params, Tile& to) const {
    if (item >= params.items) {
      to.from = nullptr;
      return;
    }
    const QuantiseTensor& source = params.tensors[tensor];
    const auto [first, rows] = rows_of(source, sequence);
    const int row = tile * quantise_rows, batch = source.cu ? 0 : sequence;
    to.from = address(source.from, batch, first + row);
    to.from_row = source.from.row;
    to.to = address(source.to, batch, first + row);
    to.to_row = source.to.row;
    to.rows = min(rows - row, quantise_rows);
    to.dim = source.dim;
    to.rotation = source.rotation;
    to.norm = source.norm;
    to.scale = source.scale + sequence * source.scale_batch + tile * source.scale_tile + head * source.scale_head;
    if (params.scaling == Scaling::shared && tile > 0) to.scale = nullptr;
    to.largest = source.largest + static_cast<long long>(sequence) * source.tiles * source.heads + head;
    to.tile = tile;
    to.tiles = source.tiles;
    to.heads = source.heads;
    if constexpr (Smooth) to.mean = source.first_mean < 0 ? -1 : source.first_mean + sequence * source.heads + head;
  }

 private:
  __device__ char* address(const StridedTensor& of, int batch, int row) const {
    return static_cast<char*>(of.data) + batch * of.batch + head * of.head + row * of.row;
  }
};

}  // namespace froghopper::quantise
