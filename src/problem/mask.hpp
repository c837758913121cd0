// SPDX-License-Identifier: Apache-2.0
// problem: which keys a query row attends to.
#pragma once
#include "contract/mask.h"
#include "src/problem/problem.hpp"

namespace froghopper {

// Of one sequence with rows_q queries and rows_kv keys, without chunks. The kernels use the same rule in 32 bits.
MaskRule<Mask::window, int64_t> mask_rule(const Problem&, int64_t rows_q, int64_t rows_kv);

// The kv tiles of which its rows [first, last] attend to any key, as MaskRule::tiles has them.
TileSequence<int64_t> tiles_attended(const Problem&, int64_t rows_q, int64_t rows_kv, int64_t first, int64_t last,
                                     int64_t tile_kv);

// The q tiles in which a row attends to any of its keys [first, last], as MaskRule::q_tiles has them.
Range<int64_t> q_tiles_that_attend(const Problem&, int64_t rows_q, int64_t rows_kv, int64_t first, int64_t last,
                                   int64_t tile_q);

// Query row i of it attends to the keys of [begin, end).
struct Visible {
  int64_t begin, end;  // begin >= end: none
};
Visible visible_keys(const Problem&, int64_t rows_q, int64_t rows_kv, int64_t row);

}  // namespace froghopper
