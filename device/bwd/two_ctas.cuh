// SPDX-License-Identifier: Apache-2.0
// device/bwd: the types that the kernels of two CTAs, by_keys.cuh and by_columns.cuh, have in common: tiles, register
// tiles and rings.
#pragma once
#include "contract/bwd_variant.h"
#include "contract/types.h"
#include "device/attn/element.cuh"
#include "device/bwd/policy.cuh"
#include "device/bwd/schedule.cuh"
#include "device/tile/accum.cuh"
#include "device/tile/ring.cuh"
#include "device/tile/shared_tile.cuh"

namespace froghopper::bwd {

// Tiles have the keys, and of every tensor the columns, that one CTA of the cluster has.
template <BwdVariant V>
struct TwoCtas {
  static constexpr int ctas = bwd_ctas(V), keys = bwd_keys_of_cta(V);
  static constexpr Dims columns = bwd_dims_of_cta(V);
  static constexpr int slices = bwd_grad_o_slices(V), slice_columns = columns.v / slices;  // of grad_o and grad_v

  using T = typename attn::Element<V.dtype>::type;
  using QTile = tile::SharedTile<V.tiles.q, columns.qk>;
  using GradOTile = tile::SharedTile<V.tiles.q, slice_columns>;
  using KTile = tile::SharedTile<keys, columns.qk>;
  using VTile = tile::SharedTile<keys, columns.v>;
  using DsTile = tile::SharedTile<V.tiles.q, keys>;  // dS, not transposed
  using Scores = tile::Accum<V.tiles.q>;             // S^T or dP^T, 64 keys x 64 queries
  using Operand = tile::OperandA<V.tiles.q>;         // P^T or dS^T rounded to T
  using GradK = tile::Accum<columns.qk>;
  using GradVSlice = tile::Accum<slice_columns>;

  static constexpr int threads = bwd_threads;
  static constexpr int warps = warpgroup / 32;  // of a consumer

  static constexpr bool sleeps = PolicyOf<V>::sleeps, has_proxy_fencer = PolicyOf<V>::has_proxy_fencer;
  using ItemRing = tile::Ring<2>;
  using ItemStage = tile::Cursor<2, sleeps>;
  using KvRing = tile::Ring<1>;
  using KvStage = tile::Cursor<1, sleeps>;
  using QRing = tile::Ring<V.tiles.stages>;
  using QStage = tile::Cursor<V.tiles.stages, sleeps>;
  using GradORing = tile::Ring<bwd_grad_o_stages(V)>;
  using GradOStage = tile::Cursor<bwd_grad_o_stages(V), sleeps>;
  using DsRing = tile::Ring<bwd_ds_stages>;
};

}  // namespace froghopper::bwd
