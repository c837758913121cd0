// SPDX-License-Identifier: Apache-2.0
// device/fwd: the order in which the Consumers of a CTA issue the MMAs of a kv tile: the ping-pong scheduling of
// FlashAttention-3, for any number of Consumers in round-robin order, by mbarriers. A Consumer passes the turn when its
// S = Q K^T has completed. Between two items, where the last P V of one and the first S of the next are in flight
// together, it passes the turn when that P V has completed. While it computes the softmax, the next Consumer issues its
// MMAs. Without an order all of them get S at the same time, and then all of them want the exponential unit
// (docs/10-fp8.md).
//
// Every Consumer takes its turn once for every kv tile of an item, also for a tile that its M tile skips, so they
// differ by one tile at most. A Consumer that has the turn for tile t may still wait for K of t and V of t - 1. By then
// every other one has had its turn for t - 1, and has ended iteration t - 2 before that. So all have released K of
// t - 2 and V of t - 3, and in rings of two stages there is room for both. skip() waits for the turn and passes it
// before it waits, so that a Consumer that skips a tile holds no other up.
#pragma once
#include "contract/tile_sequence.h"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/types.cuh"
#include "device/tile/ring.cuh"

namespace froghopper::fwd {

template <int Consumers>
struct MmaOrder {
  ptx::u64* all;  // a barrier for each Consumer: one arrival per warp of the one before
  int consumer;   // number of this one
  ptx::u32 phase = 0;

  static __device__ void init(ptx::u64* all) {
    for (int i = 0; i < Consumers; ++i) ptx::mbarrier_init(&all[i], 4);
  }
  __device__ MmaOrder(ptx::u64* all, int consumer) : all(all), consumer(consumer) {}
  // Once, before the first wait_turn(): the last Consumer lets the first one begin.
  __device__ void begin() const {
    if (consumer == Consumers - 1) pass_turn();
  }
  __device__ __forceinline__ void wait_turn() {
    ptx::mbarrier_wait(&all[consumer], phase);
    phase ^= 1;
  }
  __device__ __forceinline__ void pass_turn() const {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&all[consumer == Consumers - 1 ? 0 : consumer + 1]);
  }
};

// Where all Consumers may issue at any time.
struct NoMmaOrder {
  static __device__ void init(ptx::u64*) {}
  __device__ NoMmaOrder(ptx::u64* = nullptr, int = 0) {}
  __device__ void begin() const {}
  __device__ void wait_turn() const {}
  __device__ void pass_turn() const {}
};

// Waits for and releases the stages of tiles that an M tile does not attend to.
template <int Stages, class MmaOrderIfAny = NoMmaOrder>
__device__ void skip(tile::Cursor<Stages>& at, tile::Ring<Stages>& ring, TileSequence<int> tiles,
                     MmaOrderIfAny&& mma_order = {}) {
#pragma unroll 1
  for (int tile = tiles.begin; tile < tiles.end; ++tile) {  // only their number counts
    mma_order.wait_turn();
    mma_order.pass_turn();
    at.wait(ring);
    at.release_and_advance(ring);
  }
}

}  // namespace froghopper::fwd
