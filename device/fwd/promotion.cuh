// SPDX-License-Identifier: Apache-2.0
// device/fwd: O of 8-bit variants in two levels. wgmma adds 8-bit products to an fp32 accumulator as if both had 14
// bits, and cuts off the rest, so a long sum loses 2^-14 of itself at every step. At every kv tile whose number is a
// multiple of promotion_tiles, O is added, in ordinary fp32, to a sum in the workspace, which stays in L2, and begins
// at 0 again.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "device/attn/softmax_e4m3.cuh"
#include "device/fwd/sums.cuh"
#include "device/ptx/registers.cuh"

namespace froghopper::fwd {

// Of one Consumer, which walks kv tiles [begin, end) from the last to the first. A sum belongs to the references and
// the unit of its time, which lie before it.
template <FwdVariant V>
struct Promotion {
  using Output = tile::Accum<V.dims.v>;
  static constexpr int groups = Sums<V>::groups;

  const NarrowParams& params;
  int consumer;

  static __device__ bool due(int kv_tile, int begin) { return kv_tile % promotion_tiles == 0 && kv_tile > begin; }

  // At a tile where it is due. S is free: it is P by now.
  __device__ __forceinline__ void promote(int kv_tile, int end, const attn::E4m3Softmax& now, Output& o) const {
    const bool first = kv_tile + promotion_tiles >= end - 1;
    float4* sums = place();
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

  // All tiles are in: O becomes the whole of it. The next S is on its way into its registers.
  __device__ __forceinline__ void finish(int begin, int end, const attn::E4m3Softmax& now, Output& o) const {
    if (!due((end - 2) / promotion_tiles * promotion_tiles, begin)) return;
    const float4* sums = place();
    const attn::RowPair age = since(now, sums);
#pragma unroll
    for (int i = 0; i < groups; i += 4) {
      ptx::keep_order();
      add<4>(o, i, sums, age);
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
  template <int Together>
  static __device__ __forceinline__ void add(Output& o, int at, const float4* sums, attn::RowPair age) {
    Sums<V>::template join<Together>(o, at, sums, [&](float* x, const float4& sum) {
      x[0] += sum.x * age.top;
      x[1] += sum.y * age.top;
      x[2] += sum.z * age.bottom;
      x[3] += sum.w * age.bottom;
    });
  }
  __device__ float4* place() const { return Sums<V>::of(params, consumer); }
};

}  // namespace froghopper::fwd
