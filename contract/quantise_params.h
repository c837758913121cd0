// SPDX-License-Identifier: Apache-2.0
// contract: the run-time half of the agreement between host and the kernel that quantises.
#pragma once
#include "contract/shared_params.h"

namespace froghopper {

// What a launch does with a tile's largest value.
enum class Scaling : int {
  own,     // makes the tile's scale of it
  look,    // writes it to the workspace, and nothing else
  shared,  // ignores it: the scale is made of what an earlier launch wrote of all tiles of a sequence and head
};

// One of q, k and v. Its tiles of 128 rows are items [first_item, first_item + sequences x tiles x heads), the head
// running fastest. A sequence that is shorter than the longest has tiles without rows.
struct QuantiseTensor {
  StridedTensor from, to;                         // bytes; of packed ones batch is 0
  float* scale;                                   // what is stored is multiplied by
  long long scale_batch, scale_tile, scale_head;  // elements from one to the next
  float* largest;                                 // in the workspace, [sequence][tile][head]; not for Scaling::own
  const int *cu, *used;                           // as RaggedParams
  int first_item, tiles, heads;
  int rows;        // of a sequence; packed: of the longest
  int dim;         // head dim in memory
  int rotation;    // columns of a block; 0: not rotated
  float norm;      // 1/sqrt(rotation), or 1
  int first_mean;  // smooth variants: the number of the first one, [sequence][head]; -1: no mean is taken out
};

struct QuantiseParams {
  QuantiseTensor tensors[3];
  int count;  // of tensors
  int items;
  Scaling scaling;
  unsigned int seed;
  const float* means;  // smooth variants, in the workspace: what is subtracted from the rows, AverageParams::means
};

}  // namespace froghopper
