// SPDX-License-Identifier: Apache-2.0
// device/bwd: from scores to weights to dS, for the columns that a thread holds.
#pragma once
#include "contract/bwd_params.h"
#include "contract/bwd_variant.h"
#include "contract/types.h"
#include "device/attn/softmax.cuh"
#include "device/bwd/schedule.cuh"
#include "device/bwd/score_mod.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/shared_memory.cuh"
#include "device/ptx/types.cuh"
#include "device/tile/accum.cuh"

namespace froghopper::bwd {

// One value for each query row, for the columns that this thread holds of a tile with queries along columns.
// Float4Interleaved: rows lie as index_of_row has them, and one load brings four. RowValues loads each
// where it is used.
template <bool Float4Interleaved>
struct RowValues {
  const float* first;
  __device__ __forceinline__ explicit RowValues(const float* rows)
      : first(rows + (Float4Interleaved ? threadIdx.x % 4 * 4 : tile::thread_col())) {}
  __device__ __forceinline__ float of(int i) const {
    if constexpr (Float4Interleaved)
      return one_of(reinterpret_cast<const float4*>(first)[i / 8 * 4], i);
    else
      return first[tile::col_of(i)];
  }
  static __device__ __forceinline__ float one_of(const float4& four, int i) {
    return i & 4 ? (i & 1 ? four.w : four.z) : (i & 1 ? four.y : four.x);
  }
};

// Loads those of a q tile of 64 rows all at once, in program order: the compiler may not move these loads behind a
// wgmma.
template <bool Float4Interleaved>
struct EarlyRowValues {
  float2 x[m_tile_rows / 8];
  __device__ __forceinline__ explicit EarlyRowValues(const float* rows) {
    const ptx::u32 first = ptx::smem_addr(rows) + tile::thread_col() * 4;
#pragma unroll
    for (int i = 0; i < m_tile_rows / 8; ++i) x[i] = ptx::ld_shared_v2_f32(first + i * 32);
  }
  __device__ __forceinline__ float of(int i) const { return i & 1 ? x[i / 4].y : x[i / 4].x; }
};
template <>
struct EarlyRowValues<true> {
  float4 x[m_tile_rows / 16];
  __device__ __forceinline__ explicit EarlyRowValues(const float* rows) {
    const ptx::u32 first = ptx::smem_addr(rows) + threadIdx.x % 4 * 16;
#pragma unroll
    for (int i = 0; i < m_tile_rows / 16; ++i) x[i] = ptx::ld_shared_v4_f32(first + i * 64);
  }
  __device__ __forceinline__ float of(int i) const { return RowValues<true>::one_of(x[i / 8], i); }
};

// s becomes the weights, p the weights rounded to T, for as many columns of queries as s has.
//
// weight = 2^(scaled score - lse). In a large row (large_lse, delta.cuh) the weight of the largest key would visibly
// differ from what it should be. There an exponent of at most 2^-20 |lse| in magnitude, which is within the rounding of
// score and lse, is taken as 0: such keys cannot be told from the largest one. An exponent above 0 is taken as 0 too.
// Only iterations with a mask have this test, and where some row is large all iterations are masked (QLoop).
//
// Where the score modification has a gradient of its own, s becomes weight x gradient, which dS needs; p stays the
// weights.
template <BwdVariant V, bool Masked>
struct Weigh {
  const BwdParams& params;
  ScoreMod<V> score_mod;
  bool large = false;
  MaskedOut masked_out = {};

  template <class T, class Rows>
  __device__ __forceinline__ void run(tile::Accum<V.tiles.q>& s, tile::OperandA<V.tiles.q>& p,
                                      const Rows& lse) const {
    score_mod.apply(s, params);
    if (Masked && large)
      weigh<T, /*Large=*/true>(s, p, lse);
    else
      weigh<T, /*Large=*/false>(s, p, lse);
  }

 private:
  template <class T, bool Large, class Rows>
  __device__ __forceinline__ void weigh(tile::Accum<V.tiles.q>& s, tile::OperandA<V.tiles.q>& p,
                                        const Rows& lse) const {
#pragma unroll
    for (int i = 0; i < V.tiles.q / 2; i += 4) {
      float w[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) w[j] = weight<Large>(s.x[i + j], lse.of(i + j), i + j);
      tile::round_fragment<T>(p, i / 4, w);
#pragma unroll
      for (int j = 0; j < 4; ++j) s.x[i + j] = w[j] * score_mod.gradient(s.x[i + j]);
    }
  }

  template <bool Large>
  __device__ __forceinline__ float weight(float score, float lse, int i) const {
    float exponent = score_mod.in_base_2(score, params.scale_log2, i) - lse;
    if constexpr (Large) {
      const float rounding = fminf(fabsf(lse) * 0x1p-20f, 0x1p120f);  // finite where lse is not
      exponent = fabsf(exponent) <= rounding ? 0.f : ptx::min_or_nan(exponent, 0.f);
    }
    const float w = ptx::ex2_approx(exponent);
    return Masked && masked_out(i) ? 0.f : w;
  }
};

// weights becomes dS = weights (dP - delta).
template <int Cols, class Rows>
__device__ __forceinline__ void to_ds(tile::Accum<Cols>& weights, const tile::Accum<Cols>& dp, const Rows& delta) {
#pragma unroll
  for (int i = 0; i < Cols / 2; ++i) weights.x[i] *= dp.x[i] - delta.of(i);
}

}  // namespace froghopper::bwd
