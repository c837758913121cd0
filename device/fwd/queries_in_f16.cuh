// SPDX-License-Identifier: Apache-2.0
// device/fwd: Q becomes f16, in its place, to be multiplied by 8-bit K as f16.
//
// bf16: two values of K become f16 by one instruction, bf16 by four. Each row of Q is multiplied by the power of two
// that brings its largest value to [2^15, 2^16), and its scores by the inverse. The 8 bits of a bf16 value are exact
// then down to 2^-32 of the largest one, and what is smaller is off by 2^-40 of that at most: far below what a sum in
// fp32 keeps.
// 8 bits: exactly. Rows of a PackGQA tile are of several heads and have their scales.
//
// A quad takes the two rows whose scores it will have; a lane 16 bytes at a time. The 8 lanes that shared memory serves
// at once have 4 units of an even row and the other 4 of an odd one, which the swizzle puts into different banks.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "contract/split.h"
#include "contract/types.h"
#include "device/attn/element.cuh"
#include "device/attn/softmax.cuh"
#include "device/fwd/scales.cuh"
#include "device/fwd/work_item.cuh"
#include "device/ptx/barrier.cuh"
#include "device/ptx/fp8.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/registers.cuh"
#include "device/ptx/shared_memory.cuh"
#include "device/ptx/types.cuh"
#include "device/tile/accum.cuh"
#include "device/tile/shared_tile.cuh"

namespace froghopper::fwd {

// A quad has two rows of Q, `row` and `row + 8`; a lane reads 16 bytes of each half of a row of a panel (half_row).
template <class Tile>
struct RowsOfQuad {
  // halves: the shared addresses of this lane's 16 bytes, one in either half of the row. Odd rows take the second half
  // first, so that the 8 lanes that are served at once meet no bank twice.
  ptx::u32 row, halves[2];

  __device__ __forceinline__ RowsOfQuad(Tile& tile, int m_tile_index) {
    const ptx::u32 thread = ptx::thread_here(), lane = thread % 32;
    row = m_tile_index * m_tile_rows + thread / 32 % 4 * 16 + lane / 4;
    halves[0] = tile.row(0, row) + Tile::unit(lane % 4 + 4 * (row & 1), row % 8);
    halves[1] = tile.row(0, row) + Tile::unit(lane % 4 + 4 * (1 - (row & 1)), row % 8);
  }
  // half_row: 0 and 1 are those of panel 0, 2 and 3 those of panel 1.
  __device__ __forceinline__ ptx::u32 at(int half_row, bool bottom) const {
    return halves[half_row % 2] + half_row / 2 * Tile::panel_bytes + (bottom ? 8 * Tile::panel_row_bytes : 0);
  }
};

// Biased by 127: of the largest value of one of a quad's rows.
template <class Tile>
__device__ __forceinline__ int largest_exponent(const RowsOfQuad<Tile>& rows, bool bottom) {
  ptx::u32 x[4];
  ptx::u32 most = 0;  // the largest of either half, without its sign: as integers such values have the same order
#pragma unroll
  for (int half_row = 0; half_row < 2 * Tile::panels; ++half_row) {
    ptx::ld_shared_v4(x, rows.at(half_row, bottom));
#pragma unroll
    for (const ptx::u32 two : x) most = ptx::max_u16x2(most, two & 0x7fff7fff);
  }
  most = ptx::max_u16x2(most, __shfl_xor_sync(~0u, most, 1));
  most = ptx::max_u16x2(most, __shfl_xor_sync(~0u, most, 2));
  return static_cast<int>(max(most >> 16, most & 0xffff)) >> 7;
}

// By what power of two a row is multiplied. Not more than leaves scores of a row of tiny values in the range of fp32,
// whose own scale is small then.
__device__ __forceinline__ int shift_up(int exponent) {
  constexpr int top = 15, most_up = 120;
  return min(top + 127 - exponent, most_up);
}
__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float((127 + exponent) << 23); }

template <class Tile>
__device__ __forceinline__ void bf16_row_to_f16(const RowsOfQuad<Tile>& rows, bool bottom, float shift) {
  ptx::u32 x[4];
#pragma unroll
  for (int half_row = 0; half_row < 2 * Tile::panels; ++half_row) {
    ptx::ld_shared_v4(x, rows.at(half_row, bottom));
#pragma unroll
    for (ptx::u32& two : x) {
      const float2 wide = ptx::cvt_unpack2<ptx::bf16>(two);
      two = ptx::cvt_pack2<ptx::f16>(wide.x * shift, wide.y * shift);
    }
    ptx::st_shared_v4(rows.at(half_row, bottom), x);
  }
}

// Returns what this thread's two rows are to be multiplied by to be as they were. Two Consumers that share an M tile
// look at all of it before one of them changes any, and then convert a row of each quad.
template <int Sharers, class Tile>
__device__ __forceinline__ attn::RowPair bf16_to_f16(Tile& q, int m_tile_index, int sharer) {
  const RowsOfQuad<Tile> rows(q, m_tile_index);
  int up[2];
  if constexpr (Sharers == 1) {
#pragma unroll
    for (int bottom = 0; bottom < 2; ++bottom) {
      up[bottom] = shift_up(largest_exponent(rows, bottom));
      bf16_row_to_f16(rows, bottom, power_of_two(up[bottom]));
    }
  } else {
#pragma unroll
    for (int bottom = 0; bottom < 2; ++bottom) up[bottom] = shift_up(largest_exponent(rows, bottom));
    ptx::sync_threads<Sharers * warpgroup>(1);
    bf16_row_to_f16(rows, /*bottom=*/sharer != 0, power_of_two(sharer ? up[1] : up[0]));
  }
  return {power_of_two(-up[0]), power_of_two(-up[1])};
}

// 8-bit values lie in the first half of a row's place and become 16-bit ones in all of it: they are read before any of
// it is written.
template <class From, int Rows, int Cols>
__device__ __forceinline__ void fp8_to_f16(tile::SharedTile<Rows, Cols>& q) {
  using To = tile::SharedTile<Rows, Cols>;
  using Stored = tile::SharedTile<Rows, Cols, 1>;
  static_assert(Stored::panel_bytes == To::panel_bytes);
  const ptx::u32 lane = ptx::thread_here() % 32, first = ptx::thread_here() / 32 % 4 * 16 + lane / 4;
#pragma unroll
  for (int bottom = 0; bottom < 2; ++bottom) {
    const ptx::u32 row = first + 8 * bottom, address = q.row(0, row);
    ptx::u32 x[2 * Stored::panels][4];
#pragma unroll
    for (int half_row = 0; half_row < 2 * Stored::panels; ++half_row)
      ptx::ld_shared_v4(x[half_row], address + half_row / 2 * Stored::panel_bytes +
                                         Stored::unit(half_row % 2 * 4 + lane % 4, row % 8));
    __syncwarp();
#pragma unroll
    for (int half_row = 0; half_row < To::panels;
         ++half_row)  // half of a stored panel, 64 of its columns, is a panel of To
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const ptx::u32 low = x[half_row][2 * i], high = x[half_row][2 * i + 1];
        const ptx::u32 wide[4] = {ptx::cvt_f16x2<From>(low, false), ptx::cvt_f16x2<From>(low, true),
                                  ptx::cvt_f16x2<From>(high, false), ptx::cvt_f16x2<From>(high, true)};
        ptx::st_shared_v4(address + half_row * To::panel_bytes + To::unit(lane % 4 * 2 + i, row % 8), wide);
      }
  }
}

// The scales of this thread's two rows of a PackGQA tile.
template <FwdVariant V>
__device__ attn::RowPair scales_of_packgqa_rows(const FwdParams& params, const WorkItem& item) {
  if (item.is_end()) return {1.f, 1.f};
  const PackGqaParams& pack = params.pack_gqa;
  const int seq_q = V.ragged ? item.lengths.seq_q : params.seq_q;
  const auto of = [&](int row_in_m_tile) {  // of padding rows any
    const int head = item.head * pack.heads + min(row_in_m_tile / pack.rows, pack.heads - 1);
    const int row = min(item.q_tile * pack.rows + row_in_m_tile % pack.rows, seq_q - 1);
    return scale_of_row(params.eight_bit.q, item.sequence, head, row);
  };
  return {of(tile::thread_row()), of(tile::thread_row() + 8)};
}

// The M tile of one Consumer, or of the two that share it, by all of their threads. Returns what the scores of this
// thread's two rows are to be multiplied by.
template <FwdVariant V, class Tile>
__device__ __forceinline__ attn::RowPair queries_in_f16(const FwdParams& params, const WorkItem& item, Tile& q,
                                                        int m_tile_index, int sharer) {
  attn::RowPair of_rows;
  if constexpr (V.dtype == Dtype::bf16) {
    of_rows = bf16_to_f16<fwd_consumers_per_m_tile(V)>(q, m_tile_index, sharer);
  } else {
    of_rows = scales_of_packgqa_rows<V>(params, item);
    fp8_to_f16<typename attn::Element<V.dtype>::type>(q);
  }
  ptx::fence_proxy_async_shared();
  ptx::sync_threads<fwd_consumers_per_m_tile(V) * warpgroup>(1 + m_tile_index);  // a product is the whole M tile's
  return of_rows;
}

}  // namespace froghopper::fwd
