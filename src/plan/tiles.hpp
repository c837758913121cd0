// SPDX-License-Identifier: Apache-2.0
// plan: tuned tile shapes. They change speed, registers and shared memory; never results.
#pragma once
#include <optional>
#include <string>

#include "contract/fwd_variant.h"

namespace froghopper {

struct Tiles {
  int q, kv, stages;
  bool operator==(const Tiles&) const = default;
};

// The head dims a kernel exists for that take (dim_qk, dim_v) columns: the next larger tile, filled up with zeros.
struct TileDims {
  int qk, v;
};
std::optional<TileDims> tile_dims(int64_t dim_qk, int64_t dim_v);

// keys: the most that one query row sees.
Tiles tuned_tiles(TileDims dims, Mask mask, int64_t keys);

std::optional<Tiles> parse_tiles(const std::string& text);  // "128x176s2"

}  // namespace froghopper
