// SPDX-License-Identifier: Apache-2.0
// device/bwd: from scores to weights to dS, for the columns that a thread holds.
#pragma once
#include "device/attn/softmax.cuh"
#include "device/bwd/schedule.cuh"
#include "device/ptx/math.cuh"
#include "device/tile/accum.cuh"
#include "device/tile/numbers.cuh"

namespace froghopper::bwd {

// The turns of one item for one strip of keys, a span after the other: masked ones, then clear ones. In rounds: one for
// every query head, or one in which every q tile has all heads.
struct Walk {
  const BwdParams& params;
  const WorkItem& item;
  int number;         // of the strip
  bool far;           // some row of the problem may be far, see Weigh
  int heads;          // turns of every q tile
  int rounds;         // after this one
  int masked_again;   // turns of this round after the present spans
  int masked, clear;  // turns of the present spans; the caller counts them down

  __device__ Walk(const BwdParams& params, const WorkItem& item, int number)
      : params(params), item(item), number(number), heads(1), rounds(1) {
    (item.way == Way::by_heads ? rounds : heads) = params.heads_per_kv;
    far = same(*params.far == params.queue.tag);
    next_round();
  }

  // The first turn of an item has only the masked form, whichever span it belongs to.
  __device__ void count_first() { --(masked > 0 ? masked : clear); }

  // The spans are over; false: that was the last turn.
  __device__ bool next() {
    masked = masked_again;
    masked_again = 0;
    if (masked == 0 && rounds > 0) next_round();
    return masked + clear > 0;
  }

 private:
  __device__ void next_round() {
    --rounds;
    const Spans<int>& spans = item.spans[number];
    masked = turns(spans.masked), clear = turns(spans.clear), masked_again = turns(spans.masked_again);
    if (far || masked + clear == 0) masked += clear + masked_again, clear = masked_again = 0;
  }
  // The shuffle tells the compiler that all lanes have the same value.
  __device__ int turns(int tiles) const { return same(tiles * heads); }
  static __device__ int same(int value) { return __shfl_sync(~0u, value, 0); }
};

// One number a query row, for the columns that this thread holds of a tile with queries along columns: read where it is
// needed,
struct RowValues {
  const float* first;
  __device__ __forceinline__ explicit RowValues(const float* rows) : first(rows + tile::thread_col()) {}
  __device__ __forceinline__ float of(int i) const { return first[tile::col_of(i)]; }
};

// or all at once, in program order: the compiler may not move these loads behind a wgmma.
template <int Rows>
struct EarlyRowValues {
  float2 x[Rows / 8];
  __device__ __forceinline__ explicit EarlyRowValues(const float* rows) {
    const ptx::u32 first = ptx::smem_addr(rows) + tile::thread_col() * 4;
#pragma unroll
    for (int i = 0; i < Rows / 8; ++i) x[i] = ptx::ld_shared_v2(first + i * 32);
  }
  __device__ __forceinline__ float of(int i) const { return i & 1 ? x[i / 4].y : x[i / 4].x; }
};

// s becomes the weights, p the weights rounded to T, for as many columns of queries as s has.
//
// weight = 2^(scaled score - lse). A row is far where the rounding of lse would show: lse has a last place of its own,
// and the largest weight, near 2^0, would be off by as much. Exponents within the rounding of both, 2^-20 of lse, are
// taken as 0: such keys cannot be told from the largest one. And no weight is above 1. Only masked turns ask, and where
// a row is far all turns are masked.
//
// Alibi: what is on top of the scaled score changes the weight alone.
//
// Softcap: s becomes weight (1 - t^2) with t = tanh(...), the slope that dS needs; p stays the weights.
template <BwdVariant V, bool Masked>
struct Weigh {
  const BwdParams& params;
  OnTop<V.alibi> on_top;
  bool far = false;
  Hidden hidden = {};

  template <class T, class Rows>
  __device__ __forceinline__ void run(tile::Accum<V.tiles.q>& s, tile::OperandA<V.tiles.q>& p,
                                      const Rows& lse) const {
    if constexpr (V.softcap) attn::cap(s, params.cap_scale);
    if (Masked && far)
      weigh<T, /*Far=*/true>(s, p, lse);
    else
      weigh<T, /*Far=*/false>(s, p, lse);
  }

 private:
  template <class T, bool Far, class Rows>
  __device__ __forceinline__ void weigh(tile::Accum<V.tiles.q>& s, tile::OperandA<V.tiles.q>& p,
                                        const Rows& lse) const {
#pragma unroll
    for (int i = 0; i < V.tiles.q / 2; i += 4) {
      float w[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) w[j] = weight<Far>(s.x[i + j], lse.of(i + j), i + j);
      tile::round_group<T>(p, i / 4, w);
#pragma unroll
      for (int j = 0; j < 4; ++j) s.x[i + j] = V.softcap ? w[j] * (1.f - s.x[i + j] * s.x[i + j]) : w[j];
    }
  }

  template <bool Far>
  __device__ __forceinline__ float weight(float score, float lse, int i) const {
    float exponent = score * params.scale_log2 - lse;
    if constexpr (V.alibi) exponent = __fmaf_rn(score, params.scale_log2, on_top(i)) - lse;
    if constexpr (Far) {
      const float rounding = fminf(fabsf(lse) * 0x1p-20f, 0x1p120f);  // finite where lse is not
      exponent = fabsf(exponent) <= rounding ? 0.f : fminf(exponent, 0.f);
    }
    const float w = ptx::ex2_approx(exponent);
    return Masked && hidden(i) ? 0.f : w;
  }
};

// weights becomes dS = weights (dP - delta).
template <int Cols, class Rows>
__device__ __forceinline__ void to_ds(tile::Accum<Cols>& weights, const tile::Accum<Cols>& dp, const Rows& delta) {
#pragma unroll
  for (int i = 0; i < Cols / 2; ++i) weights.x[i] *= dp.x[i] - delta.of(i);
}

}  // namespace froghopper::bwd
