// SPDX-License-Identifier: Apache-2.0
// device/fwd: bf16 Q becomes f16, so that it can be multiplied by 8-bit K as f16: two numbers of K become f16 by one
// instruction, bf16 by four. Each row is multiplied by the power of two that brings its largest number to
// [2^15, 2^16), and its scores by the inverse. The 8 bits of a bf16 number are exact then down to 2^-32 of the largest
// one, and what is smaller is off by 2^-40 of that at most: far below what a sum in fp32 keeps.
#pragma once
#include "device/attn/softmax.cuh"
#include "device/ptx/async_copy.cuh"
#include "device/ptx/barrier.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/narrow.cuh"

namespace froghopper::fwd {

// The strip of one Consumer, in its place, by all of its threads. Returns what this thread's two rows are to be
// multiplied by to be as they were.
//
// A quad takes the two rows whose scores it will have; a lane 16 bytes at a time. The 8 lanes that shared memory serves
// at once have 4 units of an even row and the other 4 of an odd one, which the swizzle puts into different banks.
template <int Rows, int Cols>
__device__ __forceinline__ attn::RowPair queries_in_f16(tile::SharedTile<Rows, Cols>& q, int number) {
  using Tile = tile::SharedTile<Rows, Cols>;
  constexpr int units = 2 * Tile::panels;  // of a row, that a lane has
  const ptx::u32 thread = ptx::thread_here(), lane = thread % 32;
  const ptx::u32 row = number * strip + thread / 32 % 4 * 16 + lane / 4, odd = row & 1;
  const ptx::u32 halves[2] = {q.row(0, row) + Tile::unit(lane % 4 + 4 * odd, row % 8),
                              q.row(0, row) + Tile::unit(lane % 4 + 4 * (1 - odd), row % 8)};
  const auto at = [&](int unit, bool bottom) {
    return halves[unit % 2] + unit / 2 * Tile::panel_bytes + (bottom ? 8 * Tile::panel_row_bytes : 0);
  };
  ptx::u32 x[4];

  attn::RowPair unshifted;
#pragma unroll
  for (int bottom = 0; bottom < 2; ++bottom) {
    ptx::u32 most = 0;  // the largest of either half, without its sign: as integers such numbers have the same order
#pragma unroll
    for (int unit = 0; unit < units; ++unit) {
      ptx::ld_shared_v4(x, at(unit, bottom));
#pragma unroll
      for (const ptx::u32 two : x) most = ptx::max_u16x2(most, two & 0x7fff7fff);
    }
    most = ptx::max_u16x2(most, __shfl_xor_sync(~0u, most, 1));
    most = ptx::max_u16x2(most, __shfl_xor_sync(~0u, most, 2));
    const int exponent = static_cast<int>(max(most >> 16, most & 0xffff)) >> 7;  // biased by 127
    // Not more than leaves scores of a row of tiny numbers in the range of fp32, whose own scale is small then.
    constexpr int bias = 127, top = 15, most_up = 120;
    const int up = min(top + bias - exponent, most_up);
    const float shift = __int_as_float((bias + up) << 23);
    (bottom ? unshifted.bottom : unshifted.top) = __int_as_float((bias - up) << 23);
#pragma unroll
    for (int unit = 0; unit < units; ++unit) {
      ptx::ld_shared_v4(x, at(unit, bottom));
#pragma unroll
      for (ptx::u32& two : x) {
        const float2 wide = ptx::cvt_unpack2<ptx::bf16>(two);
        two = ptx::cvt_pack2<ptx::f16>(wide.x * shift, wide.y * shift);
      }
      ptx::st_shared_v4(at(unit, bottom), x);
    }
  }
  ptx::fence_proxy_async_shared();
  ptx::warpgroup_sync(1 + number);  // a product is the whole strip's
  return unshifted;
}

}  // namespace froghopper::fwd
