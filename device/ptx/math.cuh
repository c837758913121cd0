// SPDX-License-Identifier: Apache-2.0
// device/ptx: conversions and the special functions, each with the error PTX ISA states for it.
#pragma once
#include "device/ptx/types.cuh"

namespace froghopper::ptx {

// Two fp32 values rounded to nearest even and packed, lo in the low half.
template <class T>
__device__ __forceinline__ u32 cvt_pack2(float lo, float hi);
template <>
__device__ __forceinline__ u32 cvt_pack2<bf16>(float lo, float hi) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
template <>
__device__ __forceinline__ u32 cvt_pack2<f16>(float lo, float hi) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}

// The two values again, exactly.
template <class T>
__device__ __forceinline__ float2 cvt_unpack2(u32 packed);
template <>
__device__ __forceinline__ float2 cvt_unpack2<bf16>(u32 packed) {
  return {__uint_as_float(packed << 16), __uint_as_float(packed & 0xffff0000u)};
}
template <>
__device__ __forceinline__ float2 cvt_unpack2<f16>(u32 packed) {
  float2 r;
  asm("{\n.reg .b16 lo, hi;\nmov.b32 {lo, hi}, %2;\ncvt.f32.f16 %0, lo;\ncvt.f32.f16 %1, hi;\n}"
      : "=f"(r.x), "=f"(r.y)
      : "r"(packed));
  return r;
}

// Of each half, as unsigned integers.
__device__ __forceinline__ u32 max_u16x2(u32 a, u32 b) {
  u32 r;
  asm("max.u16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

// NaN where one is NaN; of fminf and fmaxf the result is the other one then.
__device__ __forceinline__ float min_or_nan(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

__device__ __forceinline__ float ex2_approx(float x) {  // 2^x, relative error 2^-22; 0 below 2^-126
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float rcp_approx(float x) {  // 1/x, 1 ulp
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float lg2_approx(float x) {  // log2 x, absolute error 2^-22 near 1, relative elsewhere
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace froghopper::ptx
