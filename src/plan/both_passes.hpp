// SPDX-License-Identifier: Apache-2.0
// plan: the steps that planning takes in either pass: what Hopper kernels refuse (both_passes.cpp), the head dims of
// tiles (tiles.cpp), sections of pairs (order.cpp).
#pragma once
#include <string>

#include "src/plan/plan.hpp"

namespace froghopper {

// What a kernel counts in an int: work items. A launch has no more CTAs either. Each CTA fetches one number past the
// last item, which must be an int too.
constexpr int64_t items_max = (int64_t{1} << 31) - (1 << 16);

Failure unsupported(std::string why);

// What no Hopper kernel takes.
Result<void> check_limits(const Problem&);

// The next larger head dims for which there is a kernel: the tile is filled up with zeros.
std::optional<Dims> tile_dims(int64_t dim_qk, int64_t dim_v);
Result<Dims> choose_dims(const Problem&);  // or that there are none

// Nothing, or that the tiles cannot be used; why_invalid: of the variant that has them.
Result<void> check_tiles(const Problem&, Tiles, const char* why_invalid);

// The head dim of kernels that take rows, not tiles: a lane has a power of two of their columns.
constexpr int dim_of_rows(int dim_v) { return dim_v <= 64 ? 64 : dim_v <= 128 ? 128 : dim_v <= 256 ? 256 : 512; }

// The mask as far as it changes the machine code.
Mask kernel_mask(const Problem&);
bool has_chunks(const Problem&);  // attention_chunk masks some key

int usable_sms(const Problem&, const Device&);

// How many sections so many pairs make, each with an item for every SM at least.
int64_t sections_of(int64_t pairs, int64_t pair_bytes, int64_t bytes, int64_t items, int sms);
// Pairs of a section of heads of one ragged sequence: so many or fewer, so that the last section is no small remainder.
int64_t without_small_remainder(int64_t pairs, int64_t section);
// Of ragged sequences with a mask: how many come together at the end. rows: of a tile; total_rows: of packed tensors;
// longest: rows of other ones; rounds: about so many items of every SM shall come together.
struct RaggedTiles {
  int rows;
  int64_t total_rows, longest, heads;
};
int64_t sequences_at_the_end(const Problem& p, const RaggedTiles& tiles, int64_t rounds, int sms);

}  // namespace froghopper
