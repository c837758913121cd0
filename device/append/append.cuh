// SPDX-License-Identifier: Apache-2.0
// New rows of k and v -> their rows in a cache, normed, rotated and quantised where that is asked for; and q with
// them. It moves bytes: what is computed hides behind that.
//
// Work      a lane group has some heads of a row, in q, k and v: 8 columns a lane; head dim 512 in two pieces
// Roles     all alike; 5 CTAs an SM, or 3 where rows are in two pieces, share its registers (append_ctas_per_sm)
// Order     rows one after the other, the lane groups of a row side by side: neighbours in memory where these are one
//           tensor
// Overlap   where a row is and its angles are read once for all its heads of a lane group. The columns of the next
//           heads are asked for before those of these are looked at. The next kernel may start at once, and waits for
//           this one; this one waits for the kernel before it, which may have written any of its tensors
// Barriers  none but the warp's: q may be written in place, when all of its row has been read
// Shared    nothing
// Rotation  a lane reads the other columns of its pairs itself, which are in L1 or on their way there
#pragma once
#include "contract/append.h"
#include "contract/quantise.h"
#include "contract/shared_params.h"
#include "contract/types.h"
#include "device/append/row_location.cuh"
#include "device/attn/element.cuh"
#include "device/ptx/fp8.cuh"
#include "device/ptx/launch.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/types.cuh"

namespace froghopper::append {

constexpr int of_q = 0, of_v = 2, tensors = 3;  // indices of AppendParams::tensors

template <AppendVariant V>
struct Append {
  static_assert(why_invalid(V) == nullptr);
  using From = typename attn::Element<V.from>::type;
  using To = typename attn::Element<V.to>::type;

  static constexpr int threads = append_threads;
  static constexpr int smem_bytes = append_smem_bytes;
  static constexpr int lanes = append_lanes(V), pieces = append_pieces(V);
  static constexpr unsigned lane_groups_of_cta = append_lane_groups_of_cta(V);
  static constexpr bool quantises = is_8_bit(V.to);

  static __device__ void run(const AppendParams& params) {
    ptx::let_next_kernel_start();
    ptx::wait_for_earlier_kernels();
    const unsigned lane_groups_of_row = params.lane_groups;
    const unsigned lane_groups = params.rows * lane_groups_of_row;  // below 2^31
    for (unsigned first = blockIdx.x * lane_groups_of_cta; first < lane_groups;
         first += gridDim.x * lane_groups_of_cta) {
      const unsigned lane_group = first + threadIdx.x / lanes, row = lane_group / lane_groups_of_row;
      const RowLocation where = lane_group < lane_groups ? locate(params, row) : no_row;
      write_heads(params, where, (lane_group - row * lane_groups_of_row) * params.iterations);
    }
  }

 private:
  using Values = float[pieces][append_piece];

  struct Head {
    const char* from = nullptr;  // null: there is none, or it has no place
    char* to = nullptr;
    int tensor = 0, dim = 0;
    int column = 0;          // the first of this lane
    int lanes = 1;           // of this head
    float* scale = nullptr;  // given, or to be written

    __device__ bool in_pairs() const { return from && tensor != of_v; }  // of q or k
    __device__ int column_of(int piece) const { return column + piece * lanes * append_piece; }
  };
  struct Columns {
    uint4 mine[pieces], other[pieces];  // those that a lane has, and the others of their pairs
  };

  // All lanes of a warp come here together; their heads may be of different rows and tensors, or none.
  static __device__ void write_heads(const AppendParams& params, const RowLocation& where, int iteration) {
    const Angles angles = load_angles(params, where);
    Head head = find(params, where, iteration);
    Columns columns = load(params.rotary, head);
    for (int left = params.iterations; left > 0; --left) {
      const Head next = left > 1 ? find(params, where, ++iteration) : Head{};
      const Columns of_next = load(params.rotary, next);
      write(params, head, angles, columns);
      head = next;
      columns = of_next;
    }
  }

  static __device__ Head find(const AppendParams& params, const RowLocation& where, int iteration) {
    Head found;
    if (where.batch < 0) return found;
    int tensor = 0;
    while (iteration >= params.tensors[tensor].iterations) {
      iteration -= params.tensors[tensor].iterations;
      if (++tensor == tensors) return found;
    }
    const AppendTensor& its = params.tensors[tensor];
    found.tensor = tensor;
    found.dim = its.dim;
    found.lanes = 1 << its.lane_bits;
    const int lane = threadIdx.x % lanes;
    found.column = (lane & (found.lanes - 1)) * append_piece;
    const int head = (iteration * lanes + lane) >> its.lane_bits;
    const bool rotates = tensor != of_v && params.rotary.columns > 0;
    const bool lacks_place = tensor != of_q && where.cache_batch < 0;
    if (head >= its.heads || lacks_place || (rotates && where.position < 0)) return found;
    found.from = address(its.from, where.batch, where.row, head);
    if (tensor == of_q) {
      found.to = address(its.to, where.batch, where.row, head);
      return found;
    }
    found.to = address(its.to, where.cache_batch, where.cache_row, head);
    if constexpr (quantises)
      found.scale = params.own_scales ? its.written + where.cache_batch * its.written_batch +
                                            where.cache_row * its.written_row + head * its.written_head
                                      : const_cast<float*>(its.given.data) + head * its.given.head;
    return found;
  }

  static __device__ char* address(const StridedTensor& of, int batch, int row, int head) {
    return static_cast<char*>(of.data) + batch * of.batch + row * of.row + head * of.head;
  }

  // Eight values of a table, or four: as they lie in memory.
  struct Raw {
    uint4 low, high;
  };
  static __device__ Raw load(const void* table, int column, bool f32, bool four) {
    Raw raw = {};
    const char* const at = static_cast<const char*>(table) + column * (f32 ? 4 : 2);
    if (four && !f32) {
      const uint2 two = *reinterpret_cast<const uint2*>(at);
      raw.low.x = two.x;
      raw.low.y = two.y;
    } else {
      raw.low = *reinterpret_cast<const uint4*>(at);
      if (f32 && !four) raw.high = *reinterpret_cast<const uint4*>(at + 16);
    }
    return raw;
  }
  static __device__ void to_floats(const uint4& raw, float (&x)[append_piece]) {
    const ptx::u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = ptx::cvt_unpack2<From>(words[i]);
      x[2 * i] = two.x;
      x[2 * i + 1] = two.y;
    }
  }
  static __device__ void to_floats(const Raw& raw, bool f32, float (&x)[append_piece]) {
    if (!f32) return to_floats(raw.low, x);
    const ptx::u32 words[8] = {raw.low.x,  raw.low.y,  raw.low.z,  raw.low.w,
                               raw.high.x, raw.high.y, raw.high.z, raw.high.w};
#pragma unroll
    for (int i = 0; i < append_piece; ++i) x[i] = __uint_as_float(words[i]);
  }

  // The columns that are rotated with those from `column` on, which is the first of a piece.
  static __device__ int other_half(const RotaryParams& rotary, int column) {
    const int half = rotary.columns / 2;
    return column < half ? column + half : column - half;
  }

  // cos and sin for the columns that a lane has in q and k, whose rows are equally long.
  struct Angles {
    Raw cos[pieces], sin[pieces];
  };
  static __device__ Angles load_angles(const AppendParams& params, const RowLocation& where) {
    const RotaryParams& rotary = params.rotary;
    const int of_head = 1 << rotary.lane_bits, lane = threadIdx.x % lanes & (of_head - 1);
    Angles angles = {};
#pragma unroll
    for (int piece = 0; piece < pieces; ++piece) {
      const int column = (piece * of_head + lane) * append_piece;
      if (column >= rotary.columns || where.position < 0) continue;
      const int angle = rotary.interleaved ? column / 2 : min(column, other_half(rotary, column));
      angles.cos[piece] = load(static_cast<const char*>(rotary.cos) + where.position * rotary.cos_row, angle,
                               rotary.f32, rotary.interleaved);
      angles.sin[piece] = load(static_cast<const char*>(rotary.sin) + where.position * rotary.sin_row, angle,
                               rotary.f32, rotary.interleaved);
    }
    return angles;
  }

  static __device__ Columns load(const RotaryParams& rotary, const Head& head) {
    Columns columns;
#pragma unroll
    for (int piece = 0; piece < pieces; ++piece) {
      const int column = head.column_of(piece);
      columns.mine[piece] = columns.other[piece] = {0, 0, 0, 0};
      if (head.from && column < head.dim)
        columns.mine[piece] = *reinterpret_cast<const uint4*>(head.from + column * 2);
      if (head.in_pairs() && column < rotary.columns && !rotary.interleaved)
        columns.other[piece] = *reinterpret_cast<const uint4*>(head.from + other_half(rotary, column) * 2);
    }
    return columns;
  }

  static __device__ void write(const AppendParams& params, const Head& head, const Angles& angles,
                               const Columns& columns) {
    const RotaryParams& rotary = params.rotary;
    const bool in_pairs = head.in_pairs();
    Values x, y;
#pragma unroll
    for (int piece = 0; piece < pieces; ++piece) {
      to_floats(columns.mine[piece], x[piece]);
      to_floats(columns.other[piece], y[piece]);
    }
    if (params.norm) {
      const float sum = sum_of_squares(head.lanes, x);
      if (in_pairs) {
        const float factor = rsqrtf(sum / static_cast<float>(head.dim) + params.epsilon);
        const void* const weights = params.tensors[head.tensor].weights;
#pragma unroll
        for (int piece = 0; piece < pieces; ++piece) {
          const int column = head.column_of(piece);
          if (column < head.dim) times(factor, weights, column, params.norm_f32, x[piece]);
          if (column < rotary.columns && !rotary.interleaved)
            times(factor, weights, other_half(rotary, column), params.norm_f32, y[piece]);
        }
      }
    }
#pragma unroll
    for (int piece = 0; piece < pieces; ++piece)
      if (in_pairs && head.column_of(piece) < rotary.columns)
        rotate(rotary, head.column_of(piece), angles.cos[piece], angles.sin[piece], y[piece], x[piece]);
    const float scale = scale_of(params, head, x);
    __syncwarp();
    if (!head.from) return;
    const bool as_read = !in_pairs || (!params.norm && rotary.columns == 0);
#pragma unroll
    for (int piece = 0; piece < pieces; ++piece)
      if (const int column = head.column_of(piece); column < head.dim)
        store(head, column, as_read, columns.mine[piece], scale, x[piece]);
  }

  // The sum, or what else `combine` makes, of the lanes of one head.
  template <class Combine>
  static __device__ float over_lanes_of_head(int of_head, float value, Combine combine) {
#pragma unroll
    for (int step = lanes / 2; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(~0u, value, step);
      if (step < of_head) value = combine(value, other);
    }
    return value;
  }

  static __device__ float sum_of_squares(int lanes_of_head, const Values& x) {
    float sum = 0.f;
#pragma unroll
    for (int piece = 0; piece < pieces; ++piece)
#pragma unroll
      for (int i = 0; i < append_piece; ++i) sum += x[piece][i] * x[piece][i];
    return over_lanes_of_head(lanes_of_head, sum, [](float a, float b) { return a + b; });
  }

  // weights: null: all 1. They are in L1 after the first head.
  static __device__ void times(float factor, const void* weights, int column, bool f32, float (&x)[append_piece]) {
    float of_columns[append_piece];
    if (weights) to_floats(load(weights, column, f32, false), f32, of_columns);
#pragma unroll
    for (int i = 0; i < append_piece; ++i) x[i] *= weights ? factor * of_columns[i] : factor;
  }

  // y: the other columns of the pairs, where these are not next to each other.
  static __device__ void rotate(const RotaryParams& rotary, int column, const Raw& raw_cos, const Raw& raw_sin,
                                const float (&y)[append_piece], float (&x)[append_piece]) {
    float cos[append_piece], sin[append_piece];
    to_floats(raw_cos, rotary.f32, cos);
    to_floats(raw_sin, rotary.f32, sin);
    if (rotary.interleaved) {
#pragma unroll
      for (int i = 0; i < append_piece / 2; ++i) {
        const float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cos[i] - b * sin[i];
        x[2 * i + 1] = b * cos[i] + a * sin[i];
      }
      return;
    }
    const bool first_half = column < rotary.columns / 2;
#pragma unroll
    for (int i = 0; i < append_piece; ++i) x[i] = x[i] * cos[i] + y[i] * (first_half ? -sin[i] : sin[i]);
  }

  // What the row is divided by. Its own follows from its largest value.
  static __device__ float scale_of(const AppendParams& params, const Head& head, const Values& x) {
    if constexpr (!quantises) return 1.f;
    if (!params.own_scales) return head.scale ? *head.scale : 1.f;
    float largest = 0.f;
#pragma unroll
    for (int piece = 0; piece < pieces; ++piece)
#pragma unroll
      for (int i = 0; i < append_piece; ++i) largest = fmaxf(largest, fabsf(x[piece][i]));
    largest = over_lanes_of_head(head.lanes, largest, [](float a, float b) { return fmaxf(a, b); });
    const float scale = largest > 0.f ? fmaxf(largest / largest_of(V.to), smallest_scale) : 1.f;
    if (head.scale && head.column == 0) *head.scale = scale;
    return scale;
  }

  static __device__ void store(const Head& head, int column, bool as_read, const uint4& raw, float scale,
                               const float (&x)[append_piece]) {
    if constexpr (quantises) {
      if (head.tensor != of_q) {
        *reinterpret_cast<uint2*>(head.to + column) = {
            ptx::cvt_pack4<To>(x[0] / scale, x[1] / scale, x[2] / scale, x[3] / scale),
            ptx::cvt_pack4<To>(x[4] / scale, x[5] / scale, x[6] / scale, x[7] / scale)};
        return;
      }
    }
    *reinterpret_cast<uint4*>(head.to + column * 2) =
        as_read ? raw
                : uint4{ptx::cvt_pack2<From>(x[0], x[1]), ptx::cvt_pack2<From>(x[2], x[3]),
                        ptx::cvt_pack2<From>(x[4], x[5]), ptx::cvt_pack2<From>(x[6], x[7])};
  }
};

}  // namespace froghopper::append
