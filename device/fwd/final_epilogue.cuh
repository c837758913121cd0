// SPDX-License-Identifier: Apache-2.0
// device/fwd: the epilogue of an M tile of which all keys are in: O and lse to global memory, O in its own type, or
// merged with the O and lse of other keys in fp32 (merges_lse, sum_of_o.cuh). How O gets there: fwd_o_store,
// contract/fwd_smem.h.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_smem.h"
#include "contract/fwd_variant.h"
#include "contract/shared_params.h"
#include "contract/types.h"
#include "device/attn/element.cuh"
#include "device/attn/softmax.cuh"
#include "device/attn/tma_rows.cuh"
#include "device/fwd/gate.cuh"
#include "device/fwd/output_columns.cuh"
#include "device/fwd/rows.cuh"
#include "device/fwd/sum_of_o.cuh"
#include "device/fwd/work_item.cuh"
#include "device/ptx/barrier.cuh"
#include "device/ptx/registers.cuh"
#include "device/ptx/shared_memory.cuh"
#include "device/ptx/tma.cuh"
#include "device/ptx/types.cuh"
#include "device/tile/accum.cuh"
#include "device/tile/constants.cuh"

namespace froghopper::fwd {

template <FwdVariant V>
struct FinalEpilogue {
  using Output = tile::Accum<fwd_columns(V)>;
  static constexpr bool scales_columns =
      fwd_reads_8_bit(V) ? !V.kv.smooth : fwd_block_scales(V);  // smooth: device/fwd/means.cuh

  const FwdParams& params;
  const WorkItem& item;
  int row, rows;  // of the sequence: this thread's top row; how many there are
  int half;       // of O's columns, where two Consumers share the M tile

  // One more logit of each row: the head's sink, or the lse of earlier calls (sum_of_o.cuh).
  __device__ __forceinline__ attn::RowPair sinks() const {
    if (V.merges_lse && params.sum_of_o.reads) {
      const float* lse = lse_at(batch_at(), row_at());
      const attn::RowPair held = {row < rows ? lse[0] : -tile::inf,
                                  row + 8 < rows ? lse[8 * params.lse.row] : -tile::inf};
      if constexpr (fwd_consumers_per_m_tile(V) > 1)
        ptx::sync_threads<2 * warpgroup>(1);  // before the first half overwrites it
      return held;
    }
    const float sink = params.sink ? params.sink[item.head] : -tile::inf;
    return {sink, sink};
  }

  __device__ __forceinline__ void run(attn::Finish top, attn::Finish bottom, Output& o) const {
    normalise(top, bottom, o);

    const bool has_top = row < rows, has_bottom = row + 8 < rows;
    const long long batch = batch_at(), at_row = row_at();
    const auto rows_in = [&](const StridedTensor& tensor, int first_byte) {
      char* at = static_cast<char*>(tensor.data) + batch * tensor.batch + item.head * tensor.head +
                 at_row * tensor.row + first_byte;
      return tile::RowAddresses{at, at + 8 * tensor.row, has_top, has_bottom};
    };
    const tile::RowAddresses addresses = rows_in(params.o, first_column_bytes<V>(params, half));
    if constexpr (V.merges_lse)
      SumOfO<V>{params, top, bottom, half}.leave(
          rows_in(params.sum_of_o.sum, first_column<V>(half) * static_cast<int>(sizeof(float))), addresses, o);
    else
      store_o<V>(params, addresses, o, half);
    if (fwd_consumers_per_m_tile(V) > 1 && half > 0) return;
    // All four lanes of a quad have read the old lse in sinks(), and only its first lane writes the new one.
    if constexpr (V.merges_lse) __syncwarp();
    store_lse(top, bottom);
  }

  // Through a tile in shared memory, of which only this Consumer has the rows from first_row to first_row + 63, each
  // of its warps 16 of them. The first lane issues the warp's TMA stores, so only that lane can wait until TMA has read
  // the rows (tma_store_wait_read()).
  template <class Tile>
  __device__ __forceinline__ void run_through(Tile& tile, int first_row, attn::Finish top, attn::Finish bottom,
                                              Output& o) const {
    constexpr bool own = fwd_o_store(V) == OStore::through_own_smem;
    constexpr int columns = own ? o_own_columns : V.dims.v;
    normalise(top, bottom, o);
#pragma unroll
    for (int col = 0; col < V.dims.v; col += columns) {
      const ptx::u32 thread = ptx::thread_here();
      const bool stores = thread % 32 == 0;
      if constexpr (own) {
        if (stores) ptx::tma_store_wait_read();
        __syncwarp();
      }
      tile::round_into<typename attn::Element<V.dtype>::type, columns>(tile, first_row, o.x + col / 2);
      ptx::fence_proxy_async_shared();
      __syncwarp();
      if (!stores) continue;
      const attn::TmaRows<V.ragged> o_rows(item.head, item.sequence, params.ragged.cu_q, item.lengths.q_first, rows,
                                           params.ragged.o);
      const int in_tile = first_row + thread / 32 % 4 * o_box_rows;
      for (int i = 0; row < rows && i * Tile::panel_columns < columns; ++i)
        o_rows.store(tile.row(i, in_tile), params.o_map, row, col + i * Tile::panel_columns);
      ptx::tma_store_commit();
    }
    store_lse(top, bottom);
  }

 private:
  // O over its denominators, by the scales of V's columns and by the gate.
  __device__ __forceinline__ void normalise(attn::Finish top, attn::Finish bottom, Output& o) const {
    o.scale_rows(top.inverse, bottom.inverse);
    if constexpr (scales_columns) scale_columns<V>(params, item, half, o);
    if constexpr (V.gated) gate(top, bottom, o);
  }
  __device__ __forceinline__ void store_lse(attn::Finish top, attn::Finish bottom) const {
    if (!params.lse.data || threadIdx.x % 4 != 0) return;
    float* lse = lse_at(batch_at(), row_at());
    if (row < rows) lse[0] = top.lse;
    if (row + 8 < rows) lse[8 * params.lse.row] = bottom.lse;
  }
  __device__ long long batch_at() const { return batch_of<V>(params, item); }
  __device__ long long row_at() const { return first_row_of<V>(item) + row; }
  __device__ float* lse_at(long long batch, long long at_row) const {
    return params.lse.data + batch * params.lse.batch + item.head * params.lse.head + at_row * params.lse.row;
  }

  __device__ __forceinline__ void gate(attn::Finish top, attn::Finish bottom, Output& o) const {
    const StridedTensor& from = params.gate;
    char* at = static_cast<char*>(from.data) + batch_at() * from.batch + item.head * from.head + row_at() * from.row +
               first_column_bytes<V>(params, half);
    apply_gate<V>(params,
                  {at, at + 8 * from.row, row < rows && top.inverse != 0.f, row + 8 < rows && bottom.inverse != 0.f},
                  columns_from<V>(params, half), o);
  }
};

}  // namespace froghopper::fwd
