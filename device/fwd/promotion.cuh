// SPDX-License-Identifier: Apache-2.0
// device/fwd: O of 8-bit variants in two levels. wgmma adds 8-bit products to an fp32 accumulator as if both had 14
// bits, and cuts off the rest, so a long sum loses 2^-14 of itself at every step. At every kv tile whose number is a
// multiple of fwd_promotion_tiles, O is added, in ordinary fp32, to a sum in the workspace, which stays in L2, and
// begins at 0 again.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "device/attn/softmax_e4m3.cuh"
#include "device/fwd/sums.cuh"
#include "device/ptx/reduce.cuh"
#include "device/ptx/registers.cuh"

namespace froghopper::fwd {

// Of one Consumer, which walks kv tiles [begin, end) from the last to the first. A sum belongs to the references and
// the unit of its time, which lie before it.
template <FwdVariant V>
struct Promotion {
  using Output = tile::Accum<fwd_columns(V)>;
  static constexpr int groups = Sums<V>::groups, tiles = fwd_promotion_tiles(V);

  const NarrowParams& params;
  int consumer;

  static __device__ bool due(int kv_tile, int begin) { return kv_tile % tiles == 0 && kv_tile > begin; }

  // At a tile where it is due. S is free: it is P by now.
  __device__ __forceinline__ void promote(int kv_tile, int end, bool moved, const attn::E4m3Softmax& now,
                                          Output& o) const {
    const bool first = kv_tile + tiles >= end - 1;
    float4* sums = place();
    // No reference has moved: L2 adds, and nobody waits for it.
    if (!first && !moved) {
#pragma unroll
      for (int i = 0; i < groups; ++i) {
        const float* x = o.x + 4 * i;
        ptx::red_add_v4_f32(&sums[(i + 1) * warpgroup].x, x[0], x[1], x[2], x[3]);
      }
      return o.clear();
    }
    const attn::RowPair age = since(now, sums);
#pragma unroll
    for (int i = 0; i < groups; i += 8) {
      ptx::keep_order();
      if (!first) add<8>(o, i, sums, age);
#pragma unroll
      for (int j = 4 * i; j < 4 * (i + 8) && j < 4 * groups; j += 4)
        sums[(j / 4 + 1) * warpgroup] = {o.x[j], o.x[j + 1], o.x[j + 2], o.x[j + 3]};
    }
    *sums = {now.ref.top, now.ref.bottom, now.grown};
    o.clear();
  }

  // Whether there is a sum once all tiles are in.
  static __device__ bool has_sum(int begin, int end) { return due((end - 2) / tiles * tiles, begin); }
  // O becomes the whole of it. Its last product may be on its way. S is free: its registers take what comes from L2.
  __device__ __forceinline__ void finish(const attn::E4m3Softmax& now, Output& o) const {
    const float4* sums = place();
    const attn::RowPair age = since(now, sums);
    constexpr int together = V.tiles.kv / 8;
#pragma unroll
    for (int i = 0; i < groups; i += together) {
      ptx::keep_order();
      float4 sum[together];
      Sums<V>::load(sum, i, sums);
      if (i == 0) ptx::wgmma_wait<0>();
      Sums<V>::each(sum, o, i, [&](float* x, const float4& sum) { add_group(x, sum, age); });
    }
  }

 private:
  // What a sum is multiplied by. Equal references may be infinite: a row that has seen no key yet.
  static __device__ attn::RowPair since(const attn::E4m3Softmax& now, const float4* then) {
    const float4 old = *then;
    const float growth = ptx::ex2_approx(old.z - now.grown);
    const auto of_row = [&](float ref, float now_ref) {
      return ref == now_ref ? growth : ptx::ex2_approx(ref - now_ref) * growth;
    };
    return {of_row(old.x, now.ref.top), of_row(old.y, now.ref.bottom)};
  }
  static __device__ __forceinline__ void add_group(float* x, const float4& sum, attn::RowPair age) {
    x[0] += sum.x * age.top;
    x[1] += sum.y * age.top;
    x[2] += sum.z * age.bottom;
    x[3] += sum.w * age.bottom;
  }
  template <int Together>
  static __device__ __forceinline__ void add(Output& o, int at, const float4* sums, attn::RowPair age) {
    Sums<V>::template join<Together>(o, at, sums, [&](float* x, const float4& sum) { add_group(x, sum, age); });
  }
  __device__ float4* place() const { return Sums<V>::of(params, consumer); }
};

}  // namespace froghopper::fwd
