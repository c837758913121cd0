// SPDX-License-Identifier: Apache-2.0
// device/append: where a new row is, where it goes in the cache, and which position it has.
#pragma once
#include "contract/append.h"

namespace froghopper::append {

struct RowLocation {
  int batch, row;              // of the new tensors; batch < 0: a row of no sequence
  int cache_batch, cache_row;  // a sequence or page of the cache, and a row of it; cache_batch < 0: no place
  int position;                // below 0: none that the tables know
};

constexpr RowLocation no_row = {-1, 0, -1, 0, -1};

// The sequence that `row` of a packed tensor belongs to; `sequences` where it comes after all of them.
__device__ inline int sequence_of(const int* cu, int sequences, int row) {
  int low = 0, high = sequences;  // the answer is in [low, high]
  while (low < high) {
    const int middle = (low + high) / 2;
    if (cu[middle + 1] <= row)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// row: in the packed tensor, or in all batches, one after the other. Whatever values the arrays hold (cu, used,
// before, slots, table, positions), nothing outside of an array is read.
__device__ inline RowLocation locate(const AppendParams& params, int row) {
  const int* const cu = params.cu;
  const int sequence =
      cu ? sequence_of(cu, params.sequences, row) : static_cast<unsigned>(row) / static_cast<unsigned>(params.seq_q);
  RowLocation where = no_row;
  if (sequence >= params.sequences) return where;
  const int in_sequence = row - (cu ? cu[sequence] : sequence * params.seq_q);
  if (in_sequence < 0) return where;  // a packed row before the first sequence
  if (params.used && in_sequence >= params.used[sequence]) return where;
  const int before = params.before ? params.before[sequence] : 0;
  if (before > 0x7fffffff - in_sequence) return where;
  where.batch = cu ? 0 : sequence;
  where.row = cu ? row : in_sequence;
  const int in_cache = before + in_sequence;
  if (params.slots) {
    const long long slot = params.slots[row];
    if (slot >= 0 && slot < params.cache_batches * params.cache_rows) {
      where.cache_batch = static_cast<unsigned>(slot) / static_cast<unsigned>(params.cache_rows);
      where.cache_row = static_cast<int>(slot) - where.cache_batch * params.cache_rows;
    }
  } else if (in_cache >= 0 && in_cache < params.seq_kv) {
    if (params.table) {
      const int column = static_cast<unsigned>(in_cache) / static_cast<unsigned>(params.cache_rows);
      const int page =
          params.table[sequence * params.table_sequence + static_cast<long long>(column) * params.table_column];
      if (page >= 0 && page < params.cache_batches) {
        where.cache_batch = page;
        where.cache_row = in_cache - column * params.cache_rows;
      }
    } else {
      where.cache_batch = sequence;
      where.cache_row = in_cache;
    }
  }
  const long long position = params.positions ? params.positions[row] : in_cache;
  if (position >= 0 && position < params.rotary.positions) where.position = static_cast<int>(position);
  return where;
}

}  // namespace froghopper::append
