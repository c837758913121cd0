// SPDX-License-Identifier: Apache-2.0
// device/fwd: what else shared memory holds where 8-bit tiles wait as they are in memory: V, until it is transposed, or
// K and V, until they are dequantised. "stored" in the names of roles, rings and tiles says that; it does not mean
// output.
#pragma once
#include "contract/fields.h"
#include "contract/fwd_smem.h"
#include "contract/fwd_variant.h"
#include "contract/types.h"
#include "device/attn/tile_scales.cuh"
#include "device/fwd/token_scales.cuh"
#include "device/tile/ring.cuh"
#include "device/tile/shared_tile.cuh"

namespace froghopper::fwd {

template <FwdVariant V>
union StoredTiles {
  tile::SharedTile<V.tiles.kv, V.dims.qk, size_of(V.kv.dtype)> k;
  tile::SharedTile<V.tiles.kv, V.dims.v, size_of(V.kv.dtype)> v;
};

template <FwdVariant V>
struct StoredSmem {
  Pick<fwd_dequantises_on_load(V), StoredTiles<V>, decltype(StoredTiles<V>::v)> stored[fwd_stored_stages(V)];
  attn::TileScales scales[V.tiles.stages];  // of the tiles in k
  tile::Ring<fwd_stored_stages(V)> stored_ring;
  attn::TileScales stored_scales[fwd_stored_stages(V)];  // dequantising variants: of the tiles of K in stored
};

// The same where rows of K and V have scales.
template <FwdVariant V>
struct TokenScalesSmem : StoredSmem<V> {
  alignas(1024) TokenFactors<V> factors[V.tiles.stages];  // of the tiles in k
  ScalesOfRows<V> row_scales[fwd_token_scales_ahead(V)];  // on their way
};

}  // namespace froghopper::fwd
