// SPDX-License-Identifier: Apache-2.0
// 16-bit k and v -> the mean of each sequence's rows, for each head and column; that of k rotated, as its rows are.
//
// Work      sum_rows: a CTA has a chunk, average_rows rows of one head; divide, a launch later: a sequence and head
// Roles     sum_rows: a thread has 8 columns of every so many-th row, then one column of all. divide: one column
// Order     the head runs fastest, so that CTAs read neighbouring memory at a time. 8 rows are summed in fp32, such
//           sums in fp64; in the same order in every run
// Overlap   8 loads a thread are on their way at once, in 32 registers, and all CTAs of an SM; no bound is set on
//           registers
// Barriers  between the threads' sums and the columns'; between two steps of the rotation
// Shared    sums of threads; or the mean that is rotated
#pragma once
#include "contract/average.h"
#include "contract/quantise.h"
#include "contract/shared_params.h"
#include "contract/types.h"
#include "device/attn/element.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/types.cuh"
#include "device/quantise/tiles.cuh"

namespace froghopper::quantise {

template <AverageVariant V>
struct Average {
  static_assert(why_invalid(V) == nullptr);
  using From = typename attn::Element<V.from>::type;

  static constexpr int threads = average_threads;
  static constexpr int smem_bytes = average_smem_bytes(V);
  static constexpr int across = V.dim / 8, apart = average_rows_apart(V), together = 8;

  static __device__ void run(const AverageParams& params) {
    extern __shared__ __align__(16) char smem_memory[];
    double* const sums = reinterpret_cast<double*>(smem_memory);
    if (params.what == Averaging::sum)
      sum_rows(params, sums);
    else
      divide(params, sums);
  }

 private:
  struct WorkItem {
    const AveragedTensor* tensor;
    int sequence, chunk, head;
    long long mean;  // its number
  };
  static __device__ WorkItem find(const AverageParams& params, int chunks) {
    const unsigned row = blockIdx.x / static_cast<unsigned>(params.heads), pair = row / static_cast<unsigned>(chunks);
    const unsigned tensor = pair / static_cast<unsigned>(params.sequences);
    const int head = blockIdx.x - row * params.heads, sequence = pair - tensor * params.sequences;
    if (tensor >= params.count) return {};  // the plan counts both, and one may be left out
    const AveragedTensor* const averaged = params.tensors + tensor;
    const int chunk = row - pair * chunks;
    return {averaged, sequence, chunk, head,
            averaged->first_mean + static_cast<long long>(sequence) * params.heads + head};
  }

  static __device__ void sum_rows(const AverageParams& params, double* sums) {
    const WorkItem item = find(params, params.chunks);
    if (!item.tensor) return;
    const RowsOfSequence all = rows_of(*item.tensor, item.sequence);
    const int first = item.chunk * average_rows, rows = min(all.count - first, average_rows);
    if (rows <= 0) return;
    const int column = threadIdx.x % across * 8, down = threadIdx.x / across;
    if (down < apart) {
      double mine[8] = {};
      if (column < item.tensor->dim) {
        const StridedTensor& from = item.tensor->from;
        const int batch = item.tensor->cu ? 0 : item.sequence;
        const char* const at = static_cast<const char*>(from.data) + batch * from.batch + item.head * from.head +
                               (all.first + first) * from.row + column * size_of(V.from);
        for (int row = down; row < rows; row += together * apart) add_rows(at, from.row, row, rows, mine);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[down * V.dim + column + i] = mine[i];
    }
    __syncthreads();
    if (threadIdx.x >= V.dim) return;
    double sum = 0;
    for (int i = 0; i < apart; ++i) sum += sums[i * V.dim + threadIdx.x];
    params.sums[(item.mean * params.chunks + item.chunk) * V.dim + threadIdx.x] = sum;
  }

  static __device__ void add_rows(const char* at, long long to_next_row, int row, int rows, double (&sums)[8]) {
    uint4 x[together];
#pragma unroll
    for (int i = 0; i < together; ++i) {
      const int this_row = row + i * apart;
      x[i] = {0, 0, 0, 0};
      if (this_row < rows) x[i] = *reinterpret_cast<const uint4*>(at + this_row * to_next_row);
    }
    float of_these[8] = {};
#pragma unroll
    for (int i = 0; i < together; ++i) {
      const ptx::u32 words[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 two = ptx::cvt_unpack2<From>(words[j]);
        of_these[2 * j] += two.x;
        of_these[2 * j + 1] += two.y;
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i] += of_these[i];
  }

  static __device__ void divide(const AverageParams& params, double* mean) {
    const WorkItem item = find(params, 1);
    if (!item.tensor) return;
    const AveragedTensor& tensor = *item.tensor;
    const int rows = rows_of(tensor, item.sequence).count, column = threadIdx.x;
    const int chunks = (rows + average_rows - 1) / average_rows;
    double sum = 0;
    if (column < V.dim)
      for (int i = 0; i < chunks; ++i) sum += params.sums[(item.mean * params.chunks + i) * V.dim + column];
    double number = rows > 0 ? sum / rows : 0;
    if (tensor.rotation) number = rotated(number, tensor.rotation, params.seed, mean);
    if (column >= V.dim) return;
    params.means[item.mean * V.dim + column] = static_cast<float>(number);
    if (column >= tensor.dim) return;
    const double norm = tensor.rotation ? rsqrt(static_cast<double>(tensor.rotation)) : 1;
    tensor.mean[item.sequence * tensor.mean_batch + item.head * tensor.mean_head + column] =
        static_cast<float>(number * norm);
  }

  // A thread's column of a row that all threads hold together, not divided by sqrt(block).
  static __device__ double rotated(double number, int block, unsigned int seed, double* row) {
    const int column = threadIdx.x;
    if (rotation_flips(seed, column)) number = -number;
    for (int bit = 1; bit < block; bit *= 2) {
      if (column < V.dim) row[column] = number;
      __syncthreads();
      if (column < V.dim) number = column & bit ? row[column ^ bit] - number : number + row[column ^ bit];
      __syncthreads();
    }
    return number;
  }
};

}  // namespace froghopper::quantise
