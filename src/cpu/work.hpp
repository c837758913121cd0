// SPDX-License-Identifier: Apache-2.0
// cpu: a work item of the forward pass, and the memory that it needs. forward.cpp makes work items for threads;
// kernel.cpp and its -inl.hpp files, which are compiled once for every kind of vector unit, compute them.
//
// A lane is one query row of one head. Lanes that read the same keys lie side by side in vectors: the scores of 64
// query rows with one key are 4 vectors of 16 floats. So only q and o are transposed, every step of the softmax is
// lane by lane, and the query heads of a KV head fill vectors together, also when decoding with one query row.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/base/interrupt.hpp"
#include "src/cpu/cpu.hpp"

namespace froghopper::cpu {

struct Lane {
  const void* q;       // dim_qk values
  void* o;             // dim_v values
  const void* gate;    // dim_v values of o's type; null: none
  float* lse;          // null: not wanted
  float* max_logit;    // the largest score so far of its sequence and head; null: not wanted
  int64_t begin, end;  // keys that it attends to; begin >= end: none
  float scale_q;       // of 8-bit q, else 1
  float slope;         // of ALiBi, else 0
  int64_t diagonal;    // the key at distance 0 for ALiBi
  float sink;          // logit of the sink, or with Work::merge the lse of earlier calls; -inf: none
};

// The scales and means of 8-bit k and v of a head.
struct OfHead {
  Scales scales_k, scales_v;  // false where k and v are not 8-bit
  const float *mean_k = nullptr, *mean_v = nullptr;
};

struct Work {
  Dtype dtype, dtype_kv, dtype_o;  // of q; of k and v; of o
  int dim_qk, dim_v;
  float scale, softcap;
  bool alibi;
  bool invariant;               // bits of a lane do not depend on other lanes, if v is finite
  bool merge;                   // o, in fp32, and lse hold those of earlier calls, with which they are merged
  KvRows k, v;                  // of the sequence
  bool paged;                   // rows of a tile may be in several pages
  const InterruptWatch* watch;  // once it says stop, results may be wrong
  int64_t first_head;           // the KV head of the first lanes
  int heads;                    // 1 to heads_most
  int tile_kv;                  // keys of a tile
  const OfHead* of_heads;
  const Lane* lanes;  // by head, the same number for each; with several heads at most a block for each
  int lane_count;     // 1 to Plan::item_lanes_most
  float* scratch;     // scratch_floats of them, 64-byte aligned
  // Split-KV. partials: null: o and lse are written. Else the lanes attend to a split of their keys, and the partial
  // results of the blocks are written here, partial_floats of each. partial_count: 0, or the number of partial results
  // that are here, in the order of their keys, and that o and lse are merged from.
  float* partials;
  int partial_count;
  int64_t partial_stride;  // floats from one split to the next
};
// A partial result of `lanes` lanes over a split of their keys. lanes: a multiple of lane_group_most.
inline constexpr int64_t lane_group_most = 16;
constexpr int64_t partial_floats(int64_t dim_v, int64_t lanes) { return (dim_v + 2) * lanes; }

// Keys of a KV tile. The scores of 64 lanes and 128 keys are 32 KiB: they stay in the first-level cache, 48 KiB on
// current servers, while o += weights x v reads them once for every 6 columns of v.
inline constexpr int tile_kv = 128;
// With AMX tiles do not stay there, and fewer passes over o bring up to 8 %. Every processor with AMX has 2 MiB of
// second-level cache a core, enough for so many keys where dim_qk + dim_v is at most 256.
inline constexpr int tile_kv_amx = 512, tile_kv_of_large_dims = 256;
// keys: Kernel::keys.
constexpr int keys_of_tile(int keys, int dim_qk, int dim_v) {
  return dim_qk + dim_v > 256 && keys > tile_kv_of_large_dims ? tile_kv_of_large_dims : keys;
}
// Where each head has at most one block of lanes, several heads are computed side by side, a few keys at a time: the
// rows of their heads are next to each other in memory, and far from those of the next key. Loading pairs has a larger
// cost for each tile.
inline constexpr int heads_most = 16;
inline constexpr int tile_kv_side_by_side = 16, tile_kv_side_by_side_in_pairs = 64;
// Lanes of a work item. More lanes share the conversion of k and v tiles; fewer leave fewer threads idle. Processors
// with AVX-512 have 1 MiB of second-level cache a core, and twice as many lanes as usual. AMX multiplies so fast that
// with 256 lanes the conversion takes a quarter of the time.
inline constexpr int lanes_max = 1024, lanes_usual = 256, lanes_avx512 = 512;
// lanes: Kernel::lanes, for dim_qk + dim_v up to 256. With more, fewer lanes fit the cache.
constexpr int lanes_of_item(int lanes, int dim_qk, int dim_v) {
  const int dims = dim_qk + dim_v > 256 ? dim_qk + dim_v : 256, fit = lanes * 256 / dims / 64 * 64;
  return fit > lanes_usual ? fit : lanes_usual;
}
inline constexpr int dim_max = 512;
inline constexpr int block_lanes_max = 64;

// q and o of all lanes; a tile of k and of v, with v also in floats; the weights and scores of a block; four rows
// before or after a transposition; the softmax state of lanes; the scales of keys; and what is set aside every 4096
// keys.
constexpr size_t scratch_floats(int dim_qk, int dim_v, int lanes, int keys) {
  return size_t(lanes + keys) * (dim_qk + dim_v) + keys / 2 * (dim_v + block_lanes_max) +
         (keys > dim_v ? keys : dim_v) * block_lanes_max + 4 * dim_max + 5 * lanes + 2 * keys +
         partial_floats(dim_v, lanes);
}
// For pages: the rows of a tile, as they are stored.
constexpr size_t gathered_floats(int dim, int keys) { return size_t(keys) * dim; }
static_assert((scratch_floats(256, 256, lanes_usual, tile_kv) - partial_floats(256, lanes_usual)) * sizeof(float) <=
                  1 << 20,
              "at most 1 MiB a thread up to head dim 256, except for what is seldom touched");

struct GradientWork;  // gradient_work.hpp
class QTiles;
struct RowsToQuantise;  // quantise_work.hpp
struct HeadsToAppend;   // append_work.hpp

// Both passes, the quantiser and what appends to a cache, compiled for one kind of vector unit.
struct Kernel {
  void (*attend)(const Work&);
  void (*differentiate)(const GradientWork&, QTiles&);
  void (*add)(const RowsToQuantise&, double* sums);
  float (*largest)(const RowsToQuantise&);
  void (*quantise)(const RowsToQuantise&, float scale);
  void (*append)(const HeadsToAppend&);
  const char* name;         // "amx", "avx512bf16", "avx512", "avx2", "generic"
  int block_lanes;          // lanes of a block; a remainder costs whole vectors
  bool bf16_only;           // multiplies bf16 only, see multiplied_as
  bool (*runs_here)();      // whether this machine has the vector unit
  int lanes = lanes_usual;  // of a forward work item, see lanes_of_item
  int keys = tile_kv;       // of a KV tile, see keys_of_tile
};
// The type of products in kernels of bf16; others convert to floats. 8-bit values are bf16 values.
inline Dtype multiplied_as(const Problem& p) {
  const auto is_bf16 = [](Dtype t) { return t == Dtype::bf16 || is_8_bit(t); };
  return is_bf16(p.dtype) && is_bf16(p.dtype_kv) ? Dtype::bf16 : Dtype::f32;
}
const Kernel& fastest_kernel(Dtype multiplied);  // of those that this machine runs
// All kernels that this machine runs, the fastest first, then emulated ones, for tests.
std::vector<const Kernel*> kernels(Dtype multiplied);

Plan plan_with(const Kernel&, const Problem&);  // as plan(), with this kernel

}  // namespace froghopper::cpu
