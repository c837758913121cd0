// SPDX-License-Identifier: Apache-2.0
// device/fwd: a scale for each row of 8-bit K and of V (FwdKv::token_scales). K's multiplies a column of the scores
// before anything else does, V's the weights of a column while they are rounded; the row sum is of weights without it.
//
// The first warp that dequantises copies the scales of a tile's rows to shared memory, fwd_token_scales_ahead tiles
// ahead, and makes of them what it leaves next to the stage of K. What the tile has in common goes the way of the
// scales of a tile (attn::TileScales), so that what is left is a factor of at most 2 of a score, and of at most 1 of a
// weight, whose range is that of f16: of K the power of two of the largest scale, so that the factors are exact; of V
// the largest scale itself, so that weights of equal scales are not rounded by it.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_smem.h"
#include "contract/fwd_variant.h"
#include "contract/shared_params.h"
#include "contract/types.h"
#include "device/attn/tile_scales.cuh"
#include "device/fwd/kv_source.cuh"
#include "device/fwd/work_item.cuh"
#include "device/ptx/async_copy.cuh"
#include "device/ptx/types.cuh"

namespace froghopper::fwd {

// Of the rows of a stage; and the scale of O of the item that they belong to.
template <FwdVariant V>
struct alignas(8) TokenFactors {
  float k[V.tiles.kv], v[V.tiles.kv];
  float o_scale, unused;
};

// As they are in memory. A lane copies those of its rows, and only it reads them.
template <FwdVariant V>
struct ScalesOfRows {
  float k[V.tiles.kv], v[V.tiles.kv];
};

// The scales of an item's rows, for one warp. Paged: lanes read the block table as PageOfRow (kv_source.cuh) does, and
// keep its entries for the rows of the tile that is copied next, as KvSource does; but a warp that dequantises finds
// the columns of the table without a division. A layout of K and V that has no block table must be told from these
// (in_pages) and have an address of its own (address()). Addresses are computed where
// they are used: a warp that dequantises has few registers, and all it does here delays its tiles.
template <FwdVariant V>
struct TokenScales {
  static constexpr int rows = (V.tiles.kv + 31) / 32;  // of a lane, in a tile
  static constexpr int ahead = fwd_token_scales_ahead(V);

  // Columns of the block table, and what it has there.
  struct RowsInPages {
    int columns[rows], pages[rows];
  };

  const FwdParams& params;
  ScalesOfRows<V> (&in_flight)[ahead];
  int head, keys, sequence, first_row;  // first_row: of the sequence, where it is packed
  int next_tile;                        // that is copied next
  RowsInPages next;                     // its rows
  int whole_pages, rest;                // from a row to that of the tile below
  int stage = 0;                        // of in_flight that is looked at next
  float o_scale = 0.f;

  __device__ TokenScales(const FwdParams& params, const WorkItem& item, ScalesOfRows<V> (&in_flight)[ahead])
      : params(params),
        in_flight(in_flight),
        head(kv_head<V>(params, item)),
        keys(V.ragged ? item.lengths.seq_kv : params.seq_kv),
        sequence(item.sequence),
        first_row(V.ragged && !in_pages ? item.lengths.kv_first : 0),
        next_tile(item.kv.first()) {
    ptx::cp_async_wait<0>();  // those of the item before, which were not read
    if constexpr (in_pages) {
      whole_pages = V.tiles.kv / params.pages.size;
      rest = V.tiles.kv - whole_pages * params.pages.size;
#pragma unroll
      for (int i = 0; i < rows; ++i) next.columns[i] = row_of(next_tile, i) / params.pages.size;
      look_up(next_tile);
    }
    RowsInPages of_tiles[ahead];
#pragma unroll
    for (int tile = 0; tile < ahead; ++tile) {
      of_tiles[tile] = next;
      go_down(next_tile - tile);
    }
#pragma unroll
    for (int tile = 0; tile < ahead; ++tile) copy(in_flight[tile], next_tile - tile, of_tiles[tile]);
    next_tile -= ahead;
  }

  // Of the tile that is next in order, by all lanes; then the copy of one further below begins. Below the item's last
  // tile lie others of the sequence, whose scales may be read, or none.
  __device__ void put(TokenFactors<V>& factors, attn::TileScales& of_tile) {
    ptx::cp_async_wait<ahead - 1>();
    ScalesOfRows<V>& scales = in_flight[stage];
    float k[rows], v[rows];
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      k[i] = is_row(i) ? scales.k[in_tile(i)] : 0.f;
      v[i] = is_row(i) ? scales.v[in_tile(i)] : 0.f;
    }
    const float power = power_of_two_in(largest(k)), most = largest(v);
    if (o_scale == 0.f) o_scale = most;  // the item's first tile
    const float inverse = __uint_as_float((254u << 23) - __float_as_uint(power)), of_most = __frcp_rn(most);
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      if (!is_row(i)) break;
      factors.k[in_tile(i)] = k[i] * inverse;
      factors.v[in_tile(i)] = v[i] == most ? 1.f : v[i] * of_most;
    }
    if (lane() == 0) {
      factors.o_scale = o_scale;
      of_tile = attn::TileScales::of(power, most, o_scale);
    }
    copy(scales, next_tile, next);
    go_down(next_tile);
    --next_tile;
    stage = stage + 1 == ahead ? 0 : stage + 1;
  }

 private:
  static constexpr bool in_pages = V.kv.layout == KvLayout::pages || V.kv.layout == KvLayout::page_rows;
  static_assert(in_pages || V.kv.layout == KvLayout::contiguous, "scales of rows have no address in this layout");

  static __device__ int lane() { return threadIdx.x % 32; }
  static __device__ int in_tile(int i) { return 32 * i + lane(); }
  static __device__ bool is_row(int i) { return V.tiles.kv % 32 == 0 || in_tile(i) < V.tiles.kv; }
  static __device__ int row_of(int kv_tile, int i) { return kv_tile * V.tiles.kv + in_tile(i); }

  // Begins to copy a tile's scales, a cp.async group by itself.
  __device__ void copy(ScalesOfRows<V>& to, int kv_tile, const RowsInPages& where) {
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      if (!is_row(i)) break;
      const int row = row_of(kv_tile, i);
      const bool none = !is_valid(row);
      const float *k = params.eight_bit.k.data, *v = params.eight_bit.v.data;
      if (!none) {
        k = address(params.eight_bit.k, row, where, i);
        v = address(params.eight_bit.v, row, where, i);
      }
      ptx::cp_async_4(&to.k[in_tile(i)], k, none);
      ptx::cp_async_4(&to.v[in_tile(i)], v, none);
    }
    ptx::cp_async_commit();
  }

  // `next` is that of kv_tile, and becomes that of the tile below. Rows below 0 have no page, and columns of their own.
  __device__ void go_down(int kv_tile) {
    if constexpr (in_pages) {
#pragma unroll
      for (int i = 0; i < rows; ++i)
        next.columns[i] -= whole_pages + (in_page(row_of(kv_tile, i), next.columns[i]) < rest);
      look_up(kv_tile - 1);
    }
  }
  __device__ int in_page(int row, int column) const { return row - column * params.pages.size; }
  __device__ void look_up(int kv_tile) {
#pragma unroll
    for (int i = 0; i < rows; ++i)
      next.pages[i] = is_valid(row_of(kv_tile, i))
                          ? __ldg(params.pages.table + sequence * params.pages.sequence_stride +
                                  next.columns[i] * params.pages.page_stride)
                          : 0;
  }
  __device__ bool is_valid(int row) const { return static_cast<unsigned>(row) < static_cast<unsigned>(keys); }
  __device__ const float* address(const ScaleValues& of, int row, const RowsInPages& where, int i) const {
    const float* const head_scales = of.data + head * of.head;
    if constexpr (in_pages)
      return head_scales + where.pages[i] * of.batch + in_page(row, where.columns[i]) * of.block;
    return head_scales + sequence * of.batch + (first_row + row) * of.block;
  }

  // Of the tile's valid rows; more than 0, also where there are none, or where scales are 0.
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
