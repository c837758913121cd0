// SPDX-License-Identifier: Apache-2.0
// cpu: a piece of work for one thread, and the memory it needs. Known to the side of the threads (forward.cpp) and to
// the vector side (kernel.cpp and its -inl.hpp files), which is compiled once for every kind of vector unit.
//
// A lane is one query row of one head. Lanes that read the same keys lie side by side in vectors: the scores of 64
// query rows with one key are 4 vectors of 16 floats. So nothing is transposed but q and o, every step of the softmax
// is lane by lane, and the query heads of a key head fill vectors together, so that decoding (one query row) is no
// special case.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/base/interrupt.hpp"
#include "src/cpu/cpu.hpp"

namespace froghopper::cpu {

struct Lane {
  const void* q;       // dim_qk numbers
  void* o;             // dim_v numbers
  float* lse;          // null: not wanted
  float* max_logit;    // the largest score so far of its sequence and head; null: not wanted
  int64_t begin, end;  // keys that it sees; begin >= end: none
  float scale_q;       // of 8-bit q, else 1
  float slope;         // of alibi, else 0
  int64_t level;       // the key that alibi counts from
  float sink;          // the logit of its head, natural units; -inf: none, or a row of no sequence. Work::merges: lse
                       // so far
};

// What 8-bit k and v of a head are multiplied by, and what is added then.
struct OfHead {
  Scales scales_k, scales_v;  // false where k and v are not 8-bit
  const float *mean_k = nullptr, *mean_v = nullptr;
};

struct Work {
  Dtype dtype, dtype_kv, dtype_o;  // of q; of k and v; of o
  int dim_qk, dim_v;
  float scale, softcap;
  bool alibi;
  bool invariant;               // a lane's bits do not depend on the other lanes, as long as v is finite
  bool merges;                  // o and lse hold those over other keys: lse is a sink, and o its value. o is floats
  KvRows k, v;                  // of the sequence
  bool paged;                   // rows of a tile may lie in several pages
  const InterruptWatch* watch;  // once it is asked, results need not be right
  int64_t first_head;           // the key head that the first lanes read
  int heads;                    // 1 to heads_most
  int tile_kv;                  // keys that are computed together
  const OfHead* of_heads;
  const Lane* lanes;   // of head after head, of each as many; of several heads at most a block's
  int lane_count;      // 1 to Plan::piece_lanes_most
  float* scratch;      // scratch_floats of them, 64-byte aligned
  float* parts;        // null: o and lse are finished. Else lanes see a part of their keys, and part_floats of each
                       // block are written here
  int parts_there;     // 0, or: so many are here, in the order of their keys, and o and lse are finished from them
  int64_t parts_step;  // floats from one to the next
};
// What a part of the keys leaves of lanes, their number rounded up to lane_group_most.
inline constexpr int64_t lane_group_most = 16;
constexpr int64_t part_floats(int64_t dim_v, int64_t lanes) { return (dim_v + 2) * lanes; }

// Keys per tile. The scores of 64 lanes with 128 keys are 32 KiB: they stay in the first-level cache (48 KiB on current
// servers) while o += weights x v walks over them once for every 6 columns of v.
inline constexpr int tile_kv = 128;
// With AMX no tile stays there, and fewer walks over o bring up to 8 %. Every processor that has AMX has 2 MiB of
// second-level cache a core, where so many keys find room beside up to 256 columns of q and o together.
inline constexpr int tile_kv_amx = 512, tile_kv_of_many_columns = 256;
// keys: of the kernel.
constexpr int keys_of_tile(int keys, int dim_qk, int dim_v) {
  return dim_qk + dim_v > 256 && keys > tile_kv_of_many_columns ? tile_kv_of_many_columns : keys;
}
// Where each head has a block of lanes at most, several are computed side by side, a few keys at a time: their rows lie
// one behind the other in memory, and far from the rows of the next key. Pairs are loaded by more instructions a tile.
inline constexpr int heads_most = 16;
inline constexpr int tile_kv_side_by_side = 16, tile_kv_side_by_side_in_pairs = 64;
// Lanes of one piece of work: more of them share the conversion of k and v tiles, fewer leave threads without work.
// Processors with AVX-512 have 1 MiB of second-level cache a core, so twice as many as usual. Tiles of AMX multiply so
// fast that converting takes a quarter of the time with 256 of them.
inline constexpr int lanes_max = 1024, lanes_usual = 256, lanes_avx512 = 512;
// lanes: of the kernel, for up to 256 columns of q and o together; with more of them fewer fit the cache.
constexpr int lanes_of_piece(int lanes, int dim_qk, int dim_v) {
  const int columns = dim_qk + dim_v > 256 ? dim_qk + dim_v : 256, fit = lanes * 256 / columns / 64 * 64;
  return fit > lanes_usual ? fit : lanes_usual;
}
inline constexpr int dim_max = 512;
inline constexpr int block_lanes_max = 64;

// q and o of all lanes; a k and a v tile, v in pairs and in floats; the weights of a block, and its scores or a part of
// its o; four rows on their way in or out; what is known of lanes; the scales of keys. Of more than 4096 keys, what was
// known of earlier ones.
constexpr size_t scratch_floats(int dim_qk, int dim_v, int lanes, int keys) {
  return size_t(lanes + keys) * (dim_qk + dim_v) + keys / 2 * (dim_v + block_lanes_max) +
         (keys > dim_v ? keys : dim_v) * block_lanes_max + 4 * dim_max + 5 * lanes + 2 * keys +
         part_floats(dim_v, lanes);
}
// More where k and v are in pages: a tile's rows, as they are stored.
constexpr size_t gathered_floats(int dim, int keys) { return size_t(keys) * dim; }
static_assert((scratch_floats(256, 256, lanes_usual, tile_kv) - part_floats(256, lanes_usual)) * sizeof(float) <=
                  1 << 20,
              "at most 1 MiB a thread up to 256 columns, but for what is seldom touched");

struct KeyChunk;  // gradient_work.hpp
class RowTiles;
struct RowsToNarrow;   // quantise_work.hpp
struct HeadsToAppend;  // append_work.hpp

// Both passes, the quantiser and what appends to a cache, compiled for one kind of vector unit.
struct Kernel {
  void (*attend)(const Work&);
  void (*differentiate)(const KeyChunk&, RowTiles&);
  void (*add)(const RowsToNarrow&, double* sums);
  float (*largest)(const RowsToNarrow&);
  void (*narrow)(const RowsToNarrow&, float scale);
  void (*append)(const HeadsToAppend&);
  const char* name;         // "amx", "avx512bf16", "avx512", "avx2", "generic"
  int block_lanes;          // computed side by side: lanes beyond a multiple of it cost as much as a vector of them
  bool bf16_only;           // it multiplies no other numbers, see multiplied_as
  bool (*runs_here)();      // this machine has that unit
  int lanes = lanes_usual;  // of a piece of forward work, see lanes_of_piece
  int keys = tile_kv;       // of a tile of it, see keys_of_tile
};
// What numbers are multiplied as, but for kernels that make floats of them: 8-bit ones are bf16 numbers.
inline Dtype multiplied_as(const Problem& p) {
  const auto is_bf16 = [](Dtype t) { return t == Dtype::bf16 || is_8_bit(t); };
  return is_bf16(p.dtype) && is_bf16(p.dtype_kv) ? Dtype::bf16 : Dtype::f32;
}
const Kernel& fastest_kernel(Dtype multiplied);  // that this machine runs
// All that it runs, the fastest first, and emulated ones: tests run them.
std::vector<const Kernel*> kernels(Dtype multiplied);

Plan plan_with(const Kernel&, const Problem&);  // the plan, but for the kernel

}  // namespace froghopper::cpu
