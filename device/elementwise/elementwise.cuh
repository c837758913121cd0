// SPDX-License-Identifier: Apache-2.0
// Sums over ranks: adds f32 to f32, makes 16-bit elements of f32, broadcasts one f32 over a row, copies rows. Context
// parallelism calls it between calls of attention (src/cp/cuda_memory.cpp).
//
// Work      a thread takes four neighbours at a time, and then those a grid further on; one element at a time where
//           an address is no multiple of what four of them take, and at the end. Of copies all fours are aligned, and
//           it takes those of several rows at once, so that their loads are under way together.
// Roles     all threads alike
// Order     none
// Barriers  none
// Overlap   the next kernel may start at once, and waits; this one waits for those before it, which may still write
//           what it reads
// Shared    nothing
#pragma once
#include "contract/elementwise.h"
#include "device/attn/element.cuh"
#include "device/ptx/launch.cuh"
#include "device/ptx/math.cuh"

namespace froghopper::elementwise {

template <ElementwiseVariant V>
struct Elementwise {
  static constexpr int threads = elementwise_threads;
  static constexpr int smem_bytes = elementwise_smem_bytes;
  static constexpr int width = elementwise_width;
  using Type = typename attn::Element<V.dtype>::type;

  static __device__ void run(const ElementwiseParams& params) {
    ptx::let_next_kernel_start();
    ptx::wait_for_earlier_kernels();
    const long long thread = static_cast<long long>(blockIdx.x) * threads + threadIdx.x;
    const long long step = static_cast<long long>(gridDim.x) * threads;
    if constexpr (V.op == ElementwiseOp::copy) {
      copy_rows(params, thread, step);
    } else {
      const long long groups = in_fours(params) ? params.count / width : 0;
      for (long long i = thread; i < groups; i += step) take_four(params, i);
      for (long long i = groups * width + thread; i < params.count; i += step) take_one(params, i);
    }
  }

 private:
  static __device__ void copy_rows(const ElementwiseParams& params, long long thread, long long step) {
    constexpr int together = 4;
    const long long fours = params.count / width, of_row = params.columns / width;
    for (long long first = thread; first < fours; first += together * step) {
      float4 held[together];
#pragma unroll
      for (int i = 0; i < together; ++i) {
        const long long at = first + i * step, row = at / of_row;
        const char* from = reinterpret_cast<const char*>(params.from) + row * params.from_pitch;
        if (at < fours) held[i] = reinterpret_cast<const float4*>(from)[at - row * of_row];
      }
#pragma unroll
      for (int i = 0; i < together; ++i) {
        const long long at = first + i * step, row = at / of_row;
        char* to = static_cast<char*>(params.to) + row * params.to_pitch;
        if (at < fours) reinterpret_cast<float4*>(to)[at - row * of_row] = held[i];
      }
    }
  }

  static __device__ bool in_fours(const ElementwiseParams& params) {
    if constexpr (V.op == ElementwiseOp::broadcast) return false;  // a row may end between neighbours
    const auto address = [](const void* p) { return reinterpret_cast<unsigned long long>(p); };
    return address(params.from) % sizeof(float4) == 0 && address(params.to) % (width * size_of(V.dtype)) == 0;
  }

  static __device__ void take_four(const ElementwiseParams& params, long long i) {
    const float4 x = reinterpret_cast<const float4*>(params.from)[i];
    if constexpr (V.op == ElementwiseOp::convert) {
      static_cast<uint2*>(params.to)[i] = {ptx::cvt_pack2<Type>(x.x, x.y), ptx::cvt_pack2<Type>(x.z, x.w)};
    } else {
      float4& sum = static_cast<float4*>(params.to)[i];
      const float4 y = sum;
      sum = {y.x + x.x, y.y + x.y, y.z + x.z, y.w + x.w};
    }
  }

  static __device__ void take_one(const ElementwiseParams& params, long long i) {
    if constexpr (V.op == ElementwiseOp::add)
      static_cast<float*>(params.to)[i] += params.from[i];
    else if constexpr (V.op == ElementwiseOp::broadcast)
      static_cast<float*>(params.to)[i] = params.from[i / params.columns];
    else
      static_cast<unsigned short*>(params.to)[i] =
          static_cast<unsigned short>(ptx::cvt_pack2<Type>(params.from[i], 0.0f));
  }
};

}  // namespace froghopper::elementwise
