// SPDX-License-Identifier: Apache-2.0
// After the backward kernel: grad_q = scale x its sums, rounded, or added to what is there; grad_sink from its shares;
// zeros in the rows of no sequence.
//
// Work      CTA n < tiles has one q tile of one head, as the workspace counts them: zeros if no CTA has added to it.
//           The heads_q CTAs after them, where there is a sink, sum its shares of one head each. Ragged: every CTA also
//           clears its share of unused rows.
// Roles     all threads alike: each copies 16 bytes at a time, then has 8 columns of two rows of every piece
// Launches  The next kernel may start once this one has waited for the backward kernel. By then all earlier kernels
//           have ended, so the next one need not wait for this one before it reads what they wrote.
// Order     the pieces are copied to shared memory as they lie, and leave as rows. Shares of a sink's gradient are
//           added in a fixed order, so that it is the same in every run.
// Banks     4 floats of a thread stay together; in shared memory their order is such that a load of write() finds what
//           all its lanes read in other banks (swizzled).
// Barriers  __syncthreads between reading and writing
// Shared    the tile in fp32, or half of it after half of it
#pragma once
#include "contract/bwd_params.h"
#include "contract/bwd_variant.h"
#include "contract/mask.h"
#include "contract/shared_params.h"
#include "contract/types.h"
#include "device/attn/element.cuh"
#include "device/attn/sequences.cuh"
#include "device/bwd/dq_sum.cuh"
#include "device/bwd/tiles_of_q.cuh"
#include "device/ptx/async_copy.cuh"
#include "device/ptx/launch.cuh"
#include "device/ptx/math.cuh"

namespace froghopper::bwd {

template <GradQVariant V>
struct GradQ {
  static_assert(why_invalid(V) == nullptr);
  using T = typename attn::Element<V.dtype>::type;

  static constexpr int threads = grad_q_threads;
  static constexpr int smem_bytes = grad_q_smem_bytes(V);
  static constexpr int pieces = dq_pieces(V.tile_q, V.dim_qk), at_once = grad_q_pieces(V);
  static constexpr bool dq_is_transposed = dq_transposed(V.tile_q, V.dim_qk);
  static constexpr int float4s = dq_piece / 4;  // of a piece

  struct Smem {
    float4 sums[at_once][float4s];
  };
  static_assert(sizeof(Smem) == smem_bytes);
  struct SinkSmem {  // in its place
    float of_warp[threads / 32];
  };

  static __device__ void run(const GradQParams& params) {
    extern __shared__ __align__(1024) char smem_memory[];
    Smem& smem = *reinterpret_cast<Smem*>(smem_memory);
    ptx::wait_for_earlier_kernels();
    ptx::let_next_kernel_start();
    if (params.large && blockIdx.x == 0 && threadIdx.x == 0) *params.large = 0;  // 0 is the tag of no run
    const long long tiles = static_cast<long long>(params.q_tiles.tiles) * params.q_tiles.heads_q;
    if (blockIdx.x >= tiles) {
      const int head = static_cast<int>(blockIdx.x - tiles);
      if (params.grad_sink && head < params.q_tiles.heads_q)
        sum_sink(*reinterpret_cast<SinkSmem*>(smem_memory), params, head);
    } else {
      const WorkspaceQTile tile = find_workspace_q_tile(params.ragged, params.q_tiles, params.sequences, params.seq_q,
                                                        V.tile_q, V.ragged, static_cast<int>(blockIdx.x));
      const int rows = min(V.tile_q, tile.rows - tile.row);
      if (rows > 0) {
#pragma unroll
        for (int first = 0; first < pieces; first += at_once) {
          if (first > 0) __syncthreads();
          read(smem, params, first);
          __syncthreads();
          write(smem, params, tile, rows, first);
        }
      }
    }
    if constexpr (V.ragged) clear_unused(params);
  }

  // Where 4 floats of a piece, number `four` in the workspace, lie in shared memory.
  static __device__ int swizzled(int four) {
    return dq_is_transposed ? four ^ four / 32 % 2 * 4 : four ^ four / 8 % 4;
  }

  // read() and write() handle at_once pieces, from number `first` on.
  static __device__ void read(Smem& smem, const GradQParams& params, int first) {
    const bool no_adds = params.dq_semaphore && params.dq_semaphore[blockIdx.x] == 0;
    const float4* from = reinterpret_cast<const float4*>(params.dq_sum) +
                         (static_cast<long long>(blockIdx.x) * pieces + first) * float4s;
#pragma unroll
    for (int i = 0; i < at_once * float4s / threads; ++i) {
      const int at = i * threads + static_cast<int>(threadIdx.x);
      ptx::cp_async_16(&smem.sums[at / float4s][swizzled(at % float4s)], from + at, no_adds);
    }
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
  }

  // A thread has 8 columns of two rows of every piece.
  static __device__ void write(const Smem& smem, const GradQParams& params, const WorkspaceQTile& tile, int rows,
                               int first_piece) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // Transposed: a warp has 8 rows and all columns; else 16 rows and half of the columns.
    const int row = dq_is_transposed ? warp * 8 + lane % 4 * 2 : warp / 2 * 16 + lane % 8;
    const int unit = dq_is_transposed ? lane / 4 : warp % 2 * 4 + lane / 8;  // of 8 columns
    constexpr int second = dq_is_transposed ? 1 : 8;                         // row, after the first one
    constexpr int m_tiles = V.tile_q / m_tile_rows;
    const StridedTensor& to = params.grad_q.to;
    char* first = static_cast<char*>(to.data) + tile.batch * to.batch + tile.head * to.head + tile.first_row * to.row;
#pragma unroll 1
    for (int at = 0; at < at_once; ++at) {  // in shared memory
      float x[2][8];
      if constexpr (dq_is_transposed) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const int four = warp * warpgroup + unit / 2 * 32 + i * 4 + lane % 4;
          const float2 both = reinterpret_cast<const float2*>(&smem.sums[at][swizzled(four)])[unit % 2];
          x[0][i] = both.x, x[1][i] = both.y;
        }
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float4 four = smem.sums[at][swizzled(unit * warpgroup + warp / 2 * 32 + lane % 8 * 4 + i)];
          x[0][2 * i] = four.x, x[0][2 * i + 1] = four.y, x[1][2 * i] = four.z, x[1][2 * i + 1] = four.w;
        }
      }
      const int piece = first_piece + at;
      const int col = (dq_is_transposed ? piece : piece / m_tiles) * panel_columns + unit * 8;
      const int row_of_tile = (dq_is_transposed ? 0 : piece % m_tiles * m_tile_rows) + row;
      if (col >= params.grad_q.dim) continue;
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (row_of_tile + i * second < rows) write_8(params, first + (row_of_tile + i * second) * to.row, col, x[i]);
    }
  }

  static __device__ void write_8(const GradQParams& params, char* row, int col, float (&x)[8]) {
#pragma unroll
    for (float& value : x) value *= params.scale;
    if (params.grad_q.add) {
      float4* sum = reinterpret_cast<float4*>(row) + col / 4;
      const float4 a = sum[0], b = sum[1];
      sum[0] = {a.x + x[0], a.y + x[1], a.z + x[2], a.w + x[3]};
      sum[1] = {b.x + x[4], b.y + x[5], b.z + x[6], b.w + x[7]};
    } else {
      reinterpret_cast<uint4*>(row)[col / 8] = {ptx::cvt_pack2<T>(x[0], x[1]), ptx::cvt_pack2<T>(x[2], x[3]),
                                                ptx::cvt_pack2<T>(x[4], x[5]), ptx::cvt_pack2<T>(x[6], x[7])};
    }
  }

  static __device__ void sum_sink(SinkSmem& smem, const GradQParams& params, int head) {
    float sum = 0.f;
    for (int tile = threadIdx.x; tile < params.q_tiles.tiles; tile += threads)
      sum += params.sink_shares[static_cast<long long>(tile) * params.q_tiles.heads_q + head];
    sum = sum_of_cta(smem.of_warp, sum);
    if (threadIdx.x == 0) params.grad_sink[head] = sum + (params.grad_q.add ? params.grad_sink[head] : 0.f);
  }

  static __device__ void clear_unused(const GradQParams& params) {
    const RaggedParams& ragged = params.ragged;
    if (!params.grad_q.add)
      attn::each_unused_row(
          ragged.cu_q, ragged.used_q, params.sequences, params.seq_q, ragged.total_q,
          [&](int batch, int row) { clear_row(params.grad_q, params.q_tiles.heads_q, batch, row); });
    if (params.grad_k.add) return;
    attn::each_unused_row(ragged.cu_kv, ragged.used_kv, params.sequences,
                          ragged.cu_kv ? no_bound<int> : params.seq_kv, params.total_kv, [&](int batch, int row) {
                            clear_row(params.grad_k, params.heads_kv, batch, row);
                            clear_row(params.grad_v, params.heads_kv, batch, row);
                          });
  }
  static __device__ void clear_row(const GradTensor& grad, int heads, int batch, int row) {
    const int units = grad.dim / 8;  // of 16 bytes
    char* at = static_cast<char*>(grad.to.data) + batch * grad.to.batch + row * grad.to.row;
    for (int i = threadIdx.x; i < heads * units; i += threads)
      *reinterpret_cast<uint4*>(at + i / units * grad.to.head + i % units * 16) = {0, 0, 0, 0};
  }
};

}  // namespace froghopper::bwd
