// SPDX-License-Identifier: Apache-2.0
// device/fwd: gated variants: a Consumer multiplies its rows of O by the sigmoid of gate once they are divided by their
// denominators, and before they are rounded. So lse, and what is merged of parts, are as without a gate.
//
// A thread reads the gate where it has O: 2 of every 8 columns of two rows. 4 fragments are on their way at once,
// as in tile::merge_rows_f32. A row without weight is 0, whatever its gate is: that is not read.
#pragma once
#include "contract/fields.h"
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "contract/types.h"
#include "device/attn/element.cuh"
#include "device/attn/gate.cuh"
#include "device/ptx/registers.cuh"
#include "device/ptx/types.cuh"
#include "device/tile/accum.cuh"

namespace froghopper::fwd {

template <class T, int Cols>
__device__ __forceinline__ void multiply_by_gate(const tile::RowAddresses& gate, int cols, tile::Accum<Cols>& o) {
  constexpr int fragments = same<T, float> ? 2 : 4;
#pragma unroll
  for (int i = 0; i < Cols / 2; i += 4 * fragments) {
    if (tile::col_of(i) >= cols) break;
    ptx::keep_order();
    float2 top[fragments], bottom[fragments];
#pragma unroll
    for (int fragment = 0; fragment < fragments; ++fragment) {
      const int col = tile::thread_col() + tile::col_of(i + 4 * fragment);
      top[fragment] = bottom[fragment] = {0.f, 0.f};
      if (gate.has_top && col < cols) top[fragment] = attn::two_of<T>(gate.top, col);
      if (gate.has_bottom && col < cols) bottom[fragment] = attn::two_of<T>(gate.bottom, col);
    }
#pragma unroll
    for (int fragment = 0; fragment < fragments; ++fragment) {
      float* const x = o.x + i + 4 * fragment;
      x[0] *= attn::sigmoid(top[fragment].x);
      x[1] *= attn::sigmoid(top[fragment].y);
      x[2] *= attn::sigmoid(bottom[fragment].x);
      x[3] *= attn::sigmoid(bottom[fragment].y);
#pragma unroll
      for (int j = 0; j < 4; ++j) ptx::force(x[j]);  // else the gates of later fragments would wait for it
    }
  }
}

// gate: where this thread's two rows of it lie. cols: of O in memory from there on.
template <FwdVariant V>
__device__ __forceinline__ void apply_gate(const FwdParams& params, const tile::RowAddresses& gate, int cols,
                                           tile::Accum<fwd_columns(V)>& o) {
  if constexpr (fwd_reads_8_bit(V)) {
    if (params.eight_bit.dtype_o == Dtype::f32) return multiply_by_gate<float>(gate, cols, o);
    if (params.eight_bit.dtype_o == Dtype::f16) return multiply_by_gate<ptx::f16>(gate, cols, o);
    multiply_by_gate<ptx::bf16>(gate, cols, o);
  } else {
    multiply_by_gate<typename attn::Element<V.dtype>::type>(gate, cols, o);
  }
}

}  // namespace froghopper::fwd
