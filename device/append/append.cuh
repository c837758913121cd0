// SPDX-License-Identifier: Apache-2.0
// New rows of k and v -> their rows in a cache, normed, rotated and in 8 bits where that is asked for; and q beside
// them. It moves bytes: what is computed hides behind that.
//
// Work      a group of lanes has a row of one head, 8 columns a lane; one of more than 256 columns in two pieces
// Roles     all alike; 6 CTAs an SM, or 4 where rows are in two pieces, share its registers (append_ctas_per_sm)
// Order     the heads of q, k and v of a row, then the next row: neighbours in memory where these lie in one tensor
// Overlap   all that a row reads is asked for before it is looked at. The next kernel may start at once, and waits for
//           this one; this one waits for the kernel before it, which may have written any of its tensors
// Barriers  none but the warp's: q may be written in place, when all of its row has been read
// Shared    nothing
// Rotation  a lane reads the other columns of its pairs itself, which are in L1 or on their way there
#pragma once
#include "contract/append.h"
#include "contract/parts.h"
#include "contract/quantise.h"
#include "contract/types.h"
#include "device/append/row_location.cuh"
#include "device/attn/element.cuh"
#include "device/ptx/fp8.cuh"
#include "device/ptx/launch.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/types.cuh"

namespace froghopper::append {

constexpr int of_q = 0, of_v = 2;  // indices of AppendParams::tensors

template <AppendVariant V>
struct Append {
  static_assert(why_invalid(V) == nullptr);
  using From = typename attn::Element<V.from>::type;
  using To = typename attn::Element<V.to>::type;

  static constexpr int threads = append_threads;
  static constexpr int smem_bytes = append_smem_bytes;
  static constexpr int lanes = append_lanes(V), pieces = append_pieces(V);
  static constexpr unsigned rows_of_cta = append_rows_of_cta(V);
  static constexpr bool narrows = is_8_bit(V.to);

  static __device__ void run(const AppendParams& params) {
    ptx::let_next_kernel_start();
    ptx::wait_for_earlier_kernels();
    const unsigned rows = static_cast<unsigned>(params.rows) * params.heads;  // below 2^31
    for (unsigned first = blockIdx.x * rows_of_cta; first < rows; first += gridDim.x * rows_of_cta)
      write(params, find(params, first + threadIdx.x / lanes, rows));
  }

 private:
  using Numbers = float[pieces][append_piece];

  struct Row {
    const char* from;  // null: there is none, or it has no place
    char* to;
    int tensor, dim;
    int position;
    float* scale;  // given, or to be written
  };

  static __device__ Row find(const AppendParams& params, unsigned number, unsigned rows) {
    Row row = {};
    if (number >= rows) return row;
    const unsigned at = number / static_cast<unsigned>(params.heads);
    int head = number - at * params.heads;
    while (head >= params.tensors[row.tensor].heads) head -= params.tensors[row.tensor++].heads;
    const AppendTensor& its = params.tensors[row.tensor];
    row.dim = its.dim;
    const RowLocation where = locate(params, at);
    const bool rotates = row.tensor != of_v && params.rotary.columns > 0;
    const bool lacks_place = row.tensor != of_q && where.slot < 0;
    if (where.batch < 0 || lacks_place || (rotates && where.position < 0)) return row;
    row.position = where.position;
    row.from = address(its.from, where.batch, where.row, head);
    if (row.tensor == of_q) {
      row.to = address(its.to, where.batch, where.row, head);
      return row;
    }
    const int batch = static_cast<unsigned>(where.slot) / static_cast<unsigned>(params.cache_rows);
    const int in_batch = where.slot - batch * params.cache_rows;
    row.to = address(its.to, batch, in_batch, head);
    if constexpr (narrows)
      row.scale = params.own_scales
                      ? its.written + batch * its.written_batch + in_batch * its.written_row + head * its.written_head
                      : const_cast<float*>(its.given.data) + head * its.given.head;
    return row;
  }

  static __device__ char* address(const StridedTensor& of, int batch, int row, int head) {
    return static_cast<char*>(of.data) + batch * of.batch + row * of.row + head * of.head;
  }

  static __device__ int column_of(int piece) { return (piece * lanes + threadIdx.x % lanes) * append_piece; }

  // Eight numbers of a table, or four: as they lie in memory.
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

  // All lanes of a warp come here together; their rows may be of different tensors, or none.
  static __device__ void write(const AppendParams& params, const Row& row) {
    const RotaryParams& rotary = params.rotary;
    const bool in_pairs = row.from && row.tensor != of_v;  // q or k
    const void* const weights = params.norm && in_pairs ? params.tensors[row.tensor].weights : nullptr;
    uint4 mine[pieces], other[pieces];
    Raw cos[pieces], sin[pieces], my_weights[pieces], other_weights[pieces];
#pragma unroll
    for (int piece = 0; piece < pieces; ++piece) {
      const int column = column_of(piece);
      const bool exists = row.from && column < row.dim, rotates = in_pairs && column < rotary.columns;
      const bool halves = rotates && !rotary.interleaved;
      const int opposite = other_half(rotary, column);
      mine[piece] = other[piece] = {0, 0, 0, 0};
      cos[piece] = sin[piece] = my_weights[piece] = other_weights[piece] = {};
      if (exists) mine[piece] = *reinterpret_cast<const uint4*>(row.from + column * 2);
      if (halves) other[piece] = *reinterpret_cast<const uint4*>(row.from + opposite * 2);
      if (rotates) {
        const int angle = rotary.interleaved ? column / 2 : min(column, opposite);
        cos[piece] = load(static_cast<const char*>(rotary.cos) + row.position * rotary.cos_row, angle, rotary.f32,
                          rotary.interleaved);
        sin[piece] = load(static_cast<const char*>(rotary.sin) + row.position * rotary.sin_row, angle, rotary.f32,
                          rotary.interleaved);
      }
      if (weights && exists) my_weights[piece] = load(weights, column, params.norm_f32, false);
      if (weights && halves) other_weights[piece] = load(weights, opposite, params.norm_f32, false);
    }
    Numbers x, y;
#pragma unroll
    for (int piece = 0; piece < pieces; ++piece) {
      to_floats(mine[piece], x[piece]);
      to_floats(other[piece], y[piece]);
    }
    if (params.norm) {
      const float sum = sum_of_squares(x);
      if (in_pairs) {
        const float factor = rsqrtf(sum / static_cast<float>(row.dim) + params.epsilon);
        times(factor, weights != nullptr, my_weights, params.norm_f32, x);
        times(factor, weights != nullptr, other_weights, params.norm_f32, y);
      }
    }
#pragma unroll
    for (int piece = 0; piece < pieces; ++piece)
      if (in_pairs && column_of(piece) < rotary.columns)
        rotate(rotary, column_of(piece), cos[piece], sin[piece], y[piece], x[piece]);
    const float scale = scale_of(params, row, x);
    __syncwarp();
    if (!row.from) return;
    const bool as_read = !in_pairs || (!params.norm && rotary.columns == 0);
#pragma unroll
    for (int piece = 0; piece < pieces; ++piece)
      if (const int column = column_of(piece); column < row.dim)
        store(row, column, as_read, mine[piece], scale, x[piece]);
  }

  static __device__ float sum_of_squares(const Numbers& x) {
    float sum = 0.f;
#pragma unroll
    for (int piece = 0; piece < pieces; ++piece)
#pragma unroll
      for (int i = 0; i < append_piece; ++i) sum += x[piece][i] * x[piece][i];
#pragma unroll
    for (int step = lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    return sum;
  }

  static __device__ void times(float factor, bool weighted, const Raw (&weights)[pieces], bool f32, Numbers& x) {
#pragma unroll
    for (int piece = 0; piece < pieces; ++piece) {
      float of_columns[append_piece];
      to_floats(weights[piece], f32, of_columns);
#pragma unroll
      for (int i = 0; i < append_piece; ++i) x[piece][i] *= weighted ? factor * of_columns[i] : factor;
    }
  }

  // y: the other columns of the pairs, where these are not beside each other.
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

  // What the row is divided by. Its own follows from its largest number.
  static __device__ float scale_of(const AppendParams& params, const Row& row, const Numbers& x) {
    if constexpr (!narrows) return 1.f;
    if (!params.own_scales) return row.scale ? *row.scale : 1.f;
    float largest = 0.f;
#pragma unroll
    for (int piece = 0; piece < pieces; ++piece)
#pragma unroll
      for (int i = 0; i < append_piece; ++i) largest = fmaxf(largest, fabsf(x[piece][i]));
#pragma unroll
    for (int step = lanes / 2; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    const float scale = largest > 0.f ? fmaxf(largest / largest_of(V.to), smallest_scale) : 1.f;
    if (row.scale && threadIdx.x % lanes == 0) *row.scale = scale;
    return scale;
  }

  static __device__ void store(const Row& row, int column, bool as_read, const uint4& raw, float scale,
                               const float (&x)[append_piece]) {
    if constexpr (narrows) {
      if (row.tensor != of_q) {
        *reinterpret_cast<uint2*>(row.to + column) = {
            ptx::cvt_pack4<To>(x[0] / scale, x[1] / scale, x[2] / scale, x[3] / scale),
            ptx::cvt_pack4<To>(x[4] / scale, x[5] / scale, x[6] / scale, x[7] / scale)};
        return;
      }
    }
    *reinterpret_cast<uint4*>(row.to + column * 2) =
        as_read ? raw
                : uint4{ptx::cvt_pack2<From>(x[0], x[1]), ptx::cvt_pack2<From>(x[2], x[3]),
                        ptx::cvt_pack2<From>(x[4], x[5]), ptx::cvt_pack2<From>(x[6], x[7])};
  }
};

}  // namespace froghopper::append
