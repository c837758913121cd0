// SPDX-License-Identifier: Apache-2.0
// device/fwd: the means of K and V that smooth variants leave out of their loop, added to a finished M tile.
//
// With k = k' + mean_k every score of a row is larger by scale q.mean_k. That is one value for each row, so weights and
// O are as without it, and only the row max grows that lse and a sink are compared with. With v = v' + mean_v a row's O
// gains mean_v times the sum of its weights: O is not divided by anything yet here, and without keys the sum is 0.
//
// All of it comes from global memory, once an item, so it is asked for at once and while the last P V runs: a warp has
// its 16 rows of Q and the means 4 columns a lane, and each value once. Behind the next S, where other Consumers would
// not wait for it, there are no registers: head dim 256 took 1.13 times as long.
#pragma once
#include "contract/fields.h"
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "contract/shared_params.h"
#include "contract/types.h"
#include "device/attn/element.cuh"
#include "device/attn/softmax.cuh"
#include "device/fwd/output_columns.cuh"
#include "device/fwd/rows.cuh"
#include "device/fwd/scales.cuh"
#include "device/fwd/work_item.cuh"
#include "device/ptx/fp8.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/types.cuh"
#include "device/tile/accum.cuh"

namespace froghopper::fwd {

template <FwdVariant V>
struct Means {
  using Q = typename attn::Element<V.dtype>::type;     // in memory
  using Four = Pick<is_8_bit(V.dtype), uint1, uint2>;  // values of Q
  using Output = tile::Accum<fwd_columns(V)>;

  static constexpr int columns = 4, together = 32 * columns;  // that a lane, and that a warp reads at once
  static constexpr int rows = 16;                             // of the M tile, that a warp has

  attn::RowPair shifts;  // all scores of this thread's two rows, in base 2
  int half;              // of O's columns, where two Consumers share an M tile
  float v[(fwd_columns(V) + together - 1) / together][columns];  // mean_v, this lane's columns

  __device__ __forceinline__ Means(const FwdParams& params, const WorkItem& item, const MTile<V>& m_tile, int half)
      : half(half) {
    shifts = {0.f, 0.f};
#pragma unroll
    for (auto& some : v)
#pragma unroll
      for (float& x : some) x = 0.f;
    if (m_tile.seq_kv() == 0) return;  // the means of no rows
    const float* const mean = values(params, item, params.means.v) + first_column<V>(half);
#pragma unroll
    for (int i = 0; i < fwd_columns(V); i += together)
      load(v[i / together], mean, i + lane_column(), columns_from<V>(params, half));
    const attn::RowPair products = with_mean(params, item, m_tile);
    shifts = {factor(params, item, m_tile.at(tile::thread_row())) * products.top,
              factor(params, item, m_tile.at(tile::thread_row() + 8)) * products.bottom};
  }

  // o_scale: of O. Softmax and O become as if K and V had had their means; then O's columns have their scales too.
  template <class Softmax>
  __device__ __forceinline__ void add(const FwdParams& params, const WorkItem& item, Softmax& softmax, float& o_scale,
                                      Output& o) const {
    const float o_factor = softmax.o_factor(o_scale);
    o.scale_rows(o_factor, o_factor);
    o_scale = softmax.become_plain();
    scale_columns<V>(params, item, half, o);
    softmax.shift_scores(shifts);
    const float top = softmax.part_top().sum, bottom = softmax.part_bottom().sum;
#pragma unroll
    for (int i = 0; i < fwd_columns(V) / 2; i += 4) {
      const int column = 2 * i, lane = column % together / columns + threadIdx.x % 4 / 2;
      const float(&means)[columns] = v[column / together];
      const float2 first = {__shfl_sync(~0u, means[0], lane), __shfl_sync(~0u, means[1], lane)};
      const float2 second = {__shfl_sync(~0u, means[2], lane), __shfl_sync(~0u, means[3], lane)};
      const float2 mean = threadIdx.x % 2 == 0 ? first : second;
      o.x[i] += top * mean.x;
      o.x[i + 1] += top * mean.y;
      o.x[i + 2] += bottom * mean.x;
      o.x[i + 3] += bottom * mean.y;
    }
  }

 private:
  static __device__ int lane_column() { return threadIdx.x % 32 * columns; }
  static __device__ const float* values(const FwdParams& params, const WorkItem& item, const ScaleValues& of) {
    return of.data + item.sequence * of.batch + kv_head<V>(params, item) * of.head;
  }
  static __device__ __forceinline__ void load(float (&x)[columns], const float* from, int column, int end) {
    if (column >= end) return;
#pragma unroll
    for (int i = 0; i < columns; ++i) x[i] = __ldg(from + column + i);
  }
  static __device__ float factor(const FwdParams& params, const WorkItem& item, const typename MTile<V>::Row& of) {
    if (!is_8_bit(V.dtype) || !of.exists) return params.scale_log2;
    return params.scale_log2 * scale_of_row(params.eight_bit.q, item.sequence, of.head, of.row);
  }

  // q.mean_k. Padding rows are not read and have 0.
  static __device__ __forceinline__ attn::RowPair with_mean(const FwdParams& params, const WorkItem& item,
                                                            const MTile<V>& m_tile) {
    const float* const mean = values(params, item, params.means.k);
    const int first_row = threadIdx.x / 32 % 4 * rows;
    float sums[rows] = {};
#pragma unroll
    for (int i = 0; i < V.dims.qk; i += together) {
      const int column = i + lane_column();
      if (column >= params.means.dim_qk) break;
      float k[columns];
      load(k, mean, column, params.means.dim_qk);
      Four q[rows];
#pragma unroll
      for (int row = 0; row < rows; ++row) {
        const auto at = m_tile.at(first_row + row);
        q[row] = at.exists ? *reinterpret_cast<const Four*>(row_of_q(params, item, at) + column * size_of(V.dtype))
                           : Four{};
      }
#pragma unroll
      for (int row = 0; row < rows; ++row) sums[row] += product(q[row], k);
    }
    const float mine = sum_of_lanes(sums);
    const int top = threadIdx.x % 32 / 4 * 2;  // the lanes that have the sums of this one's rows
    return {__shfl_sync(~0u, mine, top), __shfl_sync(~0u, mine, top + rows)};
  }
  static __device__ const char* row_of_q(const FwdParams& params, const WorkItem& item,
                                         const typename MTile<V>::Row& at) {
    const StridedTensor& q = params.means.q;
    const long long row = first_row_of<V>(item) + at.row, batch = batch_of<V>(params, item);
    return static_cast<const char*>(q.data) + batch * q.batch + at.head * q.head + row * q.row;
  }
  static __device__ __forceinline__ float product(const Four& q, const float (&k)[columns]) {
    float2 low, high;
    if constexpr (is_8_bit(V.dtype)) {
      low = ptx::cvt_unpack2<ptx::f16>(ptx::cvt_f16x2<Q>(q.x, false));
      high = ptx::cvt_unpack2<ptx::f16>(ptx::cvt_f16x2<Q>(q.x, true));
    } else {
      low = ptx::cvt_unpack2<Q>(q.x), high = ptx::cvt_unpack2<Q>(q.y);
    }
    return (low.x * k[0] + low.y * k[1]) + (high.x * k[2] + high.y * k[3]);
  }

  // Of 16 values that each lane has, the sums over all lanes: lanes 2 r and 2 r + 1 get that of number r. At each step
  // a lane keeps half of the values and gives the other half to the lane that keeps them.
  template <int Half = rows / 2>
  static __device__ __forceinline__ float sum_of_lanes(const float (&x)[2 * Half]) {
    const bool upper = threadIdx.x & (2 * Half);
    float kept[Half];
#pragma unroll
    for (int i = 0; i < Half; ++i)
      kept[i] = (upper ? x[i + Half] : x[i]) + __shfl_xor_sync(~0u, upper ? x[i] : x[i + Half], 2 * Half);
    if constexpr (Half > 1)
      return sum_of_lanes<Half / 2>(kept);
    else
      return kept[0] + __shfl_xor_sync(~0u, kept[0], 1);
  }
};

// Of other variants.
struct NoMeans {
  template <class... Any>
  __device__ NoMeans(const Any&...) {}
};

}  // namespace froghopper::fwd
