// SPDX-License-Identifier: Apache-2.0
// 16-bit q, k and v -> 8-bit ones and scales. Rows of q and k may be rotated first: contract/quantise.h. In smooth
// variants k and v then lose the mean of their rows, which device/quantise/average.cuh has found.
//
// Work      a persistent CTA takes every so many-th item; an item is a tile, 128 rows of one head of one tensor
// Roles     8 warps, 16 rows each. A quad has rows r and r + 8 of them, a thread every fourth 16 bytes of both.
//           The first thread also finds the addresses of tiles (Walk). 3, 2 or 1 CTAs an SM, by the head dim, share its
//           registers (quantise_ctas_per_sm)
// Order     the head runs fastest, so that CTAs read neighbouring memory at a time
// Overlap   the next tiles come by cp.async while this one is computed. It is launched without overlap with other
//           kernels
// Barriers  one a tile, between the warps' largest values and the tile's. What a thread loads it reads itself. The
//           addresses of a tile are found after one tile's barrier and read after the next one's, and they are written
//           over when all threads have passed the barrier of the tile after the one that they were for
// Shared    a ring of tiles, in pieces of 16 bytes a thread; the rotation's matrices; one value for each warp, twice,
//           so that the next tile's is written while this one's is read; addresses of tiles, and the Walk to the next
//           one
// Padding   rows past a sequence's end and columns past a row's are zeros, whatever memory holds there
#pragma once
#include "contract/quantise.h"
#include "contract/quantise_params.h"
#include "contract/quantise_variant.h"
#include "device/attn/element.cuh"
#include "device/ptx/async_copy.cuh"
#include "device/ptx/fp8.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/matrix.cuh"
#include "device/ptx/types.cuh"
#include "device/quantise/matrices.cuh"
#include "device/quantise/tiles.cuh"

namespace froghopper::quantise {

template <QuantiseVariant V>
struct Quantise {
  static_assert(why_invalid(V) == nullptr);
  using From = typename attn::Element<V.from>::type;
  using To = typename attn::Element<V.to>::type;

  static constexpr int threads = quantise_threads, warps = threads / 32;
  static constexpr int smem_bytes = quantise_smem_bytes(V);
  static constexpr int groups = V.dim / group_columns;
  static constexpr int stages = quantise_stages(V);
  // Tiles are loaded stages - 1 tiles ahead of the one that is computed, and their addresses are found two barriers
  // before that.
  static constexpr int tiles_ahead = stages + 1;
  static_assert(tiles_ahead < quantise_known_tiles);

  // What a thread has of a tile: 8 columns of each group, of two rows.
  using Values = float[groups][2][8];

  struct Smem {
    uint4 ring[stages][groups][2][threads];
    Matrices<From, V.dim> matrices;
    float of_warp[2][warps];
    Tile tiles[quantise_known_tiles];
    Walk walk;
  };
  static_assert(sizeof(Smem) == smem_bytes);

  static __device__ void run(const QuantiseParams& params) {
    extern __shared__ __align__(16) char smem_memory[];
    Smem& smem = *reinterpret_cast<Smem*>(smem_memory);
    // q comes first, and k is rotated as q is.
    if (params.tensors[0].rotation) smem.matrices.make(params.seed, params.tensors[0].rotation, threads);
    const auto find_next = [&](int item_number) {
      if (threadIdx.x != 0) return;
      smem.walk.put<V.smooth>(params, smem.tiles[item_number % quantise_known_tiles]);
      smem.walk.next(params);
    };
    if (threadIdx.x == 0) {
      smem.walk.item = blockIdx.x;
      smem.walk.step = gridDim.x;
      smem.walk.begin(params);
    }
    for (int item_number = 0; item_number < tiles_ahead; ++item_number) find_next(item_number);
    __syncthreads();
#pragma unroll
    for (int item_number = 0; item_number < stages - 1; ++item_number)
      load(smem.ring[item_number], smem.tiles[item_number]);
    for (int item_number = 0, stage = 0; smem.tiles[item_number % quantise_known_tiles].from; ++item_number) {
      const int free = stage == 0 ? stages - 1 : stage - 1;  // the one that was read last
      load(smem.ring[free], smem.tiles[(item_number + stages - 1) % quantise_known_tiles]);
      ptx::cp_async_wait<stages - 1>();
      quantise(smem, params, smem.tiles[item_number % quantise_known_tiles], smem.ring[stage],
               smem.of_warp[item_number % 2], [&] { find_next(item_number + tiles_ahead); });
      stage = stage == stages - 1 ? 0 : stage + 1;
    }
  }

 private:
  static __device__ int row_of_thread() { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4; }

  // Starts the copy of what this thread has of a tile. A tile that does not exist is a group too.
  static __device__ void load(uint4 (&to)[groups][2][threads], const Tile& tile) {
    if (const char* const first = tile.from) {
      const int column = threadIdx.x % 4 * 8;
      const long long to_next_row = tile.from_row;
      const char* at = first + row_of_thread() * to_next_row + column * 2;
      const int rows = tile.rows, columns = tile.dim - column;
#pragma unroll
      for (int r = 0; r < 2; ++r, at += 8 * to_next_row) {
        const bool row_exists = row_of_thread() + 8 * r < rows;
#pragma unroll
        for (int g = 0; g < groups; ++g)
          ptx::cp_async_16(&to[g][r][threadIdx.x], at + g * group_columns * 2,
                           !(row_exists && g * group_columns < columns));
      }
    }
    ptx::cp_async_commit();
  }

  template <class AfterBarrier>
  static __device__ void quantise(const Smem& smem, const QuantiseParams& params, const Tile& tile,
                                  const uint4 (&from)[groups][2][threads], float (&of_warp)[warps],
                                  AfterBarrier after_barrier) {
    const int rotation = tile.rotation;
    const Scaling scaling = params.scaling;
    Values x;
    if (rotation)
      rotate(smem, from, rotation, x);
    else
      read(from, x);
    if constexpr (V.smooth)
      if (tile.mean >= 0) subtract(params.means + static_cast<long long>(tile.mean) * V.dim, tile.rows, x);
    const float mine = scaling == Scaling::shared ? largest_of_sequence(tile) : largest(x);
    of_warp[threadIdx.x / 32] = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(mine)));
    __syncthreads();
    after_barrier();
    float of_tile = of_warp[0];
#pragma unroll
    for (int warp = 1; warp < warps; ++warp) of_tile = fmaxf(of_tile, of_warp[warp]);

    if (scaling == Scaling::look) {
      if (threadIdx.x == 0) tile.largest[static_cast<long long>(tile.tile) * tile.heads] = of_tile;
      return;
    }
    const float norm = tile.norm;
    const float scale = of_tile > 0.f ? fmaxf(of_tile * norm * (1.f / largest_of(V.to)), smallest_scale) : 1.f;
    if (threadIdx.x == 0 && tile.scale) *tile.scale = scale;
    store(tile, x, norm * ptx::rcp_approx(scale));
  }

  static __device__ void read(const uint4 (&from)[groups][2][threads], Values& x) {
#pragma unroll
    for (int g = 0; g < groups; ++g)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint4 words = from[g][r][threadIdx.x];
        const ptx::u32 pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 pair = ptx::cvt_unpack2<From>(pairs[i]);
          x[g][r][2 * i] = pair.x;
          x[g][r][2 * i + 1] = pair.y;
        }
      }
  }

  // Rows that do not exist stay 0.
  static __device__ void subtract(const float* mean, int rows, Values& x) {
    const int column = threadIdx.x % 4 * 8;
    const bool exists[2] = {row_of_thread() < rows, row_of_thread() + 8 < rows};
#pragma unroll
    for (int g = 0; g < groups; ++g) {
      const float4* const at = reinterpret_cast<const float4*>(mean + g * group_columns + column);
      const float4 low = at[0], high = at[1];
      const float means[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int i = 0; i < 8; ++i)
          if (exists[r]) x[g][r][i] -= means[i];
    }
  }

  // Not divided by sqrt(block): the scale is, and what values are multiplied by.
  static __device__ void rotate(const Smem& smem, const uint4 (&from)[groups][2][threads], int block, Values& x) {
#pragma unroll
    for (int g = 0; g < groups; ++g) {
      const uint4 top = from[g][0][threadIdx.x], bottom = from[g][1][threadIdx.x];
      multiply(smem.matrices.fragments[2 * g], {top.x, bottom.x, top.y, bottom.y}, 0, x[g]);
      multiply(smem.matrices.fragments[2 * g + 1], {top.z, bottom.z, top.w, bottom.w}, 1, x[g]);
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int i = 0; i < 4; ++i) butterfly(x[g][r][i], x[g][r][i + 4]);
    }
    if (block >= 64) butterflies<1>(x);
    if (block >= 128) butterflies<2>(x);
    if (block >= 256) butterflies<4>(x);
  }

  struct Fragment {
    ptx::u32 words[4];
  };
  static __device__ void multiply(const uint4 (&matrix)[32], const Fragment& a, int step, float (&x)[2][8]) {
    const uint4 b = matrix[threadIdx.x % 32];
    float low[4] = {}, high[4] = {};  // the two halves
    ptx::mma_m16n8k16<From>(low, a.words, b.x, b.y);
    ptx::mma_m16n8k16<From>(high, a.words, b.z, b.w);
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        x[r][4 * step + odd] = low[2 * r + odd];
        x[r][4 * step + 2 + odd] = high[2 * r + odd];
      }
  }

  static __device__ void butterfly(float& a, float& b) {
    const float sum = a + b, difference = a - b;
    a = sum;
    b = difference;
  }

  // Of groups whose numbers differ in one bit. Groups past the last one are of a tile that is wider than its rows.
  template <int Bit>
  static __device__ void butterflies(Values& x) {
#pragma unroll
    for (int g = 0; g + Bit < groups; ++g) {
      if (g & Bit) continue;
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int i = 0; i < 8; ++i) butterfly(x[g][r][i], x[g + Bit][r][i]);
    }
  }

  static __device__ float largest(const Values& x) {
    float largest = 0.f;
#pragma unroll
    for (int g = 0; g < groups; ++g)
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(x[g][r][i]));
    return largest;
  }

  static __device__ float largest_of_sequence(const Tile& tile) {
    float largest = 0.f;
    for (int i = threadIdx.x; i < tile.tiles; i += threads)
      largest = fmaxf(largest, tile.largest[static_cast<long long>(i) * tile.heads]);
    return largest;
  }

  // Even threads of a quad write the first of two groups, odd ones the second: 16 neighbouring bytes each.
  static __device__ void store(const Tile& tile, const Values& x, float factor) {
    const bool odd = threadIdx.x % 2 != 0;
    const int column = threadIdx.x % 4 / 2 * 16 + (odd ? group_columns : 0);
    const long long to_next_row = tile.to_row;
    const int rows = tile.rows, columns = tile.dim - column;
    char* to = tile.to + row_of_thread() * to_next_row + column;
#pragma unroll
    for (int r = 0; r < 2; ++r, to += 8 * to_next_row) {
      const bool row_exists = row_of_thread() + 8 * r < rows;
#pragma unroll
      for (int g = 0; g < groups; g += 2) {
        const uint2 first = eight(x[g][r], factor), second = eight(x[g + 1][r], factor);
        const uint2 mine = odd ? second : first, given = odd ? first : second;
        const uint2 got = {__shfl_xor_sync(~0u, given.x, 1), __shfl_xor_sync(~0u, given.y, 1)};
        if (row_exists && g * group_columns < columns)
          *reinterpret_cast<uint4*>(to + g * group_columns) =
              odd ? uint4{got.x, got.y, mine.x, mine.y} : uint4{mine.x, mine.y, got.x, got.y};
      }
    }
  }
  static __device__ uint2 eight(const float (&x)[8], float factor) {
    return {ptx::cvt_pack4<To>(x[0] * factor, x[1] * factor, x[2] * factor, x[3] * factor),
            ptx::cvt_pack4<To>(x[4] * factor, x[5] * factor, x[6] * factor, x[7] * factor)};
  }
};

}  // namespace froghopper::quantise
