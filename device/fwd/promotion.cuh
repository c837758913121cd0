// SPDX-License-Identifier: Apache-2.0
// device/fwd: O of variants with FP8 MMAs in two levels. wgmma adds FP8 products to an fp32 accumulator as if both had
// 14 bits, and cuts off the rest, so a long sum loses 2^-14 of itself at every step. Every fwd_promotion_tiles kv tiles
// O is added, in ordinary fp32, to a sum in the workspace, which stays in L2, and begins at 0 again. (CUTLASS promotes
// its FP8 accumulators in the same way, to a sum in registers, of which there are none left here.) At large head dims
// O is cut into slices of columns, which are promoted one after the other.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "contract/tile_sequence.h"
#include "contract/types.h"
#include "device/attn/scaled_softmax.cuh"
#include "device/attn/softmax.cuh"
#include "device/fwd/workspace_o.cuh"
#include "device/ptx/reduce.cuh"
#include "device/ptx/registers.cuh"
#include "device/ptx/types.cuh"
#include "device/ptx/wgmma.cuh"
#include "device/tile/accum.cuh"

namespace froghopper::fwd {

// One bit for each slice of O: whether a row max has changed since the slice was last promoted, so that its sum in the
// workspace needs a rescale.
struct RowMaxMoved {
  ptx::u32 slices = 0;

  __device__ void all() { slices = ~0u; }
  __device__ bool since(int slice) const { return slices >> slice & 1; }
  __device__ void forget(int slice) { slices &= ~(1u << slice); }
};

// Of one Consumer. The sum of a slice has a header (workspace_o.cuh): what it is relative to, as the softmax gives it.
// `visited`: the kv tiles that the M tile visits.
template <FwdVariant V>
struct Promotion {
  using Output = tile::Accum<fwd_columns(V)>;
  static constexpr int fragments = WorkspaceO<V>::fragments, headers = WorkspaceO<V>::headers;
  static constexpr int tiles = fwd_promotion_tiles(V), slices = fwd_promotion_slices(V), step = tiles / slices;
  static constexpr int fragments_per_slice = fragments / slices;
  static_assert(tiles % slices == 0 && fragments % slices == 0);

  const FwdParams& params;
  int consumer;

  // Whether the M tile has sums in the workspace after its last kv tile. due() asks for it too: with several slices
  // kv_tile % step == 0 also holds in M tiles that visit too few kv tiles to need promotion.
  static __device__ bool has_sums(TileSequence<int> visited) { return visited.first() - visited.last() > tiles; }
  static __device__ bool due(int kv_tile, TileSequence<int> visited) {
    return kv_tile % step == 0 && kv_tile > visited.last() && has_sums(visited);
  }

  // Before P V of a tile where it is due.
  __device__ __forceinline__ void promote(int kv_tile, TileSequence<int> visited, const attn::E4m3Softmax& softmax,
                                          RowMaxMoved& row_max_moved, Output& o) const {
    const int slice = kv_tile % tiles / step;
    const bool first = kv_tile + tiles >= visited.first();
#pragma unroll
    for (int i = 0; i < slices; ++i)
      if (slice == i) promote_slice(i, first, softmax, row_max_moved, o);
  }

  // O becomes the whole sum. Its last product may still be in flight. S is not needed any more, so its registers can
  // hold the sums that are loaded from L2.
  __device__ __forceinline__ void finish(TileSequence<int> visited, const attn::E4m3Softmax& softmax,
                                         const RowMaxMoved& row_max_moved, Output& o) const {
    if (!has_sums(visited)) return;
    const float4* const sums = address();
    constexpr int together = V.tiles.kv / 8;
    attn::RowPair rescale = {1.f, 1.f};
    if constexpr (slices == 1) rescale = softmax.factors_since(*sums);
#pragma unroll
    for (int i = 0; i < fragments; i += together) {
      ptx::keep_order();
      float4 sum[together];
      WorkspaceO<V>::load(sum, i, sums);
      if (i == 0) ptx::wgmma_wait<0>();
#pragma unroll
      for (int j = 0; j < together && i + j < fragments; ++j) {
        const int slice = (i + j) / fragments_per_slice;
        if (slices > 1 && (i + j) % fragments_per_slice == 0)
          rescale =
              row_max_moved.since(slice) ? softmax.factors_since(sums[slice * warpgroup]) : attn::RowPair{1.f, 1.f};
        add_fragment(o.x + 4 * (i + j), sum[j], rescale);
      }
    }
  }

 private:
  __device__ __forceinline__ void promote_slice(int slice, bool first, const attn::E4m3Softmax& softmax,
                                                RowMaxMoved& row_max_moved, Output& o) const {
    const int begin = slice * fragments_per_slice;
    float4* const sums = address();
    const auto fragment = [&](int i) { return o.x + 4 * (begin + i); };
    const auto sum = [&](int i) { return sums + (headers + begin + i) * warpgroup; };
    if (!first && !row_max_moved.since(slice)) {
      // The row maxima are still those of the header, so nothing is rescaled: L2 adds, and no warp waits for it.
#pragma unroll
      for (int i = 0; i < fragments_per_slice; ++i)
        ptx::red_add_v4_f32(&sum(i)->x, fragment(i)[0], fragment(i)[1], fragment(i)[2], fragment(i)[3]);
    } else {
      float4* const header = sums + slice * warpgroup;
      attn::RowPair rescale = {1.f, 1.f};
      if (!first) rescale = softmax.factors_since(*header);
#pragma unroll
      for (int i = 0; i < fragments_per_slice; i += 8) {
        ptx::keep_order();
        if (!first)
          WorkspaceO<V>::template apply<8>(o, begin + i, sums,
                                           [&](float* x, const float4& sum) { add_fragment(x, sum, rescale); });
#pragma unroll
        for (int j = i; j < i + 8 && j < fragments_per_slice; ++j)
          *sum(j) = {fragment(j)[0], fragment(j)[1], fragment(j)[2], fragment(j)[3]};
      }
      *header = softmax.row_maxima();
      row_max_moved.forget(slice);
    }
    if constexpr (fwd_immediate_pv(V)) return;  // the next product is not added to what O has
#pragma unroll
    for (int i = 0; i < 4 * fragments_per_slice; ++i) o.x[4 * begin + i] = 0.f;
  }

  static __device__ __forceinline__ void add_fragment(float* x, const float4& sum, attn::RowPair rescale) {
    x[0] += sum.x * rescale.top;
    x[1] += sum.y * rescale.top;
    x[2] += sum.z * rescale.bottom;
    x[3] += sum.w * rescale.bottom;
  }
  __device__ float4* address() const { return WorkspaceO<V>::address(params, consumer); }
};

}  // namespace froghopper::fwd
