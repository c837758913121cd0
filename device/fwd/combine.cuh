// SPDX-License-Identifier: Apache-2.0
// After a split forward kernel: rows whose keys were cut into parts -> O, by its gate where there is one, and lse.
//
// Work      a warp has one query row of one head, or several rows where parts are few (combine_lanes). Rows of a tile
//           with one part are there already, and rows of no sequence are the PaddingFiller's: both are left as they
//           are. Even splits: up to combine_ctas_of_tile CTAs have the tile that a CTA of the forward kernel begins and
//           does not end.
// Roles     all warps alike. A lane has columns of a row, dealt to the lanes in blocks of 2, 4 or 8; its parts' columns
//           are in registers, V.parts of them at a time
// Order     parts are summed in the order of their numbers, so the bits do not depend on which came first. Of fixed
//           parts, number 0 has the lowest keys; of an even split, the highest. Batch-invariant variants have fixed
//           parts and merge them from the highest number down, as device/fwd/batch_invariant.cuh does.
// Barriers  none: lanes of a row exchange values by shuffles
// Shared    nothing
// Overlap   it may start while the forward kernel runs: which sequence a row belongs to, and how many parts it has, is
//           found out before the wait, except for even splits. (The forward kernel lets this one start after it has
//           itself waited for the kernels before, so the lengths are there.)
// Exactness as OnlineSoftmax::exact_step: row maxima are subtracted from each other, not logarithms of sums, and
//           those of large rows before they are scaled
#pragma once
#include "contract/combine_variant.h"
#include "contract/fwd_params.h"
#include "contract/mask.h"
#include "contract/shared_params.h"
#include "contract/split.h"
#include "contract/tile_sequence.h"
#include "contract/types.h"
#include "device/attn/element.cuh"
#include "device/attn/gate.cuh"
#include "device/attn/lengths.cuh"
#include "device/attn/lse_merge.cuh"
#include "device/attn/softmax.cuh"
#include "device/ptx/launch.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/types.cuh"
#include "device/tile/constants.cuh"

namespace froghopper::fwd {

template <CombineVariant V>
struct Combine {
  static_assert(why_invalid(V) == nullptr);
  using T = typename attn::Element<V.dtype>::type;

  static constexpr int threads = combine_threads;
  static constexpr int smem_bytes = combine_smem_bytes;
  static constexpr int lanes = combine_lanes(V), columns = V.dim_v / lanes;  // of a row; of a lane
  // Columns are dealt to the lanes of a row in blocks of `block`, in round-robin order.
  static constexpr int block = lanes < 32 ? 4 : columns < 8 ? columns : 8;

  // A row of one head.
  struct OutputRow {
    int batch, row, head;  // of o and lse
    int parts;             // 0: there is no such row
    int first;             // batch-invariant variants: number of the first part
  };

  // A row in the workspace: where its part number `part` is.
  struct InWorkspace {
    const SplitParams& split;
    unsigned row;  // row x heads + head; evenly: the row of the tile
    int cta;       // evenly: that begins the tile

    __device__ long long operator()(int part) const {
      if constexpr (V.even)
        return workspace_tile_of_part_from(cta, part, split.even.classes) * static_cast<long long>(m_tile_rows) + row;
      return row + part * split.row_heads;
    }
  };

  static __device__ void run(const CombineParams& params) {
    if constexpr (V.even)
      run_tile(params);
    else
      run_rows(params);
  }

  static __device__ void run_tile(const CombineParams& params) {
    const int cta = blockIdx.x % params.ctas, first = blockIdx.x / params.ctas, ctas = gridDim.x / params.ctas;
    ptx::let_next_kernel_start();
    ptx::wait_for_earlier_kernels();
    const SharedQTile tile = params.split.even.shared_q_tiles[cta];
    if (tile.parts == 0) return;
    const int step = ctas * combine_rows(V);
    for (int i = first * combine_rows(V) + threadIdx.x / lanes; i < tile.rows * params.pack_gqa.heads; i += step) {
      const int head_in_tile = i / tile.rows, row = i % tile.rows;
      const OutputRow output = {tile.batch, tile.first_row + row, tile.head + head_in_tile, tile.parts, 0};
      combine_parts(params, {params.split, static_cast<unsigned>(head_in_tile * params.pack_gqa.rows + row), cta},
                    output);
    }
  }

  static __device__ void run_rows(const CombineParams& params) {
    const unsigned number = blockIdx.x * combine_rows(V) + threadIdx.x / lanes;  // there are below 2^31
    ptx::let_next_kernel_start();
    const OutputRow output = number < params.split.row_heads ? find(params, number) : OutputRow{};
    ptx::wait_for_earlier_kernels();
    if (output.parts <= 1) return;
    const InWorkspace at{params.split, number, 0};
    if constexpr (V.batch_invariant)
      merge_in_descending_order(params, at, output);
    else if constexpr (V.parts == 4)
      combine_few_parts(params, at, output);
    else
      combine_parts(params, at, output);
  }

  // number: at x heads + head, where `at` is the row in the packed tensor, or in all batches, one after the other.
  static __device__ OutputRow find(const CombineParams& params, unsigned number) {
    const int at = number / static_cast<unsigned>(params.heads_q);
    const int head = number - static_cast<unsigned>(at) * params.heads_q;
    const int* cu = params.ragged.cu_q;
    const int sequence = cu ? sequence_of(cu, params.sequences, at) : at / params.seq_q;
    if (sequence < 0) return {};
    const attn::Lengths lengths = attn::lengths_of(params.ragged, params.seq_q, params.seq_kv, sequence);
    const int row = cu ? at - lengths.q_first : at % params.seq_q;
    if (row >= lengths.seq_q) return {};
    const int first = row / params.tile_q * params.tile_q, last = min(first + params.tile_q, lengths.seq_q) - 1;
    const MaskRule<Mask::window> rule{lengths.seq_kv, params.mask.top_left ? 0 : lengths.seq_kv - lengths.seq_q,
                                      params.mask.left, params.mask.right};
    const TileSequence<int> tiles = rule.tiles(first, last, params.tile_kv);
    OutputRow output = {cu ? 0 : sequence, cu ? at : row, head, 0, 0};
    if constexpr (V.batch_invariant) {
      const Range<int> parts = batch_invariant_parts(tiles, params.split.most);
      output.parts = parts.end - parts.begin, output.first = parts.begin;
    } else {
      output.parts = parts_of(tiles, params.split.tiles, params.split.most);
    }
    return output;
  }

  // The last sequence that begins at or before this row; -1: none.
  static __device__ int sequence_of(const int* cu, int sequences, int row) {
    int before = 0, after = sequences;  // sequences [0, before) begin at or before it, those from `after` on do not
    while (before < after) {
      const int middle = (before + after) / 2;
      if (cu[middle] <= row)
        before = middle + 1;
      else
        after = middle;
    }
    return before - 1;
  }

  // The largest row max of a row's parts: of all of them, scaled; of the large ones, unscaled (-inf: there is none).
  struct Largest {
    float scaled, of_large;
  };

  static __device__ void combine_parts(const CombineParams& params, const InWorkspace& at, const OutputRow& output) {
    const int lane = threadIdx.x % 32;
    float x[V.parts][columns];
    load_parts(params, x, at, 0, output.parts, lane);  // before it is known what they weigh
    const Largest largest = largest_of(params, at, output.parts, lane);
    float my_weight = 0.f, my_sum = 0.f;  // of part lane of each 32
    float sum = 0.f, o[columns] = {};
    for (int first = 0; first < output.parts; first += V.parts) {
      if (first > 0) load_parts(params, x, at, first, output.parts, lane);
      if (first % 32 == 0) {
        const PartOfRow part = first + lane < output.parts ? params.split.rows[at(first + lane)] : none;
        my_weight = weight(params, part, largest);
        my_sum = my_weight * fabsf(part.sum);
      }
#pragma unroll
      for (int j = 0; j < V.parts; ++j) {
        const float w = __shfl_sync(~0u, my_weight, first % 32 + j), s = __shfl_sync(~0u, my_sum, first % 32 + j);
        if (w == 0.f) continue;  // so it is past the last part too; a break there would branch before every shuffle
        sum += s;
#pragma unroll
        for (int c = 0; c < columns; ++c) o[c] += w * x[j][c];
      }
    }
    finish(params, output, lane, o, attn::finish(largest.scaled, sum, sink_of(params, output)));
  }

  // Up to V.parts of them, each weighed by every lane.
  static __device__ void combine_few_parts(const CombineParams& params, const InWorkspace& at,
                                           const OutputRow& output) {
    const int lane = threadIdx.x % lanes;
    float x[V.parts][columns];
    PartOfRow part[V.parts];
    load_parts(params, x, at, 0, output.parts, lane);
#pragma unroll
    for (int j = 0; j < V.parts; ++j) part[j] = j < output.parts ? params.split.rows[at(j)] : none;
    Largest largest = {-tile::inf, -tile::inf};
#pragma unroll
    for (int j = 0; j < V.parts; ++j) include(params, largest, part[j]);
    float sum = 0.f, o[columns] = {};
#pragma unroll
    for (int j = 0; j < V.parts; ++j) {
      const float w = weight(params, part[j], largest);
      if (w == 0.f) continue;
      sum += w * fabsf(part[j].sum);
#pragma unroll
      for (int c = 0; c < columns; ++c) o[c] += w * x[j][c];
    }
    finish(params, output, lane, o, attn::finish(largest.scaled, sum, sink_of(params, output)));
  }

  static __device__ void merge_in_descending_order(const CombineParams& params, const InWorkspace& at,
                                                   const OutputRow& output) {
    const int lane = threadIdx.x % 32;
    PartOfRow whole = none;
    float o[columns] = {};
    for (int end = output.first + output.parts; end > output.first; end -= V.parts) {
      const int first = max(end - V.parts, output.first), count = end - first;
      float x[V.parts][columns];
      PartOfRow more[V.parts];
      load_parts(params, x, at, first, end, lane);
#pragma unroll
      for (int j = 0; j < V.parts; ++j)
        if (j < count) more[j] = params.split.rows[at(first + j)];
#pragma unroll
      for (int j = V.parts - 1; j >= 0; --j) {
        if (j >= count) continue;
        const attn::LseMerge merge = attn::merge(whole, more[j], params.scale_log2);
        whole = merge.row;
#pragma unroll
        for (int c = 0; c < columns; ++c) o[c] = attn::merged(o[c], x[j][c], merge);
      }
    }
    finish(params, output, lane, o, attn::finish_part(whole, params.scale_log2, sink_of(params, output)));
  }

  static __device__ float sink_of(const CombineParams& params, const OutputRow& output) {
    return params.sink ? params.sink[output.head] : -tile::inf;
  }

  static __device__ void finish(const CombineParams& params, const OutputRow& output, int lane, float (&o)[columns],
                                const attn::Finish& by) {
#pragma unroll
    for (float& x : o) x *= by.inverse;
    if constexpr (V.gated)
      if (by.inverse != 0.f) multiply_by_gate(params, output, lane, o);  // else it is 0, whatever its gate is
    store(params, output, lane, o);
    if (params.lse.data && lane == 0)
      params.lse.data[output.batch * params.lse.batch + output.head * params.lse.head + output.row * params.lse.row] =
          by.lse;
  }

  static constexpr PartOfRow none = {-tile::inf, 0.f};

  // Raises the largest row max to that of one more part.
  static __device__ void include(const CombineParams& params, Largest& most, const PartOfRow& part) {
    most.scaled = fmaxf(most.scaled, attn::scaled(part, params.scale_log2));
    if (attn::is_large(part)) most.of_large = fmaxf(most.of_large, part.row_max);
  }
  static __device__ Largest largest_of(const CombineParams& params, const InWorkspace& at, int parts, int lane) {
    Largest most = {-tile::inf, -tile::inf};
    for (int i = lane; i < parts; i += 32) include(params, most, params.split.rows[at(i)]);
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) {
      most.scaled = fmaxf(most.scaled, __shfl_xor_sync(~0u, most.scaled, apart));
      most.of_large = fmaxf(most.of_large, __shfl_xor_sync(~0u, most.of_large, apart));
    }
    return most;
  }

  // 0 for parts in which the row attends to no key: what their O holds does not matter.
  static __device__ float weight(const CombineParams& params, const PartOfRow& part, const Largest& largest) {
    if (part.row_max == -tile::inf) return 0.f;
    const bool from_large = attn::is_large(part) && __fmul_rn(largest.of_large, params.scale_log2) == largest.scaled;
    const float below = from_large ? __fmul_rn(part.row_max - largest.of_large, params.scale_log2)
                                   : attn::scaled(part, params.scale_log2) - largest.scaled;
    return ptx::ex2_approx(below);
  }

  // Parts from `first` on, as far as there are any.
  static __device__ void load_parts(const CombineParams& params, float (&x)[V.parts][columns], const InWorkspace& at,
                                    int first, int parts, int lane) {
#pragma unroll
    for (int j = 0; j < V.parts; ++j)
      if (first + j < parts) load(x[j], params.split.o + at(first + j) * params.dim_v, lane, params.dim_v);
  }
  static __device__ void load(float (&x)[columns], const float* row, int lane, int dim) {
#pragma unroll
    for (int at = 0; at < columns; at += block) {
      const int first = lanes * at + lane * block;
      if (first >= dim) return;
      if constexpr (block == 2) {
        const float2 a = *reinterpret_cast<const float2*>(row + first);
        x[0] = a.x, x[1] = a.y;
      } else {
#pragma unroll
        for (int c = 0; c < block; c += 4) {
          const float4 a = *reinterpret_cast<const float4*>(row + first + c);
          x[at + c] = a.x, x[at + c + 1] = a.y, x[at + c + 2] = a.z, x[at + c + 3] = a.w;
        }
      }
    }
  }

  static __device__ char* row_of(const StridedTensor& of, const OutputRow& output) {
    return static_cast<char*>(of.data) + output.batch * of.batch + output.head * of.head + output.row * of.row;
  }

  static __device__ void multiply_by_gate(const CombineParams& params, const OutputRow& output, int lane,
                                          float (&x)[columns]) {
    const char* row = row_of(params.gate, output);
#pragma unroll
    for (int at = 0; at < columns; at += block) {
      const int first = lanes * at + lane * block;
      if (first >= params.dim_v) return;
#pragma unroll
      for (int c = 0; c < block; c += 2) {
        const float2 gate = attn::two_of<T>(row, first + c);
        x[at + c] *= attn::sigmoid(gate.x);
        x[at + c + 1] *= attn::sigmoid(gate.y);
      }
    }
  }

  static __device__ void store(const CombineParams& params, const OutputRow& output, int lane,
                               const float (&x)[columns]) {
    char* row = row_of(params.o, output);
#pragma unroll
    for (int at = 0; at < columns; at += block) {
      const int first = lanes * at + lane * block;
      if (first >= params.dim_v) return;
      if constexpr (same<T, float>) {
#pragma unroll
        for (int c = 0; c < block; c += 2)
          reinterpret_cast<float2*>(row)[(first + c) / 2] = {x[at + c], x[at + c + 1]};
      } else {
        store_16_bit(reinterpret_cast<ptx::u32*>(row) + first / 2, x + at);
      }
    }
  }
  static __device__ void store_16_bit(ptx::u32* to, const float* x) {
    if constexpr (block == 2) {
      *to = ptx::cvt_pack2<T>(x[0], x[1]);
    } else if constexpr (block == 4) {
      *reinterpret_cast<uint2*>(to) = {ptx::cvt_pack2<T>(x[0], x[1]), ptx::cvt_pack2<T>(x[2], x[3])};
    } else {
      *reinterpret_cast<uint4*>(to) = {ptx::cvt_pack2<T>(x[0], x[1]), ptx::cvt_pack2<T>(x[2], x[3]),
                                       ptx::cvt_pack2<T>(x[4], x[5]), ptx::cvt_pack2<T>(x[6], x[7])};
    }
  }
};

}  // namespace froghopper::fwd
