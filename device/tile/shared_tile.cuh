// SPDX-License-Identifier: Apache-2.0
// device/tile: matrices with a place (shared memory or registers) and the few verbs between them. Knows ptx/. Does
// not know what the numbers mean. This file: a matrix in shared memory, as TMA writes it and wgmma reads it.
#pragma once
#include "device/ptx/wgmma.cuh"

namespace froghopper::tile {

using ptx::u16;
using ptx::u32;
using ptx::u64;

// Rows x Cols of a 2-byte type, stored as panels of [Rows][64] with the 128-byte swizzle: exactly what one TMA box of
// 64 x Rows writes. With Cols = 96 the second panel is half used.
template <int Rows, int Cols>
struct alignas(1024) SharedTile {
  static constexpr int rows = Rows, cols = Cols;
  static constexpr int panel_cols = 64, panels = (Cols + panel_cols - 1) / panel_cols;
  static constexpr int panel_bytes = Rows * 128, bytes = panels * panel_bytes;

  u16 data[Rows * panels * panel_cols];

  __device__ char* panel(int i) { return reinterpret_cast<char*>(data) + i * panel_bytes; }

  // Operand whose inner dimension runs along the columns (Q and K in Q K^T), from row `row` and column `k` on.
  __device__ u64 k_major(int row, int k) {
    return descriptor(k / 64 * panel_bytes + row * 128 + k % 64 * 2, /*leading_bytes=*/16);
  }
  // Operand whose inner dimension runs along the rows (V in P V), from row `k` on.
  __device__ u64 mn_major(int k) { return descriptor(k * 128, /*leading_bytes=*/panel_bytes); }

 private:
  // PTX ISA, "wgmma matrix descriptor": addresses and offsets are in units of 16 bytes. Shared addresses fit their
  // 14 bits, so the low word is a sum and moving along a tile is one addition.
  __device__ u64 descriptor(u32 offset, u32 leading_bytes) {
    constexpr u32 swizzle_128b = 1u << 30, stride_bytes = 1024;  // from 8 rows to the next 8
    const u32 low = (ptx::smem_addr(data) >> 4) + (offset >> 4) + (leading_bytes >> 4 << 16);
    return u64(swizzle_128b | stride_bytes >> 4) << 32 | low;
  }
};

}  // namespace froghopper::tile
