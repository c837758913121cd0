// SPDX-License-Identifier: Apache-2.0
// cpu: a work item of the backward pass, and the memory it needs. Known to the side of the threads
// (backward.cpp) and to the vector side (gradients.cpp).
//
// Here a lane is a key, and a work item is a chunk of the keys of one key head of one sequence: it gathers the
// gradients of its k and v, which nobody else adds to, and adds what its keys give to the gradients of q. The rows of
// q that attend to the chunk come to it tile by tile, those of all the query heads that share the key head.
#pragma once
#include <cstddef>
#include <cstdint>

#include "contract/types.h"
#include "src/cpu/work.hpp"

namespace froghopper::cpu {

// Query rows per tile. The weights of 128 rows for 64 keys are 32 KiB, as in the forward pass.
inline constexpr int tile_rows = 128;
inline constexpr int chunk_keys_max = 256;
// Of a chunk, at most. What a thread knows about its keys fits in its second-level cache, 1 MiB: with heads of 128, 256
// keys are 8 % faster than 128, because each tile of rows is loaded for more of them.
constexpr int64_t chunk_keys_most(int64_t columns) {  // of q and o together
  return columns <= 256 ? chunk_keys_max : columns <= 512 ? chunk_keys_max / 2 : chunk_keys_max / 4;
}

// Each number that is added to a sum is rounded to the last digit of all that were added before, so errors grow with
// the number of them. So no sum has more than some hundred up to 100 000: products of a few rows begin at 0; those of a
// bunch of tiles are added up, and the bunches then; of keys, those of a span, and the spans then. Both lie where they
// lie for chunks of any size, which follows from the number of threads, and so bits do not. Pairs have no spans.
constexpr int64_t span_keys(int64_t columns) { return chunk_keys_most(columns); }

// Rows of one query head. Those that fill a tile of the sequence or, at its end, fewer.
struct RowTile {
  int rows;
  const void *q, *o, *grad_o;  // of its first row; o and grad_o alone where a row attends to a key
  int64_t stride_q, stride_o, stride_grad_o, stride_grad_q;  // elements from row to row
  void* grad_q;
  float slope;                 // of alibi, else 0
  int64_t level;               // the key that alibi counts from for the first row, counted from the chunk's first
  bool fresh, last;            // no chunk has had this tile yet; none will have it after this one
  float* sum;                  // [rows][row_floats(dim_qk)]: grad_q of all spans so far
  float* of_span;              // likewise, of this span; null: the chunk is all of it, or there are none
  bool span_fresh, span_last;  // as above, of the chunks of the span
  int64_t number;              // of all tiles of the key head, also those that do not come here
  float* delta;                // [rows]
  // By row. What a row that attends to no key has in lse, o and grad_o is never read.
  float lse[tile_rows];                      // infinite where the row attends to no key: its weights are 0
  float grad_lse[tile_rows];                 // 0 where it has none, and for rows that do not count
  bool fully_masked[tile_rows];              // it attends to no key
  int32_t begin[tile_rows], end[tile_rows];  // keys of the chunk that it attends to, counted from the chunk's first
};

// Where a chunk gets its tiles from, in the order in which they are summed up.
class RowTiles {
 public:
  // The next one, whose fields the caller may read until it asks again; asking says that the one before is done. Null:
  // that was the last one.
  virtual const RowTile* next() = 0;

 protected:
  ~RowTiles() = default;
};

struct KeyChunk {
  Dtype dtype;
  int dim_qk, dim_v;
  float scale, softcap;
  bool accumulate;             // gradients are floats, and are added to
  const void *k, *v;           // the chunk's first row
  int64_t stride_k, stride_v;  // elements from row to row
  void *grad_k, *grad_v;
  int64_t stride_grad_k, stride_grad_v;
  int keys;                          // at most chunk_keys_max; also those that do not count
  int attended_begin, attended_end;  // keys that some row attends to; others may hold anything
  float* scratch;                    // gradient_floats of them, 64-byte aligned
};

// Floats from row to row of a matrix whose rows are walked along and across: whole vectors, and an odd number of cache
// lines, so that a column does not fall on a few sets of the cache.
constexpr int row_floats(int dim) { return ((dim + 15) / 16 | 1) * 16; }

// k in rows and k, v transposed; their gradients transposed, of the last tiles and of those before; a tile's q, grad_o
// and grad_q; scores and their gradients for a block; four rows on their way in or out. Pairs need less for most of it,
// but the tile, and what is rounded of a block, a second time. A block's grad_k or grad_v where numbers are not finite.
constexpr size_t gradient_floats(int dim_qk, int dim_v, int chunk_keys) {
  const size_t keys = chunk_keys, rows_qk = row_floats(dim_qk), rows_v = row_floats(dim_v);
  return keys * (rows_qk + 3 * (dim_qk + dim_v)) + tile_rows * (2 * rows_qk + rows_v) + 2 * tile_rows * 64 +
         4 * dim_max + tile_rows / 2 * (64 + 3 * 64) + 64 * static_cast<size_t>(dim_qk > dim_v ? dim_qk : dim_v);
}
static_assert(gradient_floats(256, 256, chunk_keys_max / 2) * sizeof(float) <= 3 << 19,
              "at most 1.5 MiB a thread up to 256 columns");

}  // namespace froghopper::cpu
