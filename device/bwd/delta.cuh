// SPDX-License-Identifier: Apache-2.0
// Before the backward kernel: for every query row lse in base 2 and delta = o . grad_o - grad_lse (the term of dS that
// all keys of a row share), zeros where grad_q is summed or where those who add are counted, and the rows' shares of
// grad_sink. Gated variants also write grad_gate, and grad_o times the sigmoid of gate, which the backward kernel
// reads.
//
// Work      a CTA has one q tile of one head, as the workspace counts them (QTiles, contract/bwd_params.h)
// Roles     dim_v / 8 neighbouring threads, 32 at most, have one row: each has 16 bytes of every 256 columns of it
// Order     rows of a tile in any order; sums in the same order in every run
// Launches  It waits for the kernels before it, which may have written any of its tensors, and only then lets the
//           backward kernel start, whose producers read tensors, lengths and tickets before they wait for this one
//           (backward.cuh, Launches). Nothing else in it overlaps with another kernel.
// Barriers  one __syncthreads, in sum_of_cta(), where there is a sink
// Padding   rows that do not exist, and rows that attend to no key (lse = -inf), get lse = +inf and delta = 0: for
//           finite scores every weight of such a row is 2^-inf = 0. (A key with a component that is not finite may have
//           a score of NaN with the zeros of a row that does not exist, and then its own gradients are NaN.) The rows
//           of grad_o that do not exist arrive as zeros in the next kernel. The gate of a row that attends to no key,
//           by index, is not read: its gradients are 0.
// Shared    one value for each warp, for grad_sink: summed in a fixed order, so it is the same in every run
#pragma once
#include "contract/bwd_params.h"
#include "contract/bwd_variant.h"
#include "contract/mask.h"
#include "contract/shared_params.h"
#include "contract/types.h"
#include "device/attn/element.cuh"
#include "device/attn/gate.cuh"
#include "device/attn/lengths.cuh"
#include "device/attn/sequences.cuh"
#include "device/bwd/tiles_of_q.cuh"
#include "device/ptx/launch.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/types.cuh"
#include "device/tile/constants.cuh"

namespace froghopper::bwd {

// A row is large if its lse, in powers of two, is beyond this: there the rounding of lse shows in weights, and half of
// its last place is 2^-12 of a weight. What is done then: Weigh.
constexpr float large_lse = 4096.f;

template <DeltaVariant V>
struct Delta {
  static_assert(why_invalid(V) == nullptr);
  using T = typename attn::Element<V.dtype>::type;

  static constexpr int threads = delta_threads;
  static constexpr int smem_bytes = delta_smem_bytes;
  static constexpr int units = V.dim_v > 256 ? 2 : 1;  // of 8 columns, of a lane
  static constexpr int lanes = V.dim_v / 8 / units;    // of one row
  static constexpr int rows_at_once = threads / lanes;

  struct Smem {
    float of_warp[threads / 32];
  };
  static_assert(sizeof(Smem) == smem_bytes);

  static __device__ void run(const DeltaParams& params) {
    extern __shared__ __align__(16) char smem_memory[];
    Smem& smem = *reinterpret_cast<Smem*>(smem_memory);
    ptx::wait_for_earlier_kernels();
    // Not before this kernel's own wait: before the backward kernel waits it loads q, k, v and, where there is no gate,
    // grad_o, reads lengths and slopes, and fetches tickets.
    ptx::let_next_kernel_start();
    const int number = blockIdx.x;
    if constexpr (V.gated && V.ragged) {
      clear_unused(params);
      if (number >= params.q_tiles.tiles * params.q_tiles.heads_q) return;  // there are rows, but no sequence
    }
    const WorkspaceQTile tile = find_workspace_q_tile(params.ragged, params.q_tiles, params.sequences, params.seq_q,
                                                      params.tile_q, V.ragged, number);
    clear(params, number);
    const int lane = threadIdx.x % lanes;
    float sink_share = 0.f;
    for (int row = threadIdx.x / lanes; row < params.tile_q; row += rows_at_once) {
      const bool exists = tile.row + row < tile.rows;
      const bool reads_gate = V.gated && exists && attends_to_a_key(params, tile, tile.row + row);
      const float dot = row_dot(params, tile, tile.first_row + row, lane, exists, reads_gate);
      if (lane == 0) sink_share += write(params, tile, number, row, exists, dot);
    }
    if (!params.sink_shares) return;
    sink_share = sum_of_cta(smem.of_warp, sink_share);
    if (threadIdx.x == 0) params.sink_shares[number] = sink_share;
  }

  static __device__ void clear(const DeltaParams& params, int number) {
    if (params.dq_semaphore && threadIdx.x == 0) params.dq_semaphore[number] = 0;
    if (!params.dq_sum) return;
    float4* sum = reinterpret_cast<float4*>(params.dq_sum + static_cast<long long>(number) * params.dq_floats);
    for (int i = threadIdx.x; i < params.dq_floats / 4; i += threads) sum[i] = {0.f, 0.f, 0.f, 0.f};
  }

  // o . grad_o of one row, in each of its lanes. A warp goes through here together: a tile's rows are a multiple of
  // those that the CTA takes at once.
  static __device__ float row_dot(const DeltaParams& params, const WorkspaceQTile& tile, int row, int lane,
                                  bool exists, bool reads_gate) {
    float sum = unit_dot(params, tile, row, lane, exists, reads_gate);
    if constexpr (units == 2) sum += unit_dot(params, tile, row, lane + lanes, exists, reads_gate);
#pragma unroll
    for (int apart = lanes / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
    return sum;
  }

  static __device__ float unit_dot(const DeltaParams& params, const WorkspaceQTile& tile, int row, int unit,
                                   bool exists, bool reads_gate) {
    float sum = 0.f;
    if (exists && unit * 8 < params.dim_v) {
      const uint4 o = load(params.o, tile, row, unit), grad_o = load(params.grad_o, tile, row, unit);
      sum = dot(o.x, grad_o.x) + dot(o.y, grad_o.y) + dot(o.z, grad_o.z) + dot(o.w, grad_o.w);
      if constexpr (V.gated) pass_gate(params, tile, row, unit, reads_gate, o, grad_o);
    }
    return sum;
  }

  static __device__ uint4* address(const StridedTensor& in, const WorkspaceQTile& tile, int row, int unit) {
    char* at = static_cast<char*>(in.data) + tile.batch * in.batch + tile.head * in.head;
    return reinterpret_cast<uint4*>(at + row * in.row + unit * 16);
  }
  static __device__ uint4 load(const StridedTensor& from, const WorkspaceQTile& tile, int row, int unit) {
    return *address(from, tile, row, unit);
  }
  static __device__ float dot(ptx::u32 a, ptx::u32 b) {
    const float2 x = ptx::cvt_unpack2<T>(a), y = ptx::cvt_unpack2<T>(b);
    return x.x * y.x + x.y * y.y;
  }

  // ---- Gated variants ----

  static __device__ bool attends_to_a_key(const DeltaParams& params, const WorkspaceQTile& tile, int row) {
    const int keys =
        V.ragged ? attn::lengths_of(params.ragged, params.seq_q, params.seq_kv, tile.sequence).seq_kv : params.seq_kv;
    const MaskParams& mask = params.mask;
    const int diagonal = mask.top_left ? 0 : keys - tile.rows;
    if (params.chunk > 0) {
      const MaskRule<Mask::chunk> rule{keys, diagonal, mask.left, mask.right, params.chunk};
      return rule.begin(row) < rule.end(row);
    }
    const MaskRule<Mask::window> rule{keys, diagonal, mask.left, mask.right};
    return rule.begin(row) < rule.end(row);
  }

  // 8 columns of a row. o has the factor sigmoid already.
  static __device__ void pass_gate(const DeltaParams& params, const WorkspaceQTile& tile, int row, int unit,
                                   bool reads_gate, const uint4& o, const uint4& grad_o) {
    uint4 gated = {0, 0, 0, 0}, grad_gate = {0, 0, 0, 0};
    if (reads_gate) {
      const uint4 gate = load(params.gate, tile, row, unit);
      pass(gate.x, o.x, grad_o.x, gated.x, grad_gate.x);
      pass(gate.y, o.y, grad_o.y, gated.y, grad_gate.y);
      pass(gate.z, o.z, grad_o.z, gated.z, grad_gate.z);
      pass(gate.w, o.w, grad_o.w, gated.w, grad_gate.w);
    }
    *address(params.gated_grad_o, tile, row, unit) = gated;
    *address(params.grad_gate, tile, row, unit) = grad_gate;
  }
  static __device__ void pass(ptx::u32 gate, ptx::u32 o, ptx::u32 grad_o, ptx::u32& gated, ptx::u32& grad_gate) {
    const float2 g = ptx::cvt_unpack2<T>(gate), y = ptx::cvt_unpack2<T>(o), of_y = ptx::cvt_unpack2<T>(grad_o);
    gated = ptx::cvt_pack2<T>(of_y.x * attn::sigmoid(g.x), of_y.y * attn::sigmoid(g.y));
    grad_gate = ptx::cvt_pack2<T>(of_y.x * y.x * attn::sigmoid(-g.x), of_y.y * y.y * attn::sigmoid(-g.y));
  }

  static __device__ void clear_unused(const DeltaParams& params) {
    const RaggedParams& ragged = params.ragged;
    const int in_row = params.dim_v / 8;  // units
    attn::each_unused_row(ragged.cu_q, ragged.used_q, params.sequences, params.seq_q, ragged.total_q,
                          [&](int batch, int row) {
                            for (int i = threadIdx.x; i < params.q_tiles.heads_q * in_row; i += threads)
                              *address(params.grad_gate, {i / in_row, batch}, row, i % in_row) = {0, 0, 0, 0};
                          });
  }

  // ---- All variants ----

  // Returns the row's share of grad_sink: minus the sink's weight times delta.
  static __device__ float write(const DeltaParams& params, const WorkspaceQTile& tile, int number, int row,
                                bool exists, float dot) {
    const auto number_of = [&](const RowScalars& of) {
      return of.data[tile.batch * of.batch + tile.head * of.head + (tile.first_row + row) * of.row];
    };
    const float lse = exists ? number_of(params.lse) : -tile::inf;
    const bool attends = lse != -tile::inf;
    // A large sink is in lse: not as +inf, from which a score that is as large would be NaN away.
    const float lse_log2 = attends ? ptx::min_or_nan(lse * tile::log2e, tile::largest) : tile::inf;
    const float delta = attends ? dot - (params.grad_lse.data ? number_of(params.grad_lse) : 0.f) : 0.f;
    float* to = params.rows + static_cast<long long>(number) * 2 * params.tile_q +
                index_of_row(params.float4_interleaved, row);
    to[0] = lse_log2;
    to[params.tile_q] = delta;
    if (attends && fabsf(lse_log2) > large_lse) *params.large = params.tag;
    if (!params.sink || !attends) return 0.f;
    // At most 1, also where both are +inf: the smaller one of 0 and NaN is 0.
    return -ptx::ex2_approx(fminf(0.f, (params.sink[tile.head] - lse) * tile::log2e)) * delta;
  }
};

}  // namespace froghopper::bwd
