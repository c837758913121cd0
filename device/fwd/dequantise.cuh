// SPDX-License-Identifier: Apache-2.0
// Before a forward kernel that reads K and V once for each of many q tiles: makes f16 or bf16 of 8-bit values in
// memory. Both types have every such number, infinities and NaN included; scales stay apart, for the forward kernel.
//
// Work      a thread takes 8 values of a head and their columns in strided rows; a CTA as many rows at once as
//           its threads have room for, and where one has more than that, its columns in several passes. Where blocks of
//           rows have scales, a warp prepares all of a sequence and head for the forward kernel (BlockScales)
// Roles     all warps alike; 4 CTAs an SM, so 64 registers a thread
// Order     rows in memory order, strided by the CTAs; first the scales, where there are any
// Barriers  none
// Overlap   the next kernel may start at once, and waits; this one waits for those before it, which may still read what
//           is here. Memory is hidden by many threads with some loads each
// Shared    nothing
#pragma once
#include "contract/dequantise.h"
#include "contract/shared_params.h"
#include "contract/types.h"
#include "device/attn/element.cuh"
#include "device/attn/lengths.cuh"
#include "device/attn/scaled_softmax.cuh"
#include "device/ptx/fp8.cuh"
#include "device/ptx/launch.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/types.cuh"

namespace froghopper::fwd {

template <DequantiseVariant V>
struct Dequantise {
  static constexpr int threads = dequantise_threads;
  static constexpr int smem_bytes = dequantise_smem_bytes;
  static_assert(why_invalid(V) == nullptr);
  using From = typename attn::Element<V.dtype>::type;
  using To = typename attn::Element<V.to>::type;

  static __device__ void run(const DequantiseParams& params) {
    ptx::let_next_kernel_start();
    ptx::wait_for_earlier_kernels();
    if (params.scales.to.data != nullptr) prepare(params.scales);
    dequantise(params.k, params.used);
    dequantise(params.v, params.used);
  }

  static __device__ void prepare(const DequantiseScales& its) {
    const int warps = gridDim.x * (threads / 32), lane = threadIdx.x % 32;
    for (int pair = blockIdx.x * (threads / 32) + threadIdx.x / 32; pair < its.sequences * its.heads; pair += warps) {
      const int sequence = pair / its.heads, head = pair % its.heads;
      const int keys = min(attn::lengths_of(its.ragged, 0, its.seq_kv, sequence).seq_kv, its.seq_kv);
      const int blocks = (keys + scale_block - 1) / scale_block;
      const auto scale_of = [&](const ScaleValues& of, int block) {
        return of.data[sequence * of.batch + head * of.head + block * of.block];
      };
      const auto of_v = [&](int block) { return its.v_columns ? 1.f : scale_of(its.v, block); };
      float largest = 0.f;  // scale of V: that of O
      for (int block = lane; block < blocks; block += 32) largest = fmaxf(largest, of_v(block));
      for (int distance = 16; distance > 0; distance /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, distance));
      float2* const to = reinterpret_cast<float2*>(its.to.data) + sequence * its.to.batch + head * its.to.head;
      if (lane == 0) to[0] = {blocks > 0 ? largest : 1.f, 0.f};
      for (int block = lane; block < blocks; block += 32)
        to[block + 1] = {attn::positive_product(its.scale_log2, scale_of(its.k, block)),
                         fmaxf(ptx::lg2_approx(of_v(block) / largest), least_log2_v_scale)};
    }
  }

  static __device__ void dequantise(const DequantiseTensor& tensor, const int* used) {
    const int of_head = tensor.dim / dequantise_unit, of_row = tensor.heads * of_head;  // units
    const int rows_together = max(threads / of_row, 1);                                 // rows of a CTA
    const int mine = of_row < threads ? threadIdx.x / of_row : 0;
    if (mine >= rows_together) return;
    const long long first_row = static_cast<long long>(blockIdx.x) * rows_together + mine;
    for (int unit = of_row < threads ? threadIdx.x % of_row : threadIdx.x; unit < of_row; unit += threads)
      dequantise_rows(tensor, used, unit / of_head, unit % of_head * dequantise_unit, first_row,
                      gridDim.x * rows_together);
  }

  // Its columns of strided rows of all sequences, of those that count.
  static __device__ __forceinline__ void dequantise_rows(const DequantiseTensor& tensor, const int* used, int head,
                                                         int column, long long row, int step) {
    const char* const from = static_cast<const char*>(tensor.from.data) + head * tensor.from.head + column;
    char* const to = static_cast<char*>(tensor.to) + (head * tensor.seq * tensor.dim + column) * size_of(V.to);
    const long long to_row = tensor.dim * size_of(V.to), to_batch = tensor.heads * tensor.seq * to_row;
    long long sequence = row / tensor.seq;
    row -= sequence * tensor.seq;
    while (sequence < tensor.batch) {
      constexpr int together = 4;  // loads that are on their way
      uint2 x[together];
      char* at[together];
#pragma unroll
      for (int i = 0; i < together; ++i) {
        at[i] = nullptr;
        if (sequence >= tensor.batch) continue;
        if (used == nullptr || row < __ldg(used + sequence)) {
          x[i] = __ldg(reinterpret_cast<const uint2*>(from + sequence * tensor.from.batch + row * tensor.from.row));
          at[i] = to + sequence * to_batch + row * to_row;
        }
        for (row += step; row >= tensor.seq && sequence < tensor.batch; ++sequence) row -= tensor.seq;
      }
#pragma unroll
      for (int i = 0; i < together; ++i)
        if (at[i] != nullptr)
          *reinterpret_cast<uint4*>(at[i]) = {two(x[i].x, false), two(x[i].x, true), two(x[i].y, false),
                                              two(x[i].y, true)};
    }
  }

  static __device__ __forceinline__ ptx::u32 two(ptx::u32 four, bool high) {
    const ptx::u32 wide = ptx::cvt_f16x2<From>(four, high);
    if constexpr (V.to == Dtype::f16) return wide;
    const float2 values = ptx::cvt_unpack2<ptx::f16>(wide);
    return ptx::cvt_pack2<To>(values.x, values.y);
  }
};

}  // namespace froghopper::fwd
