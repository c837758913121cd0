// SPDX-License-Identifier: Apache-2.0
// device/bwd: grad_q of a q tile while it is summed, in fp32 in the workspace: pieces of 64 x 64, each as the registers
// of one warpgroup hold it, so that an add is 512 bytes in a row for a warp. The backward kernels add, grad_q.cuh
// reads; no other code knows the order.
#pragma once
#include "contract/bwd_params.h"
#include "contract/bwd_variant.h"
#include "contract/types.h"
#include "device/bwd/columns.cuh"
#include "device/bwd/schedule.cuh"
#include "device/ptx/reduce.cuh"
#include "device/ptx/registers.cuh"
#include "device/ptx/types.cuh"
#include "device/tile/accum.cuh"

namespace froghopper::bwd {

// [fragment][thread][4]
constexpr int dq_fragment_stride = 4 * warpgroup;

// With 64 rows and head dims up to 128 grad_q of a q tile is computed transposed, dQ^T = K^T dS^T, so that the 64 rows
// of a wgmma are 64 columns of it, and each of the two consumers has a piece. A thread's 4 floats are, of rows r and
// columns c,
//   transposed       (r, c), (r + 1, c), (r, c + 8), (r + 1, c + 8)
//                    r = fragment x 8 + lane % 4 x 2, c = warp x 16 + lane / 4
//   not transposed   (r, c), (r, c + 1), (r + 8, c), (r + 8, c + 1)
//                    r = warp x 16 + lane / 4, c = fragment x 8 + lane % 4 x 2
constexpr bool dq_transposed(int tile_q, int dim_qk) { return tile_q == m_tile_rows && dim_qk <= 128; }

// The tile of grad_q, in the workspace, of one q tile and head.
template <BwdVariant V>
__device__ int dq_tile(const BwdParams& params, const WorkItem& item, int head, int q_tile) {
  return (item.q.first_dq_tile + q_tile) * params.q_tiles.heads_q + head;
}

// One consumer's way to its share of a tile, one iteration late: what it adds belongs to the iteration before. Where
// CTAs add in order the first one writes, so that there need be no zeros.
template <BwdVariant V, DqShare Share>
struct DqSum {
  const BwdParams& params;
  int tile = 0;  // of the iteration before, as QIteration has it

  using Accum = tile::Accum<Share.count>;
  static constexpr int floats = dq_floats(V.tiles.q, V.dims.qk);

  __device__ __forceinline__ void remember(const QIteration& q_iteration) { tile = q_iteration.dq_tile; }

  // This thread's offset in a fragment.
  static __device__ __forceinline__ ptx::u32 offset() { return ptx::thread_here() % warpgroup * 4; }

  __device__ __forceinline__ void add(const Accum& dq, ptx::u32 offset) const {
    const bool first = V.deterministic && tile < 0;  // marked_tile()
    float* to = params.dq_sum + static_cast<long long>(first ? ~tile : tile) * floats +
                first_column<Share>() / 8 * dq_fragment_stride + offset;
    if (first)
      each_fragment(dq, to, [](auto... args) { ptx::st_v4_f32(args...); });
    else
      each_fragment(dq, to, [](auto... args) { ptx::red_add_v4_f32(args...); });
  }

 private:
  template <class Put>
  static __device__ __forceinline__ void each_fragment(const Accum& dq, float* to, Put put) {
#pragma unroll
    for (int i = 0; i < Share.count / 8; ++i)
      put(to + i * dq_fragment_stride, dq.x[4 * i], dq.x[4 * i + 1], dq.x[4 * i + 2], dq.x[4 * i + 3]);
  }
};

}  // namespace froghopper::bwd
