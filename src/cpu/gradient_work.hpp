// SPDX-License-Identifier: Apache-2.0
// cpu: a work item of the backward pass, and the memory that it needs. backward.cpp makes work items for threads, and
// gradients.cpp computes them with vectors.
//
// Here a lane is a key, and a work item is a KV tile of one KV head of one sequence. No other item adds to the
// gradients of its k and v, and it adds its share to grad_q. Its Q tiles hold the rows that attend to it, from all
// query heads that share the KV head.
#pragma once
#include <cstddef>
#include <cstdint>

#include "contract/types.h"
#include "src/cpu/work.hpp"

namespace froghopper::cpu {

// The rows of a Q tile. The weights of 128 rows for 64 keys are 32 KiB, as in the forward pass.
inline constexpr int q_tile_rows = 128;
// The keys of a KV tile, at most. Its k, v and their gradients fit in the second-level cache, 1 MiB. At head dim
// 128, 256 keys are 8 % faster than 128, because each Q tile is loaded for more keys.
inline constexpr int kv_tile_max = 256;
constexpr int64_t kv_tile_most(int64_t dims) {  // dim_qk + dim_v
  return dims <= 256 ? kv_tile_max : dims <= 512 ? kv_tile_max / 2 : kv_tile_max / 4;
}

// Each addition to a sum rounds to its last digit, so errors grow with the number of terms. Therefore sums restart at
// 0, and each step adds some hundred terms for lengths up to 100 000: the products of a few rows, those of a bunch of Q
// tiles, and all bunches; the keys of a span, and all spans. Where bunches and spans begin does not depend on the size
// of KV tiles, which depends on the number of threads; so the bits do not either. Kernels of bf16 pairs have no spans.
constexpr int64_t span_keys(int64_t dims) { return kv_tile_most(dims); }

// Rows of one query head: q_tile_rows or, at the end of the sequence, fewer.
struct QTile {
  int rows;
  const void *q, *o, *grad_o;  // of the first row; o and grad_o are read only for rows that attend to a key
  int64_t stride_q, stride_o, stride_grad_o, stride_grad_q;  // elements from row to row
  void* grad_q;
  const void* gate;  // likewise; null: none
  void* grad_gate;
  int64_t stride_gate, stride_grad_gate;
  float slope;                 // of ALiBi, else 0
  int64_t diagonal;            // the key at distance 0 from the first row for ALiBi, counted from the KV tile's first
  bool first, last;            // this is the first, the last KV tile that takes the Q tile
  float* sum;                  // [rows][row_floats(dim_qk)]: grad_q of all spans so far
  float* of_span;              // likewise, of this span; null: the KV tile is the whole span, or there are none
  bool span_first, span_last;  // likewise, among the KV tiles of the span
  int64_t index;               // among all Q tiles of the KV head, also those that this KV tile skips
  float* delta;                // [rows]
  // By row. lse, o and grad_o of a row that attends to no key are never read.
  float lse[q_tile_rows];          // infinite where the row attends to no key: its weights are 0
  float grad_lse[q_tile_rows];     // 0 where there is none, and for padding rows
  bool fully_masked[q_tile_rows];  // the row attends to no key
  bool has_o[q_tile_rows];         // it attends to one, in this call or, as its lse says, in another one
  int32_t begin[q_tile_rows];      // keys that the row attends to, counted from the KV tile's first
  int32_t end[q_tile_rows];
};

// The Q tiles of a KV tile, in the order in which they are summed up.
class QTiles {
 public:
  // The next Q tile, which the caller may read until the next call. The call says that the tile before is done. Null:
  // there are no more.
  virtual const QTile* next() = 0;

 protected:
  ~QTiles() = default;
};

struct GradientWork {
  Dtype dtype;
  int dim_qk, dim_v;
  float scale, softcap;
  bool adds_to_q, adds_to_kv;  // these gradients are fp32, and are added to
  const void *k, *v;           // the KV tile's first row
  int64_t stride_k, stride_v;  // elements from row to row
  void *grad_k, *grad_v;
  int64_t stride_grad_k, stride_grad_v;
  int keys;                          // at most kv_tile_max; with padding rows
  int attended_begin, attended_end;  // keys that some row attends to; others may hold anything
  float* scratch;                    // gradient_floats of them, 64-byte aligned
};

// Row stride of a matrix that is read by rows and by columns: whole vectors, and an odd number of cache lines, so that
// a column does not fall on a few sets of the cache.
constexpr int row_floats(int dim) { return ((dim + 15) / 16 | 1) * 16; }

// k in rows, and k and v transposed; their gradients, transposed, of this bunch and of earlier ones; q, grad_o and
// grad_q of a Q tile; scores and their gradients for a block; four rows before or after a transposition. Pairs need
// less for most of it, but the Q tile, and what is rounded of a block, twice. And grad_k or grad_v of a block where
// values are not finite.
constexpr size_t gradient_floats(int dim_qk, int dim_v, int kv_tile_keys) {
  const size_t keys = kv_tile_keys, rows_qk = row_floats(dim_qk), rows_v = row_floats(dim_v);
  return keys * (rows_qk + 3 * (dim_qk + dim_v)) + q_tile_rows * (2 * rows_qk + rows_v) + 2 * q_tile_rows * 64 +
         4 * dim_max + q_tile_rows / 2 * (64 + 3 * 64) + 64 * static_cast<size_t>(dim_qk > dim_v ? dim_qk : dim_v);
}
static_assert(gradient_floats(256, 256, kv_tile_max / 2) * sizeof(float) <= 3 << 19,
              "at most 1.5 MiB a thread up to head dim 256");

}  // namespace froghopper::cpu
