// SPDX-License-Identifier: Apache-2.0
// device/quantise: the products of the rotation, on the tensor core. mma multiplies 16 columns by 16 x 16 values,
// which are exactly -1, 0 and 1; the products are added up in fp32. The other bits of a column's number are butterflies
// between registers.
//
// A thread of a quad has 8 neighbouring columns of 32, as it loads them: column = 8 (thread of quad) + 4 step + 2 half
// + odd. One mma takes the columns of one step, so of the five bits of a column all but the step's are the matrix's.
// What comes out has the same places: the row of the fragment is the thread, the pair of accumulators is `odd`, and the
// two mma of a step are the two halves.
#pragma once
#include "contract/quantise.h"
#include "device/ptx/math.cuh"
#include "device/ptx/matrix.cuh"
#include "device/ptx/types.cuh"

namespace froghopper::quantise {

constexpr int group_columns = 32;  // of a quad: 16 bytes a thread

// Column 32 group + of_group's of the row, in mma's order.
struct Column {
  int of_group;
  __device__ Column(int quad_thread, int step, int half, int odd)
      : of_group(8 * quad_thread + 4 * step + 2 * half + odd) {}
};

// The matrices of a row: [group][step][lane], the fragments of b of two mma.
template <class T, int Columns>
struct Matrices {
  uint4 fragments[Columns / group_columns * 2][32];

  // All threads of the CTA call it.
  __device__ void make(unsigned int seed, int block, int threads) {
    for (int i = threadIdx.x; i < Columns / group_columns * 2 * 32; i += threads) {
      const int group = i / 64, step = i / 32 % 2, lane = i % 32;
      // Rows of b, which are columns that come in: 2 (lane % 4) and the next one, and 8 further on: the other half.
      // Columns of b, which are columns that go out: lane / 4.
      ptx::u32 words[4];
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int half_in = 0; half_in < 2; ++half_in) {
          const Column out(lane / 8, step, half, lane / 4 % 2);
          words[2 * half + half_in] =
              ptx::cvt_pack2<T>(entry(seed, block, group, Column(lane % 4, step, half_in, 0), out),
                                entry(seed, block, group, Column(lane % 4, step, half_in, 1), out));
        }
      fragments[group * 2 + step][lane] = {words[0], words[1], words[2], words[3]};
    }
  }

 private:
  static __device__ float entry(unsigned int seed, int block, int group, Column in, Column out) {
    if ((in.of_group ^ out.of_group) & -block) return 0.f;  // of two blocks
    const int same_step = ~4;                               // the step's bit is a butterfly
    const bool flips = rotation_flips(seed, group * group_columns + in.of_group) !=
                       hadamard_flips(in.of_group & same_step & (block - 1), out.of_group & same_step);
    return flips ? -1.f : 1.f;
  }
};

}  // namespace froghopper::quantise
