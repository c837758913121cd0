// SPDX-License-Identifier: Apache-2.0
// contract: the agreement between planner, host and the kernel that finds the means of k and v.
#pragma once
#include "contract/fields.h"
#include "contract/shared_params.h"
#include "contract/types.h"

namespace froghopper {

struct AverageVariant {
  Dtype from;  // of k and v
  int dim;     // head dim, rounded up: the threads are divided by it

  bool operator==(const AverageVariant&) const = default;
};

template <class Variant, class Visit>
constexpr void visit_fields(Variant& v, Visit&& visit) requires same<const Variant, const AverageVariant> {
  visit("", v.from);
  visit("d", v.dim);
}

constexpr int average_threads = 256;
// Rows of a head that one CTA sums: few enough that short sequences give every SM some, and 128 KiB at head dim 128.
constexpr int average_rows = 512;
// A thread loads 8 neighbouring columns of rows at equal distances.
constexpr int average_rows_apart(AverageVariant v) { return average_threads / (v.dim / 8); }
constexpr int average_smem_bytes(AverageVariant v) {  // the threads' sums
  return average_rows_apart(v) * v.dim * static_cast<int>(sizeof(double));
}

constexpr const char* why_invalid(AverageVariant v) {
  if (v.from != Dtype::f16 && v.from != Dtype::bf16) return "k and v are f16 or bf16 here";
  if (v.dim != 64 && v.dim != 128 && v.dim != 192 && v.dim != 256) return "the head dim is 64, 128, 192 or 256";
  return nullptr;
}

// What a launch does: the sums of chunks of average_rows rows; or what these give together.
enum class Averaging : int { sum, divide };

// k or v. Sequence s and head h have mean number first_mean + s heads + h.
struct AveragedTensor {
  StridedTensor from;  // bytes; of packed ones batch is 0
  float* mean;         // written: one value for each column
  long long mean_batch, mean_head;
  const int *cu, *used;  // as RaggedParams
  int rows;              // of a sequence; packed: of the longest
  int dim;               // head dim in memory
  int rotation;          // columns of a block; 0: not rotated
  int first_mean;
};

struct AverageParams {
  AveragedTensor tensors[2];
  int count;  // of tensors
  int sequences, heads;
  int chunks;    // of the longest sequence
  double* sums;  // in the workspace: [mean][chunk][column]
  float* means;  // in the workspace: [mean][column], as quantise.cuh has its rows: not divided by sqrt(rotation)
  Averaging what;
  unsigned int seed;
};

}  // namespace froghopper
