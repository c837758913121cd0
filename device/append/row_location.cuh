// SPDX-License-Identifier: Apache-2.0
// device/append: where a new row is, where it goes in the cache, and which position it has.
#pragma once
#include "contract/append.h"

namespace froghopper::append {

struct RowLocation {
  int batch, row;  // of the new tensors; batch < 0: a row of no sequence
  int slot;        // row of the cache, of all its sequences or pages one after the other; below 0: none
  int position;    // below 0: none that the tables know
};

// The sequence whose rows of a packed tensor `row` is one of; `sequences`: none.
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

// row: of all sequences' rows, those of batches one after the other. Nothing outside of an array is read, whatever the
// numbers in the others are.
__device__ inline RowLocation locate(const AppendParams& params, int row) {
  const int* const cu = params.cu;
  const int sequence =
      cu ? sequence_of(cu, params.sequences, row) : static_cast<unsigned>(row) / static_cast<unsigned>(params.seq_q);
  RowLocation where = {-1, 0, -1, -1};
  if (sequence >= params.sequences) return where;
  const int in_sequence = row - (cu ? cu[sequence] : sequence * params.seq_q);
  if (params.used && in_sequence >= params.used[sequence]) return where;
  const int before = params.before ? params.before[sequence] : 0;
  if (before > 0x7fffffff - in_sequence) return where;
  where.batch = cu ? 0 : sequence;
  where.row = cu ? row : in_sequence;
  const int in_cache = before + in_sequence, slots = params.cache_batches * params.cache_rows;
  if (params.slots) {
    const long long slot = params.slots[row];
    if (slot >= 0 && slot < slots) where.slot = static_cast<int>(slot);
  } else if (in_cache >= 0 && in_cache < params.seq_kv) {
    if (params.table) {
      const int column = static_cast<unsigned>(in_cache) / static_cast<unsigned>(params.cache_rows);
      const int page =
          params.table[sequence * params.table_sequence + static_cast<long long>(column) * params.table_column];
      if (page >= 0 && page < params.cache_batches) where.slot = (page - column) * params.cache_rows + in_cache;
    } else {
      where.slot = sequence * params.seq_kv + in_cache;
    }
  }
  const long long position = params.positions ? params.positions[row] : in_cache;
  if (position >= 0 && position < params.rotary.positions) where.position = static_cast<int>(position);
  return where;
}

}  // namespace froghopper::append
