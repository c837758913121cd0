// SPDX-License-Identifier: Apache-2.0
// runtime: a View as TMA sees it. First as plain numbers (MapShape), which need no driver and can be tested, then
// encoded.
#pragma once
#include <cstdint>

#include "contract/shared_params.h"
#include "contract/types.h"
#include "src/problem/tensors.hpp"
#include "src/runtime/driver.hpp"

namespace froghopper::runtime {

// Innermost dimension first. Strides are bytes, and there is none for the innermost one.
struct MapShape {
  const void* address = nullptr;
  uint32_t rank = 0;
  uint64_t extents[5] = {};
  uint64_t strides[4] = {};
  uint32_t box[5] = {};
  MapGranules granules{};  // ragged only
  bool swizzled = true;    // into panels, as wgmma reads them
  bool ahead = true;       // L2 reads 256 bytes for each 128 that are asked for
};

// A tensor by the name the user knows it by.
struct Named {
  const char* name;
  const View& view;
};

// What the hardware asks of q, k, v (16-byte aligned rows, strides below 2^40 bytes) and of o (16-byte stores).
Result<void> check_layout(const Named&);

// rows: of the box, that is, of the kernel's tile. An empty tensor gets the address of `stand_in`, which is never read.
Result<MapShape> fixed_shape(const Named&, int rows, const void* stand_in);

// The map of a ragged tensor, in which the rows after the end of each sequence read as zeros.
int64_t granule_bytes(const View&);  // of a granule of such a map
Result<MapShape> ragged_shape(const Named&, int rows, const void* stand_in);

// Pages of which less than 8 rows follow each other are copied without the map, but by the same granules: PageParams
// has the bytes of one in an int.
Result<void> check_page_rows(const Named&);
// Entries of a block table, which kernels find with 32 bits.
Result<void> check_table(const View& block_table);

// Rows of so many floats one after the other; a box is one of them.
MapShape dense_rows(const void* rows, int64_t count, int floats);

Result<void> encode(const Driver&, const Named&, const MapShape&, TmaMap&);

}  // namespace froghopper::runtime
