// SPDX-License-Identifier: Apache-2.0
// device/tile: matrices in the registers of one warpgroup, and their way to global memory.
#pragma once
#include "device/ptx/fp8.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/matrix.cuh"
#include "device/ptx/reduce.cuh"
#include "device/ptx/registers.cuh"
#include "device/ptx/types.cuh"
#include "device/tile/shared_tile.cuh"

namespace froghopper::tile {

// 64 x Cols fp32 in the wgmma accumulator layout (PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16", D).
// This thread owns two rows, "top" and "bottom" (8 apart). Its fragment of 8 columns, D of wgmma m64n8, is 4 values:
// top, top, bottom, bottom. "Fragment" means one of 8 columns everywhere.
template <int Cols>
struct Accum {
  float x[Cols / 2];

  __device__ Accum() {}  // registers start undefined: zeroing them would lengthen their lives
  __device__ void clear() {
#pragma unroll
    for (float& v : x) v = 0.f;
  }
  __device__ void scale_rows(float top, float bottom) {
#pragma unroll
    for (int i = 0; i < Cols / 2; ++i) x[i] *= (i & 2) ? bottom : top;
  }
};

// Columns of it from Begin on, which are an Accum too. The cast is of an array that is indexed only by constants, in
// functions that are all in line: the compiler resolves it, and the values stay in registers.
template <int Begin, int Cols, int Whole>
__device__ __forceinline__ Accum<Cols>& columns_of(Accum<Whole>& whole) {
  return *reinterpret_cast<Accum<Cols>*>(whole.x + Begin / 2);
}

// The row of this thread's top values within the 64; bottom is 8 further.
__device__ __forceinline__ int thread_row() { return threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4; }
// The column of value i of an Accum is thread_col() + col_of(i).
__device__ __forceinline__ int thread_col() { return threadIdx.x % 4 * 2; }
__device__ __forceinline__ constexpr int col_of(int i) { return i / 4 * 8 + i % 2; }

// The same 64 x Cols values rounded to 2 bytes, laid out as wgmma register operand A.
template <int Cols>
struct OperandA {
  u32 x[Cols / 16][4];
  __device__ OperandA() {}
  __device__ void clear() {
#pragma unroll
    for (auto& two_fragments : x)
#pragma unroll
      for (u32& both : two_fragments) both = 0;
  }
};

// One fragment, rounded: 2 registers.
template <class T, int Cols>
__device__ __forceinline__ void round_fragment(OperandA<Cols>& dst, int fragment, const float* x) {
  dst.x[fragment / 2][fragment % 2 * 2 + 0] = ptx::cvt_pack2<T>(x[0], x[1]);
  dst.x[fragment / 2][fragment % 2 * 2 + 1] = ptx::cvt_pack2<T>(x[2], x[3]);
}

template <class T, int Cols>
__device__ __forceinline__ void round_to(OperandA<Cols>& dst, const Accum<Cols>& src) {
#pragma unroll
  for (int i = 0; i < Cols / 8; ++i) round_fragment<T>(dst, i, src.x + 4 * i);
}

// The same of columns that are first multiplied by a factor each, which lie in shared memory.
template <class T, int Cols>
__device__ __forceinline__ void round_scaled_to(OperandA<Cols>& dst, const Accum<Cols>& src, const float* factors) {
#pragma unroll
  for (int i = 0; i < Cols / 8; ++i) {
    const float2 of = *reinterpret_cast<const float2*>(factors + 8 * i + thread_col());
    const float x[4] = {src.x[4 * i] * of.x, src.x[4 * i + 1] * of.y, src.x[4 * i + 2] * of.x,
                        src.x[4 * i + 3] * of.y};
    round_fragment<T>(dst, i, x);
  }
}
template <int Cols>
__device__ __forceinline__ void scale_columns(Accum<Cols>& x, const float* factors) {
#pragma unroll
  for (int i = 0; i < Cols / 2; i += 4) {
    const float2 of = *reinterpret_cast<const float2*>(factors + 2 * i + thread_col());
    x.x[i] *= of.x, x.x[i + 1] *= of.y, x.x[i + 2] *= of.x, x.x[i + 3] *= of.y;
  }
}

// 64 x Cols weights rounded to e4m3, laid out as wgmma register operand A whose columns are not in order: its
// column 16 h + 4 t + 2 b + e holds column 16 h + 8 b + 2 t + e of the weights (e, b of 0, 1; t of 0 to 3), so that
// every thread packs what it has. B's inner dimension must lie in the same order: device/fwd/fp8_producers.cuh.
template <int Cols>
struct OperandA8 {
  u32 x[Cols / 32][4];
  __device__ OperandA8() {}
};

template <class, int Cols>
__device__ __forceinline__ void round_to(OperandA8<Cols>& dst, const Accum<Cols>& src) {
#pragma unroll
  for (int i = 0; i < Cols / 32; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {  // top and bottom of columns 0 to 15, of columns 16 to 31
      const float* x = src.x + 16 * i + j / 2 * 8 + j % 2 * 2;
      dst.x[i][j] = ptx::cvt_pack4<ptx::e4m3>(x[0], x[1], x[4], x[5]);
    }
}

// Writes a 64-row M tile transposed: dst[first_row + c][first_col + r] = src[r][c]. first_row is a multiple of 8,
// first_col of a panel's columns. An 8 x 8 block is one smem row of 16 bytes a lane: no bank conflicts. A thread's
// address is computed anew each time: kept through a loop that has no register left, it would be spilled. A caller that
// has one keeps it.
template <int Rows, int Cols>
__device__ __forceinline__ u32 transposed_address(SharedTile<Rows, Cols>& dst, int first_row, int first_col) {
  using Tile = SharedTile<Rows, Cols>;
  const u32 thread = ptx::thread_here(), lane = thread % 32, unit = thread / 32 % 4 * 2 + lane / 8 % 2;
  return dst.row(first_col / Tile::panel_columns, first_row + lane / 16 * 8 + lane % 8) + Tile::unit(unit, lane % 8);
}
template <class Tile, int N>
__device__ __forceinline__ void store_transposed_at(u32 address, const OperandA<N>& src) {
#pragma unroll
  for (int i = 0; i < N / 16; ++i) ptx::stmatrix_x4_trans(address + i * 16 * Tile::panel_row_bytes, src.x[i]);
}
template <int Rows, int Cols, int N>
__device__ __forceinline__ void store_transposed(SharedTile<Rows, Cols>& dst, int first_row, int first_col,
                                                 const OperandA<N>& src) {
  store_transposed_at<SharedTile<Rows, Cols>>(transposed_address(dst, first_row, first_col), src);
}

// Rounds Cols columns of a 64-row M tile, x of an Accum, into rows of a tile from first_row on. Every 8 lanes write 8
// rows of 16 bytes: no bank conflicts. The address is computed anew each time, as in store_transposed.
template <class T, int Cols, int Rows, int TileCols>
__device__ __forceinline__ void round_into(SharedTile<Rows, TileCols>& dst, int first_row, const float* x) {
  using Tile = SharedTile<Rows, TileCols>;
  const u32 thread = ptx::thread_here(), lane = thread % 32, matrix = lane / 8;
  const u32 row = first_row + thread / 32 % 4 * 16 + matrix % 2 * 8 + lane % 8;
  const u32 at = dst.row(0, row) + Tile::unit(matrix / 2, lane % 8);
#pragma unroll
  for (int col = 0; col < Cols; col += 16) {
    const float* its = x + col / 2;
    const u32 y[4] = {ptx::cvt_pack2<T>(its[0], its[1]), ptx::cvt_pack2<T>(its[2], its[3]),
                      ptx::cvt_pack2<T>(its[4], its[5]), ptx::cvt_pack2<T>(its[6], its[7])};
    // To move by units within a row of 128 bytes is an exclusive or: unit() does no more.
    const int bytes = col % Tile::panel_columns * 2;
    ptx::stmatrix_x4((at ^ bytes) + col / Tile::panel_columns * Tile::panel_bytes, y);
  }
}

// x[j] of quad lane l becomes x[l] of quad lane j.
__device__ __forceinline__ void transpose_in_quad(u32 (&x)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const u32 got = __shfl_xor_sync(~0u, odd ? x[i] : x[i + 1], 1);
    x[i] = odd ? got : x[i];
    x[i + 1] = odd ? x[i + 1] : got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const u32 got = __shfl_xor_sync(~0u, high ? x[i] : x[i + 2], 2);
    x[i] = high ? got : x[i];
    x[i + 2] = high ? x[i + 2] : got;
  }
}

// Where a thread's two rows lie in global memory, and whether they exist.
struct RowAddresses {
  char *top, *bottom;
  bool has_top, has_bottom;
};

// Rounds this thread's two rows and writes their first cols columns (a multiple of 8), 64 bytes of a row at a time by
// each quad: a whole sector pair, without a detour through shared memory.
template <class T, int Cols>
__device__ __forceinline__ void store_rows(const RowAddresses& at, int cols, const Accum<Cols>& src) {
  const int lane = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < Cols / 2; i += 16) {  // 32 columns: 4 fragments, of which a lane stores one
    u32 t[4], b[4];
#pragma unroll
    for (int fragment = 0; fragment < 4; ++fragment) {
      t[fragment] = ptx::cvt_pack2<T>(src.x[i + 4 * fragment + 0], src.x[i + 4 * fragment + 1]);
      b[fragment] = ptx::cvt_pack2<T>(src.x[i + 4 * fragment + 2], src.x[i + 4 * fragment + 3]);
    }
    transpose_in_quad(t);
    transpose_in_quad(b);
    const bool exists = i * 2 + lane * 8 < cols;
    const int offset = i * 4 + lane * 16;
    if (at.has_top && exists) *reinterpret_cast<uint4*>(at.top + offset) = {t[0], t[1], t[2], t[3]};
    if (at.has_bottom && exists) *reinterpret_cast<uint4*>(at.bottom + offset) = {b[0], b[1], b[2], b[3]};
  }
}

// The same in fp32.
template <int Cols>
__device__ __forceinline__ void store_rows_f32(const RowAddresses& at, int cols, const Accum<Cols>& src) {
#pragma unroll
  for (int i = 0; i < Cols / 2; i += 4) {
    const int col = thread_col() + col_of(i);
    if (col >= cols) break;
    if (at.has_top) reinterpret_cast<float2*>(at.top)[col / 2] = {src.x[i], src.x[i + 1]};
    if (at.has_bottom) reinterpret_cast<float2*>(at.bottom)[col / 2] = {src.x[i + 2], src.x[i + 3]};
  }
}

// Adds to this thread's two rows a share of the fp32 rows that lie at their addresses, and writes them there. What has
// a share of 0 is not looked at. 4 fragments are on their way at once: each wait is hundreds of cycles, and all of them
// together would take as many registers as the rows.
template <int Cols>
__device__ __forceinline__ void merge_rows_f32(const RowAddresses& at, int cols, float share_top, float share_bottom,
                                               const Accum<Cols>& src) {
  constexpr int fragments = 4;
  const bool reads_top = at.has_top && share_top != 0.f, reads_bottom = at.has_bottom && share_bottom != 0.f;
#pragma unroll
  for (int i = 0; i < Cols / 2; i += 4 * fragments) {
    ptx::keep_order();
    float2 top[fragments], bottom[fragments];
#pragma unroll
    for (int fragment = 0; fragment < fragments; ++fragment) {
      const int col = thread_col() + col_of(i + 4 * fragment);
      top[fragment] = bottom[fragment] = {0.f, 0.f};
      if (reads_top && col < cols) top[fragment] = reinterpret_cast<const float2*>(at.top)[col / 2];
      if (reads_bottom && col < cols) bottom[fragment] = reinterpret_cast<const float2*>(at.bottom)[col / 2];
    }
#pragma unroll
    for (int fragment = 0; fragment < fragments; ++fragment) {
      const int col = thread_col() + col_of(i + 4 * fragment);
      const float* x = src.x + i + 4 * fragment;
      const float2 &t = top[fragment], &b = bottom[fragment];
      if (at.has_top && col < cols)
        reinterpret_cast<float2*>(at.top)[col / 2] = {x[0] + share_top * t.x, x[1] + share_top * t.y};
      if (at.has_bottom && col < cols)
        reinterpret_cast<float2*>(at.bottom)[col / 2] = {x[2] + share_bottom * b.x, x[3] + share_bottom * b.y};
    }
  }
}

// Adds this thread's two rows to fp32 rows, to which no other thread adds at the same time, so that the sum has the
// same bits in every run. L2 adds: a load would be waited for, hundreds of cycles for each pair, as a store before it
// may be to the same address.
template <int Cols>
__device__ __forceinline__ void add_rows(const RowAddresses& at, int cols, const Accum<Cols>& src) {
#pragma unroll
  for (int i = 0; i < Cols / 2; i += 4) {
    const int col = thread_col() + col_of(i);
    if (col >= cols) break;
    if (at.has_top) ptx::red_add_v2_f32(reinterpret_cast<float*>(at.top) + col, src.x[i], src.x[i + 1]);
    if (at.has_bottom) ptx::red_add_v2_f32(reinterpret_cast<float*>(at.bottom) + col, src.x[i + 2], src.x[i + 3]);
  }
}

}  // namespace froghopper::tile
