// SPDX-License-Identifier: Apache-2.0
// device/tile: products of tiles.
#pragma once
#include "device/ptx/fp8.cuh"
#include "device/ptx/matrix.cuh"
#include "device/ptx/types.cuh"
#include "device/ptx/wgmma.cuh"
#include "device/ptx/wgmma_generated.cuh"
#include "device/tile/accum.cuh"
#include "device/tile/shared_tile.cuh"

namespace froghopper::tile {

// d = a[row .. row+64) x b^T. Asynchronous: d is valid after the matching wgmma_wait. a may have more columns than b:
// slices of K columns, each with a b of its own. Slice is the number of this one; the first begins d, the others are
// added to it.
template <class T, int Slice = 0, int N, int K, int RowsA, int ColsA, int Bytes>
__device__ __forceinline__ void mma_abt(Accum<N>& d, SharedTile<RowsA, ColsA, Bytes>& a, int row,
                                        SharedTile<N, K, Bytes>& b) {
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < K; k += 32 / Bytes)
    ptx::wgmma_ss</*TransposeB=*/0>(ptx::Shape<N, T>{}, d.x, a.k_major(row, Slice * K + k), b.k_major(0, k),
                                    /*accumulate=*/Slice != 0 || k != 0);
  ptx::wgmma_commit();
}

// d += a x b[:, col .. col+N), where a is in registers. Asynchronous.
template <class T, int N, int K, int ColsB>
__device__ __forceinline__ void mma_ab_add(Accum<N>& d, const OperandA<K>& a, SharedTile<K, ColsB>& b, int col = 0) {
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < K; k += 16)
    ptx::wgmma_rs</*TransposeB=*/1>(ptx::Shape<N, T>{}, d.x, a.x[k / 16], b.mn_major(k, col), /*accumulate=*/1);
  ptx::wgmma_commit();
}

// The same by two instructions for each 16 keys, each with half of d's columns.
template <class T, int N, int K, int ColsB>
__device__ __forceinline__ void mma_ab_add_in_halves(Accum<N>& d, const OperandA<K>& a, SharedTile<K, ColsB>& b,
                                                     int col) {
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < K; k += 16) {
    using Half = ptx::Shape<N / 2, T>;
    ptx::wgmma_rs</*TransposeB=*/1>(Half{}, columns_of<0, N / 2>(d).x, a.x[k / 16], b.mn_major(k, col),
                                    /*accumulate=*/1);
    ptx::wgmma_rs</*TransposeB=*/1>(Half{}, columns_of<N / 2, N / 2>(d).x, a.x[k / 16], b.mn_major(k, col + N / 2),
                                    /*accumulate=*/1);
  }
  ptx::wgmma_commit();
}

// d = a x b^T, or d += where it accumulates; a is in registers, and the inner dimension of both is in OperandA8's
// order. Asynchronous.
template <class T, int N, int K>
__device__ __forceinline__ void mma_abt(Accum<N>& d, const OperandA8<K>& a, SharedTile<N, K, 1>& b, bool accumulate) {
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < K; k += 32)
    ptx::wgmma_rs</*TransposeB=*/0>(ptx::Shape<N, T>{}, d.x, a.x[k / 32], b.k_major(0, k), accumulate || k != 0);
  ptx::wgmma_commit();
}

// d = a[row .. row+64) x b[:, col .. col+N), where both are in shared memory. Asynchronous. Accumulate: d +=.
template <class T, bool Accumulate = false, int N, int K, int RowsA, int ColsB>
__device__ __forceinline__ void mma_ab(Accum<N>& d, SharedTile<RowsA, K>& a, int row, SharedTile<K, ColsB>& b,
                                       int col) {
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < K; k += 16)
    ptx::wgmma_ss</*TransposeB=*/1>(ptx::Shape<N, T>{}, d.x, a.k_major(row, k), b.mn_major(k, col),
                                    /*accumulate=*/Accumulate || k != 0);
  ptx::wgmma_commit();
}
template <class T, int N, int K, int RowsA, int ColsB>
__device__ __forceinline__ void mma_ab_add(Accum<N>& d, SharedTile<RowsA, K>& a, int row, SharedTile<K, ColsB>& b,
                                           int col) {
  mma_ab<T, /*Accumulate=*/true>(d, a, row, b, col);
}

// d = a[:, col .. col+64)^T x b[row .. row+N)^T. Asynchronous.
template <class T, int N, int K, int ColsA, int RowsB>
__device__ __forceinline__ void mma_atbt(Accum<N>& d, SharedTile<K, ColsA>& a, int col, SharedTile<RowsB, K>& b,
                                         int row) {
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < K; k += 16)
    ptx::wgmma_ss</*TransposeB=*/0, /*TransposeA=*/1>(ptx::Shape<N, T>{}, d.x, a.mn_major(k, col), b.k_major(row, k),
                                                      /*accumulate=*/k != 0);
  ptx::wgmma_commit();
}

// d += a b: 16 x 32 times 32 x 8 of an 8-bit type, as one product of the lower pairs of bytes and one of the upper.
// PTX has mma for these types, but sm_90 has no such instruction: ptxas emulates it in the same way, with more
// registers.
template <class T>
__device__ __forceinline__ void mma_m16n8k32(float* d, const u32 (&a)[4], const u32 (&b)[2]) {
#pragma unroll
  for (const bool high : {false, true}) {
    const u32 wide[4] = {ptx::cvt_f16x2<T>(a[0], high), ptx::cvt_f16x2<T>(a[1], high), ptx::cvt_f16x2<T>(a[2], high),
                         ptx::cvt_f16x2<T>(a[3], high)};
    ptx::mma_m16n8k16<ptx::f16>(d, wide, ptx::cvt_f16x2<T>(b[0], high), ptx::cvt_f16x2<T>(b[1], high));
  }
}

// mma_abt for the 16 rows of one warp, by only that warp and synchronously: for paths that the warpgroup does not take
// together. The accumulator layout of mma.m16n8 is that of wgmma. It runs where registers are full, so b comes 8 rows
// at a time. Rows 8 apart are swizzled alike, and `row` is a multiple of 8.
template <class T, int N, int K, int RowsA, int Bytes>
__device__ __forceinline__ void mma_abt_by_warp(Accum<N>& d, SharedTile<RowsA, K, Bytes>& a, int row,
                                                SharedTile<N, K, Bytes>& b) {
  d.clear();
#pragma unroll 1
  for (int k = 0; k < K; k += 32 / Bytes) {
    const u32 lane = threadIdx.x % 32, panel = k / b.panel_columns, unit = k % b.panel_columns / (16 / Bytes);
    const u32 row_a = row + threadIdx.x / 32 % 4 * 16 + lane % 16;
    u32 x[4];
    ptx::ldmatrix_x4(x, a.row(panel, row_a) + a.unit(unit + lane / 16, lane % 8));
    const u32 from = b.row(panel, lane % 8) + b.unit(unit + lane / 8 % 2, lane % 8);
#pragma unroll
    for (int n = 0; n < N; n += 8) {
      if (Bytes == 1 && n % 32 == 0) __syncwarp();  // else loads of all rows begin at once, each into registers
      u32 y[2];
      ptx::ldmatrix_x2(y, from + n * b.panel_row_bytes);
      if constexpr (Bytes == 2)
        ptx::mma_m16n8k16<T>(&d.x[n / 2], x, y[0], y[1]);
      else
        mma_m16n8k32<T>(&d.x[n / 2], x, y);
    }
  }
}

}  // namespace froghopper::tile
