// SPDX-License-Identifier: Apache-2.0
// device/fwd: the Consumers of a CTA issue the products of a kv tile one after the other, round and round. A Consumer
// gives the turn on when its S is there: while it takes weights of it, the next one has the tensor core. Without turns
// all of them get S at the same time, and then all of them want the exponential unit (docs/10-fp8.md).
//
// Every Consumer takes a turn for every kv tile of an item, also for one that its strip skips, so they differ by one
// turn at most. Whose turn it is waits for K and V of its tile besides, or has waited for K, and by then all Consumers
// have given back K of two tiles before and V of three before: in rings of two stages there is room for both.
#pragma once
#include "device/tile/ring.cuh"

namespace froghopper::fwd {

template <int Consumers>
struct TurnTaking {
  ptx::u64* all;  // a barrier for each Consumer: one arrival per warp of the one before
  int number;     // of this Consumer
  ptx::u32 phase = 0;

  static __device__ void init(ptx::u64* all) {
    for (int i = 0; i < Consumers; ++i) ptx::mbarrier_init(&all[i], 4);
  }
  __device__ TurnTaking(ptx::u64* all, int number) : all(all), number(number) {
    if (number == Consumers - 1) pass();  // the first turn is the first one's
  }
  __device__ __forceinline__ void take() {
    ptx::mbarrier_wait(&all[number], phase);
    phase ^= 1;
  }
  __device__ __forceinline__ void pass() const {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&all[number == Consumers - 1 ? 0 : number + 1]);
  }
};

// Everybody at once.
struct NoTurns {
  static __device__ void init(ptx::u64*) {}
  __device__ NoTurns(ptx::u64* = nullptr, int = 0) {}
  __device__ void take() const {}
  __device__ void pass() const {}
};

// kv tiles that a strip does not see.
template <int Stages, class Turns = NoTurns>
__device__ void skip(tile::Cursor<Stages>& at, tile::Ring<Stages>& ring, Range<int> tiles, Turns&& turns = {}) {
#pragma unroll 1
  for (int i = tiles.begin; i < tiles.end; ++i) {
    turns.take();
    turns.pass();
    at.wait(ring);
    at.release(ring);
  }
}

}  // namespace froghopper::fwd
