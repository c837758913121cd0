// SPDX-License-Identifier: Apache-2.0
// device/fwd: O of variants with FP8 MMAs in two levels. wgmma adds FP8 products to an fp32 accumulator as if both had
// 14 bits, and cuts off the rest, so a long sum loses 2^-14 of itself at every step. Every fwd_promotion_tiles kv tiles
// O is added, in ordinary fp32, to a sum in the workspace, which stays in L2, and begins at 0 again. Where it has many
// columns, a part of them at a time.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "device/attn/softmax_e4m3.cuh"
#include "device/fwd/sums.cuh"
#include "device/ptx/reduce.cuh"
#include "device/ptx/registers.cuh"

namespace froghopper::fwd {

// Whether a row max has moved since a part of O was put aside, a bit for each.
struct Moved {
  ptx::u32 parts = 0;

  __device__ void all() { parts = ~0u; }
  __device__ bool since(int part) const { return parts >> part & 1; }
  __device__ void forget(int part) { parts &= ~(1u << part); }
};

// Of one Consumer, and the kv tiles that it visits. A part's sum is stored with the row max and
// the unit (`grown`) under which it was computed, as its head.
template <FwdVariant V>
struct Promotion {
  using Output = tile::Accum<fwd_columns(V)>;
  static constexpr int groups = Sums<V>::groups, heads = Sums<V>::heads;
  static constexpr int tiles = fwd_promotion_tiles(V), parts = fwd_promotion_parts(V), step = tiles / parts;
  static constexpr int of_part = groups / parts;
  static_assert(tiles % parts == 0 && groups % parts == 0);

  const EightBitParams& params;
  int consumer;

  // Whether a row has sums once all its tiles are in. Of several parts one would be due in rows too short to need it.
  static __device__ bool has_sums(TileSequence<int> visited) { return visited.first() - visited.last() > tiles; }
  static __device__ bool due(int kv_tile, TileSequence<int> visited) {
    return kv_tile % step == 0 && kv_tile > visited.last() && has_sums(visited);
  }

  // At a tile where it is due, before its product.
  __device__ __forceinline__ void promote(int kv_tile, TileSequence<int> visited, const attn::E4m3Softmax& now,
                                          Moved& moved, Output& o) const {
    const int part = kv_tile % tiles / step;
    const bool first = kv_tile + tiles >= visited.first();
#pragma unroll
    for (int p = 0; p < parts; ++p)
      if (part == p) put_aside(p, first, now, moved, o);
  }

  // O becomes the whole of it. Its last product may be on its way. S is free: its registers take what comes from L2.
  __device__ __forceinline__ void finish(TileSequence<int> visited, const attn::E4m3Softmax& now, const Moved& moved,
                                         Output& o) const {
    if (!has_sums(visited)) return;
    const float4* const sums = place();
    constexpr int together = V.tiles.kv / 8;
    attn::RowPair rescale = {1.f, 1.f};
    if constexpr (parts == 1) rescale = since(now, sums);
#pragma unroll
    for (int i = 0; i < groups; i += together) {
      ptx::keep_order();
      float4 sum[together];
      Sums<V>::load(sum, i, sums);
      if (i == 0) ptx::wgmma_wait<0>();
#pragma unroll
      for (int j = 0; j < together && i + j < groups; ++j) {
        const int part = (i + j) / of_part;
        if (parts > 1 && (i + j) % of_part == 0)
          rescale = moved.since(part) ? since(now, sums + part * warpgroup) : attn::RowPair{1.f, 1.f};
        add_group(o.x + 4 * (i + j), sum[j], rescale);
      }
    }
  }

 private:
  __device__ __forceinline__ void put_aside(int part, bool first, const attn::E4m3Softmax& now, Moved& moved,
                                            Output& o) const {
    const int begin = part * of_part;
    float4* const sums = place();
    const auto group = [&](int i) { return o.x + 4 * (begin + i); };
    const auto sum = [&](int i) { return sums + (heads + begin + i) * warpgroup; };
    if (!first && !moved.since(part)) {
      // No reference has moved: L2 adds, and nobody waits for it.
#pragma unroll
      for (int i = 0; i < of_part; ++i)
        ptx::red_add_v4_f32(&sum(i)->x, group(i)[0], group(i)[1], group(i)[2], group(i)[3]);
    } else {
      float4* const head = sums + part * warpgroup;
      attn::RowPair rescale = {1.f, 1.f};
      if (!first) rescale = since(now, head);
#pragma unroll
      for (int i = 0; i < of_part; i += 8) {
        ptx::keep_order();
        if (!first)
          Sums<V>::template join<8>(o, begin + i, sums,
                                    [&](float* x, const float4& sum) { add_group(x, sum, rescale); });
#pragma unroll
        for (int j = i; j < i + 8 && j < of_part; ++j) *sum(j) = {group(j)[0], group(j)[1], group(j)[2], group(j)[3]};
      }
      *head = {now.row_max.top, now.row_max.bottom, now.grown};
      moved.forget(part);
    }
    if constexpr (fwd_immediate_pv(V)) return;  // the next product is not added to what O has
#pragma unroll
    for (int i = 0; i < 4 * of_part; ++i) o.x[4 * begin + i] = 0.f;
  }

  // What a sum is multiplied by. Equal row maxima may be infinite: a row that has seen no key yet.
  static __device__ attn::RowPair since(const attn::E4m3Softmax& now, const float4* then) {
    const float4 old = *then;
    const float growth = ptx::ex2_approx(old.z - now.grown);
    const auto of_row = [&](float row_max, float now_row_max) {
      return row_max == now_row_max ? growth : ptx::ex2_approx(row_max - now_row_max) * growth;
    };
    return {of_row(old.x, now.row_max.top), of_row(old.y, now.row_max.bottom)};
  }
  static __device__ __forceinline__ void add_group(float* x, const float4& sum, attn::RowPair rescale) {
    x[0] += sum.x * rescale.top;
    x[1] += sum.y * rescale.top;
    x[2] += sum.z * rescale.bottom;
    x[3] += sum.w * rescale.bottom;
  }
  __device__ float4* place() const { return Sums<V>::of(params, consumer); }
};

}  // namespace froghopper::fwd
