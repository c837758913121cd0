// SPDX-License-Identifier: Apache-2.0
// device/fwd: the columns of O that a Consumer has: where they begin, what scales them, how they are stored.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "contract/shared_params.h"
#include "contract/types.h"
#include "device/attn/element.cuh"
#include "device/fwd/work_item.cuh"
#include "device/ptx/registers.cuh"
#include "device/ptx/types.cuh"
#include "device/tile/accum.cuh"
#include "device/tile/constants.cuh"

namespace froghopper::fwd {

// Where a Consumer's columns of O begin, and how many there are in memory from there on. half: 0 or 1 where two
// Consumers share an M tile.
template <FwdVariant V>
__device__ __forceinline__ constexpr int first_column(int half) {
  return fwd_consumers_per_m_tile(V) > 1 ? half * fwd_columns(V) : 0;
}
template <FwdVariant V>
__device__ __forceinline__ int columns_from(const FwdParams& params, int half) {
  return params.dim_v - first_column<V>(half);
}

// The same beginning in bytes of O and of a gate, which has O's type.
template <FwdVariant V>
__device__ __forceinline__ int first_column_bytes(const FwdParams& params, int half) {
  if constexpr (fwd_consumers_per_m_tile(V) == 1) return 0;
  const Dtype dtype_o = fwd_reads_8_bit(V) ? params.eight_bit.dtype_o : V.dtype;
  return first_column<V>(half) * size_of(dtype_o);
}

// This thread's two rows of O, as O's type has them.
template <FwdVariant V>
__device__ __forceinline__ void store_o(const FwdParams& params, const tile::RowAddresses& at,
                                        const tile::Accum<fwd_columns(V)>& o, int half) {
  if constexpr (fwd_reads_8_bit(V)) {
    const int columns = columns_from<V>(params, half);
    if (params.eight_bit.dtype_o == Dtype::f32) return tile::store_rows_f32(at, columns, o);
    if (params.eight_bit.dtype_o == Dtype::f16) return tile::store_rows<ptx::f16>(at, columns, o);
    tile::store_rows<ptx::bf16>(at, columns, o);
  } else {
    tile::store_rows<typename attn::Element<V.dtype>::type>(at, columns_from<V>(params, half), o);
  }
}

// O by the scales of V's columns, where each column has its own.
template <FwdVariant V>
__device__ __forceinline__ void scale_columns(const FwdParams& params, const WorkItem& item, int half,
                                              tile::Accum<fwd_columns(V)>& o) {
  const ScaleValues& of = params.eight_bit.v;
  if (!params.eight_bit.v_columns) return;
  if ((V.ragged ? item.lengths.seq_kv : params.seq_kv) == 0) return;  // no scale may be read; O is 0
  const float* scales =
      of.data + item.sequence * of.batch + kv_head<V>(params, item) * of.head + first_column<V>(half);
#pragma unroll
  for (int i = 0; i < fwd_columns(V) / 2; i += 4) {
    const int col = tile::thread_col() + tile::col_of(i);
    if (col >= columns_from<V>(params, half)) break;
    ptx::keep_order();
    const float2 two = {scales[col], scales[col + 1]};
    o.x[i] *= two.x;
    o.x[i + 1] *= two.y;
    o.x[i + 2] *= two.x;
    o.x[i + 3] *= two.y;
  }
}

}  // namespace froghopper::fwd
