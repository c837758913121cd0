// SPDX-License-Identifier: Apache-2.0
// runtime/params: what the arguments of several kinds of kernels are made of.
#pragma once
#include "contract/shared_params.h"
#include "contract/softcap.h"
#include "src/problem/tensors.hpp"
#include "src/runtime/tensor_map.hpp"

namespace froghopper::runtime {

// Tells what this run writes into the workspace from what was there before. It starts at random, so that two
// processes, or two copies of the library, that use one workspace in turn do not count alike. Never 0.
unsigned int next_tag();

MaskParams mask_of(const Problem&);
int chunk_of(const Problem&);  // keys of a chunk; 0: none

// s' = scale s, or cap tanh(scale s / cap) with tanh(x) = 1 - 2 / (e^(2x) + 1); both enter 2^x instead of e^x.
struct ScaleParams {
  float scale_log2, cap_scale;
  SoftcapParams softcap;
};
ScaleParams scale_of(const Problem&);

RaggedParams lengths_of(const Problem&, const Views&);  // without the granules of maps

StridedTensor strided(const View&);
RowScalars row_scalars(const View&);
ScaleValues scale_values(const View&);

// Of a map: the rows of a box and how many heads they are of; ahead: MapShape's.
struct Boxes {
  int rows, heads = 1;
  bool ahead = true;
};
// Encodes the map of a tensor. stand_in: the address of empty tensors, never read.
Result<MapGranules> set_map(const Driver&, bool ragged, const Named&, Boxes, const void* stand_in, TmaMap&);

}  // namespace froghopper::runtime
