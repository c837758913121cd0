// SPDX-License-Identifier: Apache-2.0
// plan: the steps of planning a forward problem, each in a file of its own: the launch (forward.cpp), the tiles
// (tiles.cpp), which heads share them and how their keys are cut (tiling.cpp), whether k and v are dequantised before
// (dequantise.cpp), the order of work items (order.cpp).
#pragma once
#include "src/plan/both_passes.hpp"

namespace froghopper {

Result<Plan> plan_forward(const Problem&, const Device&, const Hints&);

FwdKv kv_of(const Problem&);  // as they are in memory, in rows

// The kernel with such tiles, with neither PackGQA nor split-KV.
FwdVariant plain_variant(const Problem&, Dims, Tiles);
int box_of_pages(const Problem&, const Tiles&);
KvLayout kv_layout(const Problem&, const Tiles&);

// Head dims that only the forward pass of 16-bit types has.
constexpr bool above_256(Dims dims) { return dims.qk > 256 || dims.v > 256; }

Tiles tuned_tiles(const Problem&, Dims, const Device&);

// The most keys that one query row attends to.
int64_t keys_attended(const Problem&);
Tiles few_rows_tiles(const Problem&, Dims);                  // where there are few work items
std::optional<Tiles> many_rows_tiles(const Problem&, Dims);  // the largest ones, if they are worth cutting

// Whether there may be PackGQA or split-KV: kernels of chunks and alibi have neither, nor have calls that merge with
// earlier ones.
bool may_have_pack_gqa_or_split_kv(const Problem&);

// The kernel, how heads share its tiles, and into how many parts their keys are cut. Tiles may still be none that a
// kernel has.
struct Tiling {
  FwdVariant variant;
  PackGqaParams pack_gqa;
  int part_tiles;  // kv tiles of a part; no_bound: not split
  int parts;       // of the longest sequence
};
Result<Tiling> choose_tiling(const Problem&, Dims, const Device&, const Hints&);

// Mixed steps of serving: the sequences of a problem that have as few query rows as a PackGQA tile, as a problem of
// their own. None: one launch computes all sequences.
std::optional<Problem> sequences_of_few_rows(const Problem&, const Tiling& of_all, const Hints&);

// q tiles over all sequences and query heads; for packed sequences the most there can be.
int64_t items_at_most(const Problem& p, int tile_q);
int64_t items_at_most(const Problem& p, const FwdVariant&, PackGqaParams);  // of all heads that share a tile one

// 16-bit q with 8-bit k and v: whether a launch before gives these q's type, once for all q tiles; else each CTA
// makes f16 of them, for every q tile. `otherwise`: the kernel that would, keys in so many parts. dequantise.cpp.
std::optional<FwdVariant> dequantised_variant(const Problem&, const FwdVariant& otherwise, const Device&);
bool pays_to_dequantise_first(const Problem&, const FwdVariant& dequantised, const FwdVariant& otherwise,
                              int64_t parts, const Device&);
int64_t block_scales(const Problem&);  // how many pairs BlockScales has, with scales of blocks or columns

Order order_items(const Problem& p, const Tiling&, const Device& device, const Hints&);

}  // namespace froghopper
