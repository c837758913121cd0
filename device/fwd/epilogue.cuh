// SPDX-License-Identifier: Apache-2.0
// device/fwd: what a Consumer does with a finished strip: O and lse to global memory.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "device/attn/element.cuh"
#include "device/attn/softmax.cuh"
#include "device/fwd/schedule.cuh"
#include "device/ptx/registers.cuh"

namespace froghopper::fwd {

template <FwdVariant V>
struct Epilogue {
  static constexpr bool narrow = is_8_bit(V.dtype);
  using Output = tile::Accum<V.dims.v>;

  const FwdParams& params;
  const WorkItem& item;

  // row: of the sequence, this thread's top one; rows: how many the sequence has.
  __device__ __forceinline__ void run(int row, int rows, attn::Finish top, attn::Finish bottom, Output& o) const {
    o.scale_rows(top.inverse, bottom.inverse);
    if constexpr (narrow) scale_columns(o);

    const bool has_top = row < rows, has_bottom = row + 8 < rows;
    const long long batch = V.ragged && params.ragged.cu_q ? 0 : item.sequence;
    const long long at_row = (V.ragged ? item.rows.q_first : 0) + row;
    char* at = static_cast<char*>(params.o.data) + batch * params.o.batch + item.head * params.o.head +
               at_row * params.o.row;
    store({at, at + 8 * params.o.row, has_top, has_bottom}, o);
    if (params.lse.data && threadIdx.x % 4 == 0) {
      float* lse = params.lse.data + batch * params.lse.batch + item.head * params.lse.head + at_row;
      if (has_top) lse[0] = top.lse;
      if (has_bottom) lse[8] = bottom.lse;
    }
  }

 private:
  __device__ __forceinline__ void store(const tile::RowPlaces& at, const Output& o) const {
    if constexpr (narrow) {
      if (params.narrow.dtype_o == Dtype::f32) return tile::store_rows_f32(at, params.dim_v, o);
      if (params.narrow.dtype_o == Dtype::f16) return tile::store_rows<ptx::f16>(at, params.dim_v, o);
      tile::store_rows<ptx::bf16>(at, params.dim_v, o);
    } else {
      tile::store_rows<typename attn::Element<V.dtype>::type>(at, params.dim_v, o);
    }
  }

  // By V's own scale for each column.
  __device__ __forceinline__ void scale_columns(Output& o) const {
    const ScaleNumbers& of = params.narrow.v;
    if (!params.narrow.v_columns) return;
    const float* scales = of.data + item.sequence * of.batch + item.head / params.heads_per_kv * of.head;
#pragma unroll
    for (int i = 0; i < V.dims.v / 2; i += 4) {
      const int col = tile::thread_col() + tile::col_of(i);
      if (col >= params.dim_v) break;
      ptx::keep_order();
      const float2 two = {scales[col], scales[col + 1]};
      o.x[i] *= two.x;
      o.x[i + 1] *= two.y;
      o.x[i + 2] *= two.x;
      o.x[i + 3] *= two.y;
    }
  }
};

}  // namespace froghopper::fwd
