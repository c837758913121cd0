// SPDX-License-Identifier: Apache-2.0
// device/fwd: the order in which persistent CTAs take work, and how they agree on who takes what.
//
// Fixed lengths. Works are handed out by sections of (sequence, head) pairs whose K and V fit a share of L2; in a
// section the pair runs fastest and, where a mask makes tiles unequal, the heaviest q tiles come first. The lightest q
// tiles of every pair (`tail`) are held back and handed out last, over all pairs together, so that no section ends
// with few heavy tiles.
// Ragged. Sequence after sequence, in each the same sections of heads and the heaviest q tiles first, without a tail.
// A warp reads 32 lengths at once and scans on from where it stopped: tickets of one CTA only grow.
#pragma once
#include "contract/fwd_params.h"
#include "contract/fwd_variant.h"
#include "device/fwd/mask.cuh"

namespace froghopper::fwd {

// kv tiles [kv_begin, kv_end), walked from the last to the first; none: there is no work left. The lengths and places
// are those of the sequence, used in ragged variants only.
struct alignas(16) Work {
  int q_tile, head, sequence, kv_begin, kv_end;
  int q_first, seq_q;    // first row in the packed q (0: not packed), rows that count
  int kv_first, seq_kv;  // the same of k and v

  __device__ bool none() const { return kv_begin == kv_end; }
};

// The number of a launch's next work, counted from 0. The counter is the caller's memory and may hold anything: its
// upper half says which launch it counts for. Whoever finds a stranger's tag puts this launch's tag and zero in its
// place. In two steps, so that other work hides the way to memory and back: draw, then read what was drawn.
struct Tickets {
  unsigned long long* counter;
  unsigned int tag;

  __device__ unsigned long long draw() const { return atomicAdd(counter, 1ull); }
  __device__ int read(unsigned long long drawn) const {
    while (tag_of(drawn) != tag) {
      unsigned long long seen = drawn + 1;
      while (tag_of(seen) != tag) {
        const unsigned long long before = atomicCAS(counter, seen, static_cast<unsigned long long>(tag) << 32);
        if (before == seen) break;
        seen = before;
      }
      drawn = draw();
    }
    return static_cast<int>(drawn);
  }
  __device__ void forget() const { *counter = 0; }

 private:
  static __device__ unsigned int tag_of(unsigned long long word) { return static_cast<unsigned int>(word >> 32); }
};

// One sequence's rows, read from the arrays of a ragged problem.
struct Lengths {
  int q_first, seq_q, kv_first, seq_kv;

  __device__ Lengths(const FwdParams& p, int sequence) {
    q_first = p.cu_q ? p.cu_q[sequence] : 0;
    kv_first = p.cu_kv ? p.cu_kv[sequence] : 0;
    seq_q = p.cu_q ? p.cu_q[sequence + 1] - q_first : p.seq_q;
    seq_kv = p.cu_kv ? p.cu_kv[sequence + 1] - kv_first : p.seq_kv;
    if (p.used_q) seq_q = min(seq_q, p.used_q[sequence]);
    if (p.used_kv) seq_kv = min(seq_kv, p.used_kv[sequence]);
    seq_q = max(0, min(seq_q, p.seq_q));  // p.seq_q bounds every sequence: docs/2-flow.md
    seq_kv = max(0, seq_kv);
  }
};

template <FwdVariant V>
struct FixedSchedule {
  const FwdParams& params;

  __device__ Work find(int number) {
    if (number >= params.works) return {};
    const int heavy = params.q_tiles - params.tail;  // q tiles of a pair that are handed out by sections
    const int by_section = params.pairs * heavy;
    const bool last = number >= by_section;
    const int first_pair = last ? 0 : number / (params.section * heavy) * params.section;
    const int pairs = last ? params.pairs : min(params.section, params.pairs - first_pair);
    const int place = last ? number - by_section : number - first_pair * heavy;
    const int pair = first_pair + place % pairs;
    Work work = {};
    work.q_tile = place / pairs + (last ? heavy : 0);
    if (V.mask != Mask::none) work.q_tile = params.q_tiles - 1 - work.q_tile;
    work.head = pair % params.heads_q;
    work.sequence = pair / params.heads_q;
    const Sight<V> sight(params, params.seq_q, params.seq_kv);
    const int first_row = work.q_tile * V.tile_q;
    const auto tiles = sight.tiles(first_row, min(first_row + V.tile_q, params.seq_q) - 1);
    work.kv_begin = tiles.begin;
    work.kv_end = tiles.end;
    return work;
  }
  __device__ int works() const { return params.works; }
};

template <FwdVariant V>
struct RaggedSchedule {
  const FwdParams& params;
  int sequences;         // how many there are
  int group = 0;         // the 32 sequences this warp looks at: [group, group + 32)
  int tiles_before = 0;  // q tiles of all sequences before them

  // All 32 lanes together; the same answer in each.
  __device__ Work find(int number) {
    const int lane = threadIdx.x % 32;
    for (; group < sequences; group += 32) {
      const int mine = group + lane;
      const int tiles = mine < sequences ? (Lengths(params, mine).seq_q + V.tile_q - 1) / V.tile_q : 0;
      int up_to_mine = tiles;  // inclusive prefix sum
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int below = __shfl_up_sync(~0u, up_to_mine, step);
        if (lane >= step) up_to_mine += below;
      }
      const int up_to_last = __shfl_sync(~0u, up_to_mine, 31);
      if (number < (tiles_before + up_to_last) * params.heads_q) {
        const unsigned holders = __ballot_sync(~0u, number < (tiles_before + up_to_mine) * params.heads_q);
        const int holder = __ffs(holders) - 1;
        const int before = tiles_before + __shfl_sync(~0u, up_to_mine - tiles, holder);
        return describe(group + holder, __shfl_sync(~0u, tiles, holder), number - before * params.heads_q);
      }
      tiles_before += up_to_last;
    }
    return {};
  }
  // Valid once find() has found no work.
  __device__ int works() const { return tiles_before * params.heads_q; }

 private:
  __device__ Work describe(int sequence, int q_tiles, int place) const {
    const int first_head = place / (params.section * q_tiles) * params.section;
    const int heads = min(params.section, params.heads_q - first_head);
    place -= first_head * q_tiles;
    const Lengths lengths(params, sequence);
    Work work = {};
    work.q_tile = q_tiles - 1 - place / heads;
    work.head = first_head + place % heads;
    work.sequence = sequence;
    work.q_first = lengths.q_first;
    work.seq_q = lengths.seq_q;
    work.kv_first = lengths.kv_first;
    work.seq_kv = lengths.seq_kv;
    const Sight<V> sight(params, work.seq_q, work.seq_kv);
    const int first_row = work.q_tile * V.tile_q;
    const auto tiles = sight.tiles(first_row, min(first_row + V.tile_q, work.seq_q) - 1);
    work.kv_begin = tiles.begin;
    work.kv_end = tiles.end;
    return work;
  }
};

}  // namespace froghopper::fwd
