// SPDX-License-Identifier: Apache-2.0
// device/ptx: 8-bit values (PTX ISA, cvt).
#pragma once
#include "device/ptx/types.cuh"

namespace froghopper::ptx {

// Four fp32 values rounded to nearest even and packed, the first one lowest. What is larger than the type's largest
// value becomes it.
template <class T>
__device__ __forceinline__ u32 cvt_pack4(float a, float b, float c, float d);
template <>
__device__ __forceinline__ u32 cvt_pack4<e4m3>(float a, float b, float c, float d) {
  u32 r;
  asm("{\n.reg .b16 lo, hi;\ncvt.rn.satfinite.e4m3x2.f32 lo, %2, %1;\ncvt.rn.satfinite.e4m3x2.f32 hi, %4, %3;\n"
      "mov.b32 %0, {lo, hi};\n}"
      : "=r"(r)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return r;
}
template <>
__device__ __forceinline__ u32 cvt_pack4<e5m2>(float a, float b, float c, float d) {
  u32 r;
  asm("{\n.reg .b16 lo, hi;\ncvt.rn.satfinite.e5m2x2.f32 lo, %2, %1;\ncvt.rn.satfinite.e5m2x2.f32 hi, %4, %3;\n"
      "mov.b32 %0, {lo, hi};\n}"
      : "=r"(r)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return r;
}

// Two of four packed 8-bit values as f16, exactly. The instruction takes either half: a shift in C++ would be another.
template <class T>
__device__ __forceinline__ u32 cvt_f16x2(u32 packed, bool high);
template <>
__device__ __forceinline__ u32 cvt_f16x2<e4m3>(u32 packed, bool high) {
  u32 r;
  if (high)
    asm("{\n.reg .b16 lo, hi;\nmov.b32 {lo, hi}, %1;\ncvt.rn.f16x2.e4m3x2 %0, hi;\n}" : "=r"(r) : "r"(packed));
  else
    asm("{\n.reg .b16 lo, hi;\nmov.b32 {lo, hi}, %1;\ncvt.rn.f16x2.e4m3x2 %0, lo;\n}" : "=r"(r) : "r"(packed));
  return r;
}
template <>
__device__ __forceinline__ u32 cvt_f16x2<e5m2>(u32 packed, bool high) {
  u32 r;
  if (high)
    asm("{\n.reg .b16 lo, hi;\nmov.b32 {lo, hi}, %1;\ncvt.rn.f16x2.e5m2x2 %0, hi;\n}" : "=r"(r) : "r"(packed));
  else
    asm("{\n.reg .b16 lo, hi;\nmov.b32 {lo, hi}, %1;\ncvt.rn.f16x2.e5m2x2 %0, lo;\n}" : "=r"(r) : "r"(packed));
  return r;
}

}  // namespace froghopper::ptx
