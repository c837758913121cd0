// SPDX-License-Identifier: Apache-2.0
// device/fwd: a scale for each row of 8-bit K and of V (FwdKv::token_scales). K's multiplies a column of the scores
// before anything else does, V's the weights of a column while they are rounded; the row sum is of weights without it.
//
// The first warp that dequantises brings the scales of a tile's rows, a tile ahead, and leaves them in shared memory
// beside the stage of K. What the tile has in common goes the way of the scales of a tile (attn::TileScales), so that
// what is left is a factor of at most 2 of a score, and of at most 1 of a weight, whose range is that of f16: of K the
// power of two of the largest scale, so that the factors are exact; of V the largest scale itself, so that weights of
// equal scales are not rounded by it.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "contract/parts.h"
#include "contract/types.h"
#include "device/attn/tile_scales.cuh"
#include "device/fwd/kv_source.cuh"
#include "device/fwd/work_item.cuh"
#include "device/ptx/types.cuh"

namespace froghopper::fwd {

// Of the rows of a stage; and the scale of O of the item that they belong to.
template <FwdVariant V>
struct alignas(8) TokenFactors {
  float k[V.tiles.kv], v[V.tiles.kv];
  float o_scale, unused;
};

// The scales of an item's rows. Pages: lanes keep the entries of the block table for the rows of the tile below, as
// KvSource does. Addresses are computed where they are used: a warp that dequantises has few registers.
template <FwdVariant V>
struct TokenScales {
  static constexpr int rows = (V.tiles.kv + 31) / 32;  // of a lane, in a tile

  const FwdParams& params;
  int head, keys, sequence, first_row;  // first_row: of the sequence, where it is packed
  int pages[rows];                      // of the rows that are read next
  float k[rows], v[rows];
  float o_scale = 0.f;

  __device__ TokenScales(const FwdParams& params, const WorkItem& item)
      : params(params),
        head(kv_head<V>(params, item)),
        keys(V.ragged ? item.lengths.seq_kv : params.seq_kv),
        sequence(item.sequence),
        first_row(V.ragged && !in_pages ? item.lengths.kv_first : 0) {
#pragma unroll
    for (int i = 0; i < rows; ++i) pages[i] = page_of(row_of(item.kv.first(), i));
    read(item.kv.first());
  }

  // Of a tile whose pages are known; and the pages of the one below.
  __device__ void read(int kv_tile) {
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      const int row = row_of(kv_tile, i);
      k[i] = counts(row) ? __ldg(address(params.eight_bit.k, row, pages[i])) : 0.f;
      v[i] = counts(row) ? __ldg(address(params.eight_bit.v, row, pages[i])) : 0.f;
      pages[i] = page_of(row - V.tiles.kv);
    }
  }

  // What has been read, by all lanes.
  __device__ void put(TokenFactors<V>& factors, attn::TileScales& of_tile) {
    const float power = power_of_two_in(largest(k)), most = largest(v);
    if (o_scale == 0.f) o_scale = most;  // the item's first tile
    const float inverse = __uint_as_float((254u << 23) - __float_as_uint(power));
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      const int at = 32 * i + lane();
      if (V.tiles.kv % 32 != 0 && at >= V.tiles.kv) break;
      factors.k[at] = k[i] * inverse;
      factors.v[at] = __fdiv_rn(v[i], most);
    }
    if (lane() != 0) return;
    factors.o_scale = o_scale;
    of_tile = attn::TileScales::of(power, most, o_scale);
  }

 private:
  static constexpr bool in_pages = V.kv.in != KvIn::rows;

  static __device__ int lane() { return threadIdx.x % 32; }
  static __device__ int row_of(int kv_tile, int i) { return kv_tile * V.tiles.kv + 32 * i + lane(); }
  __device__ bool counts(int row) const { return static_cast<unsigned>(row) < static_cast<unsigned>(keys); }
  __device__ int page_of(int row) const {
    if (!in_pages || !counts(row)) return 0;
    return __ldg(params.pages.table + sequence * params.pages.sequence_stride +
                 row / params.pages.size * params.pages.page_stride);
  }
  __device__ const float* address(const ScaleValues& of, int row, int page) const {
    const float* const of_head = of.data + head * of.head;
    if constexpr (in_pages) return of_head + page * of.batch + row % params.pages.size * of.block;
    return of_head + sequence * of.batch + (first_row + row) * of.block;
  }

  // Of the tile's rows that count; more than 0, also where there are none, or where scales are 0.
  static __device__ float largest(const float (&scales)[rows]) {
    constexpr float least = 0x1p-126f;
    float most = least;
#pragma unroll
    for (const float scale : scales) most = fmaxf(most, scale);
    return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(most)));  // as integers they have the same order
  }
  static __device__ float power_of_two_in(float x) { return __uint_as_float(__float_as_uint(x) & 0x7f800000u); }
};

// What a loader reads a tile ahead in variants whose tiles have a scale (ScalesAhead).
struct NoScalesAhead {
  __device__ NoScalesAhead(const FwdParams&, const WorkItem&, int) {}
  __device__ attn::TileScales of_tile() const { return {}; }
  __device__ void read(const FwdParams&, const WorkItem&, int) {}
};

}  // namespace froghopper::fwd
