// SPDX-License-Identifier: Apache-2.0
// device/tile: matrices in shared memory or in registers, and what is done with them. Knows ptx/. Does not know what
// the numbers mean. This file: a matrix in shared memory, as TMA writes it and wgmma reads it.
#pragma once
#include "device/ptx/types.cuh"

namespace froghopper::tile {

using ptx::u32;
using ptx::u64;

// Rows x Cols of a type of 2 bytes, or 1, stored by panels, as dense linear algebra calls blocks of whole columns: a
// panel is [Rows][128 bytes] with the 128-byte swizzle, exactly what one TMA box writes. (The swizzle atom of CUTLASS
// is 8 rows of one.) With 96 columns of 2 bytes the second panel is half used.
template <int Rows, int Cols, int Bytes = 2>
struct alignas(1024) SharedTile {
  static constexpr int panel_row_bytes = 128, panel_columns = panel_row_bytes / Bytes;
  static constexpr int panels = (Cols + panel_columns - 1) / panel_columns;
  static constexpr int panel_bytes = Rows * panel_row_bytes, bytes = panels * panel_bytes;

  char data[bytes];

  __device__ char* panel(int i) { return data + i * panel_bytes; }

  // Operand whose inner dimension runs along the columns (Q and K in Q K^T), from row `row` and column `k` on.
  __device__ u64 k_major(int row, int k) {
    return descriptor(k / panel_columns * panel_bytes + row * panel_row_bytes + k % panel_columns * Bytes,
                      /*leading_bytes=*/16);
  }
  // Operand whose inner dimension runs along the rows (V in P V), from row `k` and column `col` on: the start of a
  // panel, or the middle of one where the operand ends with that panel. From panel to panel is the leading
  // dimension byte offset.
  __device__ u64 mn_major(int k, int col = 0) {
    static_assert(Bytes == 2, "wgmma reads 8-bit operands only along their rows");
    return descriptor(col / panel_columns * panel_bytes + k * panel_row_bytes + col % panel_columns * 2,
                      /*leading_bytes=*/panel_bytes);
  }

  // For ldmatrix: the shared address of a panel's row, and where in it one of its 8 units lies. A unit is 16 bytes,
  // what the swizzle moves as one: it permutes the units of a row by the row modulo 8.
  __device__ u32 row(int panel_number, u32 row) {
    return ptx::smem_addr(panel(panel_number)) + row * panel_row_bytes;
  }
  static __device__ u32 unit(u32 unit, u32 row_modulo_8) { return (unit ^ row_modulo_8) * 16; }

 private:
  // PTX ISA, "wgmma matrix descriptor": addresses and offsets are in units of 16 bytes. Shared addresses fit their
  // 14 bits, so the low word is a sum and moving along a tile is one addition. Above those bits an address says which
  // CTA of the cluster it belongs to.
  __device__ u64 descriptor(u32 offset, u32 leading_bytes) {
    constexpr u32 swizzle_128b = 1u << 30, stride_bytes = 1024;  // from 8 rows to the next 8
    const u32 low = (ptx::smem_addr(data) >> 4 & 0x3fff) + (offset >> 4) + (leading_bytes >> 4 << 16);
    return u64(swizzle_128b | stride_bytes >> 4) << 32 | low;
  }
};

}  // namespace froghopper::tile
