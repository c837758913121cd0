// SPDX-License-Identifier: Apache-2.0
// device/tile: a ring of stages between producers and consumers. Waiting and releasing only; no data.
#pragma once
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/types.cuh"

namespace froghopper::tile {

template <int Stages>
struct Ring {
  // The kernel's head says under Barriers how many arrive at each, and who. As a rule one producer and the bytes of its
  // loads complete `full`, and one arrival of each consumer warp completes `empty`.
  ptx::u64 full[Stages];
  ptx::u64 empty[Stages];

  __device__ void init(int arrivals_on_full, int arrivals_on_empty) {
    for (int s = 0; s < Stages; ++s) {
      ptx::mbarrier_init(&full[s], arrivals_on_full);
      ptx::mbarrier_init(&empty[s], arrivals_on_empty);
    }
  }

  // There are two ways to walk a ring. A Cursor keeps stage and phase, as PipelineState of CUTLASS does: for a ring
  // that advances by itself. The functions here take a running count n instead: it lies in stage n % Stages, and its
  // phase is n / Stages & 1. So rings that advance together need one count.
  static __device__ int stage(ptx::u32 n) { return n % Stages; }
  static __device__ ptx::u32 phase(ptx::u32 n) { return n / Stages & 1; }
  __device__ void wait(ptx::u32 n) { ptx::mbarrier_wait(&full[stage(n)], phase(n)); }
  __device__ void wait_room(ptx::u32 n) { ptx::mbarrier_wait(&empty[stage(n)], phase(n) ^ 1); }
  // Until all have released n; a producer waits for that before it fills the same stage again, with n + Stages.
  __device__ void wait_released(ptx::u32 n) { wait_room(n + Stages); }
  __device__ void arrive_full(ptx::u32 n) { ptx::mbarrier_arrive(&full[stage(n)]); }
  __device__ void release(ptx::u32 n) {  // one thread a warp
    if (threadIdx.x % 32 == 0) arrive_empty(n);
  }
  __device__ void arrive_empty(ptx::u32 n) { ptx::mbarrier_arrive(&empty[stage(n)]); }  // one thread
};

// One side's position in a ring. Producers wait on `empty` with the inverted phase, so their first Stages waits return
// at once (as make_producer_start_state of CUTLASS has it). Sleeps: waits take mbarrier_wait_asleep().
template <int Stages, bool Sleeps = false>
struct Cursor {
  int stage = 0;
  ptx::u32 phase = 0;

  __device__ void advance() {
    if (++stage == Stages) {
      stage = 0;
      phase ^= 1;
    }
  }

  // In the words of CUTLASS's PipelineTmaAsync, begin_fill() is producer_acquire: wait_room() is its wait, and
  // expect_bytes() its arrive_and_expect_tx. wait() is consumer_wait, and release() consumer_release.

  // Producer, one thread. With one producer and 0 bytes the stage is full at once.
  __device__ void wait_room(Ring<Stages>& r) { wait_in_producer_warp(&r.empty[stage], phase ^ 1); }
  __device__ ptx::u64* expect_bytes(Ring<Stages>& r, ptx::u32 bytes) const {
    ptx::mbarrier_arrive_expect_tx(&r.full[stage], bytes);
    return &r.full[stage];
  }
  // The same without bytes to come: of producers that have stored what is there.
  __device__ void arrive_full(Ring<Stages>& r) const { ptx::mbarrier_arrive(&r.full[stage]); }
  // Waits for room and announces the bytes; the loads of the caller fill the stage.
  __device__ ptx::u64* begin_fill(Ring<Stages>& r, ptx::u32 bytes) {
    wait_room(r);
    return expect_bytes(r, bytes);
  }

  // How threads of producer roles wait, which may sleep (Sleeps): at any barrier, or for what others have put into a
  // ring that these threads read, as loaders wait for an item. Consumers wait by wait().
  __device__ void wait_full_in_producer_warp(Ring<Stages>& r) { wait_in_producer_warp(&r.full[stage], phase); }
  static __device__ void wait_in_producer_warp(ptx::u64* bar, ptx::u32 phase) {
    if constexpr (Sleeps)
      ptx::mbarrier_wait_asleep(bar, phase);
    else
      ptx::mbarrier_wait(bar, phase);
  }

  // Consumer: every thread waits, one thread a warp releases, and by then all lanes of the warp must have returned from
  // their wait: a lane that still polls could miss the phase, and wait for ever. Mostly a wgmma, a shuffle or
  // __syncwarp() lies between. Where nothing does, the hardware sees to it: a converged warp polls once for all its
  // lanes and gets one answer, so it does not diverge in a wait. The pipelines of CUTLASS rely on that too.
  // release() leaves the cursor where it is.
  __device__ void wait(Ring<Stages>& r) { ptx::mbarrier_wait(&r.full[stage], phase); }
  __device__ void release(Ring<Stages>& r) const {
    if (threadIdx.x % 32 == 0) arrive_empty(r);
  }
  __device__ void arrive_empty(Ring<Stages>& r) const { ptx::mbarrier_arrive(&r.empty[stage]); }  // one thread
  __device__ void release_and_advance(Ring<Stages>& r) {
    release(r);
    advance();
  }
};

}  // namespace froghopper::tile
