// SPDX-License-Identifier: Apache-2.0
// contract: the agreement between host and the kernel that writes new rows of K and V into a cache, and makes q ready
// for them. Two variants are equal if and only if they compile to the same machine code.
#pragma once
#include "contract/fields.h"
#include "contract/shared_params.h"
#include "contract/types.h"

namespace froghopper {

struct AppendVariant {
  Dtype from;  // of q, k and v
  Dtype to;    // of the cache: alike, or 8-bit
  int dim;     // the largest head dim: it sizes a thread's registers

  bool operator==(const AppendVariant&) const = default;
};

template <class Variant, class Visit>
constexpr void visit_fields(Variant& v, Visit&& visit) requires same<const Variant, const AppendVariant> {
  visit("", v.from);
  visit("", v.to);
  visit("d", v.dim);
}

// A row of one head is 8 columns a lane, in two pieces where it is longer than a warp. A lane group, of append_lanes,
// has the longest rows that the variant knows; of shorter ones it has several heads side by side.
constexpr int append_threads = 128;
constexpr int append_piece = 8;
constexpr int append_lanes(AppendVariant v) { return v.dim >= 256 ? 32 : v.dim / append_piece; }
constexpr int append_pieces(AppendVariant v) { return v.dim / append_piece / append_lanes(v); }
constexpr int append_lane_groups_of_cta(AppendVariant v) { return append_threads / append_lanes(v); }
// 2^n lanes have a row of head dim `dim`: this n, so that the kernel divides by shifts.
constexpr int append_lane_bits(AppendVariant v, int dim) {
  int bits = 0;
  while (2 << bits <= append_lanes(v) && append_piece << bits < dim) ++bits;
  return bits;
}
constexpr int append_iterations_of(AppendVariant v, int dim, int heads) {
  const int at_once = append_lanes(v) >> append_lane_bits(v, dim);
  return (heads + at_once - 1) / at_once;
}
constexpr int append_ctas_per_sm(AppendVariant v) { return append_pieces(v) > 1 ? 3 : 5; }
constexpr int append_smem_bytes = 16;   // unused; the compiler keeps no constant that is 0
constexpr int append_rotary_step = 16;  // so that both columns of a pair are in pieces of their own, or in one

constexpr const char* why_invalid(AppendVariant v) {
  if (v.from != Dtype::f16 && v.from != Dtype::bf16) return "q, k and v are f16 or bf16 here";
  if (v.to != v.from && !is_8_bit(v.to)) return "the cache has the type of k and v, or an 8-bit type";
  if (v.dim != 64 && v.dim != 128 && v.dim != 256 && v.dim != 512) return "the head dim is 64, 128, 256 or 512";
  return nullptr;
}

// One of q, k and v.
struct AppendTensor {
  StridedTensor from;   // new rows; of packed ones batch is 0
  StridedTensor to;     // of q: the same rows; else the cache, whose batches are sequences or pages
  const void* weights;  // of the norm, one for each column; null: all 1
  // What values are divided by; only `head` counts. data is null: nothing, or `written`. Then `head` is 0, so that the
  // address of every head's scale is null too.
  ScaleValues given;
  float* written;  // with scales of rows: those of the cache, by batch, row and head
  long long written_batch, written_row, written_head;  // elements from one to the next
  int heads;                                           // 0: it is left out
  int dim;
  int lane_bits;   // of one head: append_lane_bits()
  int iterations;  // of a lane group, for all heads of a row
};

// cos and sin of every position.
struct RotaryParams {
  const void *cos, *sin;
  long long cos_row, sin_row;  // bytes from position to position
  int positions;               // that they know
  int columns;                 // of q and k that are rotated; 0: none
  int lane_bits;               // of a head of q or k
  int interleaved;
  int f32;  // they are, not of q's type
};

struct AppendParams {
  AppendTensor tensors[3];  // q, k, v
  int lane_groups;          // that share the heads of a row
  int iterations;           // of each of them
  int rows;                 // new ones of all sequences, each with all its heads
  int seq_q;                // of a sequence that is not packed; of packed ones at most
  int sequences;
  const int *cu, *used;    // of new rows, as RaggedParams
  const int* before;       // rows of a sequence that the cache has; null: none
  const long long* slots;  // null: rows go behind those
  const long long* positions;
  const int* table;  // of pages; null: none, or slots
  long long table_sequence;
  int table_column;               // elements from one to the next
  int cache_batches, cache_rows;  // sequences or pages, and rows of each
  int seq_kv;                     // rows of a sequence in the cache, at most
  RotaryParams rotary;
  int norm;
  int norm_f32;  // its weights are, not of q's type
  float epsilon;
  int own_scales;  // of rows, which are written
};

}  // namespace froghopper
