// SPDX-License-Identifier: Apache-2.0
// device/fwd: the epilogue of split-KV variants. A part of a tile leaves O and the softmax as they are in the
// workspace, where device/fwd/combine.cuh finds them; a tile of one part is finished here.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "contract/shared_params.h"
#include "contract/split.h"
#include "contract/types.h"
#include "device/attn/lse_merge.cuh"
#include "device/attn/softmax.cuh"
#include "device/fwd/final_epilogue.cuh"
#include "device/fwd/gate.cuh"
#include "device/fwd/output_columns.cuh"
#include "device/fwd/rows.cuh"
#include "device/fwd/schedule.cuh"
#include "device/fwd/work_item.cuh"
#include "device/tile/accum.cuh"
#include "device/tile/constants.cuh"

namespace froghopper::fwd {

template <FwdVariant V>
struct PartEpilogue {
  using Output = tile::Accum<fwd_columns(V)>;
  using Row = typename MTile<V>::Row;

  const FwdParams& params;
  const WorkItem& item;
  const MTile<V>& m_tile;
  float o_scale;  // with 8-bit K and V
  int half;       // as of FinalEpilogue

  template <class Softmax>
  __device__ __forceinline__ void run(const Softmax& softmax, Output& o) const {
    const Row top = m_tile.at(tile::thread_row()), bottom = m_tile.at(tile::thread_row() + 8);
    const auto tiles = tiles_of<V>(params, item.q_tile, {0, m_tile.seq_q(), 0, m_tile.seq_kv()});
    if constexpr (fwd_splits_evenly(V)) {
      if (item.workspace_tile >= 0) return keep(item.workspace_tile, top, bottom, softmax, o);
    } else if constexpr (V.batch_invariant) {
      const auto parts = batch_invariant_parts(tiles, params.split.most);
      const int part = min(batch_invariant_part_at(item.kv.last()), params.split.most - 1);
      if (parts.end - parts.begin > 1) return keep(part, top, bottom, softmax, o);
    } else {
      const int tiles_per_part = tiles_of_part(tiles, params.split.tiles, params.split.most);
      if (tiles_per_part < tiles.count())
        return keep(number_of_part(tiles, item.kv, tiles_per_part), top, bottom, softmax, o);
    }
    attn::Finish of_top, of_bottom;
    if constexpr (V.batch_invariant) {
      of_top = attn::finish_part(softmax.part_top(), params.scale_log2, sink(top));
      of_bottom = attn::finish_part(softmax.part_bottom(), params.scale_log2, sink(bottom));
    } else {
      of_top = softmax.finish_top(sink(top), o_scale), of_bottom = softmax.finish_bottom(sink(bottom), o_scale);
    }
    o.scale_rows(of_top.inverse, of_bottom.inverse);
    if constexpr (fwd_reads_8_bit(V) && !V.kv.smooth) scale_columns<V>(params, item, half, o);
    if constexpr (V.gated)
      apply_gate<V>(params,
                    {address(params.gate, top), address(params.gate, bottom), top.exists && of_top.inverse != 0.f,
                     bottom.exists && of_bottom.inverse != 0.f},
                    columns_from<V>(params, half), o);
    if constexpr (V.merges_lse)  // the first of several calls, which finds nothing: sum_of_o.cuh
      tile::store_rows_f32({in_sum(top), in_sum(bottom), top.exists, bottom.exists}, columns_from<V>(params, half),
                           o);
    else
      store_o<V>(params, {address(params.o, top), address(params.o, bottom), top.exists, bottom.exists}, o, half);
    if (fwd_consumers_per_m_tile(V) > 1 && half > 0) return;
    if (!params.lse.data || threadIdx.x % 4 != 0) return;
    if (top.exists) *lse(top) = of_top.lse;
    if (bottom.exists) *lse(bottom) = of_bottom.lse;
  }

 private:
  __device__ float sink(const Row& of) const { return params.sink && of.exists ? params.sink[of.head] : -tile::inf; }
  __device__ long long batch() const { return batch_of<V>(params, item); }
  __device__ long long at_row(const Row& of) const { return first_row_of<V>(item) + of.row; }
  __device__ char* address(const StridedTensor& in, const Row& of) const {
    return row_of(in, of) + first_column_bytes<V>(params, half);
  }
  __device__ char* in_sum(const Row& of) const {
    return row_of(params.sum_of_o.sum, of) + first_column<V>(half) * static_cast<int>(sizeof(float));
  }
  __device__ char* row_of(const StridedTensor& in, const Row& of) const {
    return static_cast<char*>(in.data) + batch() * in.batch + of.head * in.head + at_row(of) * in.row;
  }
  __device__ float* lse(const Row& of) const {
    return params.lse.data + batch() * params.lse.batch + of.head * params.lse.head + at_row(of) * params.lse.row;
  }

  // Parts of a row have scales of O of their own, which are multiplied into O here. Each keeps its row max, the
  // row max that its weights are relative to, so that the parts can be brought to one row max.
  template <class Softmax>
  __device__ __forceinline__ void keep(int part, const Row& top, const Row& bottom, const Softmax& softmax,
                                       Output& o) const {
    if constexpr (fwd_reads_8_bit(V) && !V.kv.smooth) {
      const float o_factor = softmax.o_factor(o_scale);
      o.scale_rows(o_factor, o_factor);
      scale_columns<V>(params, item, half, o);
    }
    const PartOfRow of_top = softmax.part_top(), of_bottom = softmax.part_bottom();
    const long long at_top = row_in_workspace(part, tile::thread_row(), top),
                    at_bottom = row_in_workspace(part, tile::thread_row() + 8, bottom);
    const auto address = [&](long long at) {
      return reinterpret_cast<char*>(params.split.o + at * params.dim_v + first_column<V>(half));
    };
    tile::store_rows_f32({address(at_top), address(at_bottom), top.exists, bottom.exists},
                         columns_from<V>(params, half), o);
    if (fwd_consumers_per_m_tile(V) > 1 && half > 0) return;
    if (threadIdx.x % 4 != 0) return;
    if (top.exists) params.split.rows[at_top] = of_top;
    if (bottom.exists) params.split.rows[at_bottom] = of_bottom;
  }
  // Which row of the workspace is that of a row of the tile. part: the part's number; even splits: its workspace tile.
  __device__ long long row_in_workspace(int part, int row_of_tile, const Row& of) const {
    if constexpr (fwd_splits_evenly(V)) return part * static_cast<long long>(m_tile_rows) + row_of_tile;
    return part * params.split.row_heads + (batch() * params.seq_q + at_row(of)) * params.heads_q + of.head;
  }
};

}  // namespace froghopper::fwd
