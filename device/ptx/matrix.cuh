// SPDX-License-Identifier: Apache-2.0
// device/ptx: the matrix instructions of one warp (PTX ISA, ldmatrix, stmatrix and mma). A smem row is a row of a
// matrix in shared memory, 16 bytes.
#pragma once
#include "device/ptx/types.cuh"

namespace froghopper::ptx {

// Four 8x8 matrices of 2-byte values. Lane l gives the address of smem row l % 8 of matrix l / 8.
__device__ __forceinline__ void ldmatrix_x4(u32 (&d)[4], u32 addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(addr));
}

// Two of them; the addresses of lanes 0 to 15 count.
__device__ __forceinline__ void ldmatrix_x2(u32 (&d)[2], u32 addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(d[0]), "=r"(d[1]) : "r"(addr));
}

// Four 8x8 matrices of 2-byte values. Lane l gives the address of smem row l % 8 of matrix l / 8; smem row i is
// the i-th column of the registers' fragment.
__device__ __forceinline__ void stmatrix_x4_trans(u32 addr, const u32 (&a)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(addr), "r"(a[0]),
               "r"(a[1]), "r"(a[2]), "r"(a[3])
               : "memory");
}

// The same without transposing: smem row i is row i of the registers' fragment.
__device__ __forceinline__ void stmatrix_x4(u32 addr, const u32 (&a)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(addr), "r"(a[0]), "r"(a[1]),
               "r"(a[2]), "r"(a[3])
               : "memory");
}

// As ldmatrix_x4; smem row i is the i-th column of the registers' fragment.
__device__ __forceinline__ void ldmatrix_x4_trans(u32 (&d)[4], u32 addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(addr));
}

// d += a b: 16 x 16 times 16 x 8.
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float* d, const u32 (&a)[4], u32 b0, u32 b1);
template <>
__device__ __forceinline__ void mma_m16n8k16<bf16>(float* d, const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma_m16n8k16<f16>(float* d, const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
}  // namespace froghopper::ptx
