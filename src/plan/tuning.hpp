// SPDX-License-Identifier: Apache-2.0
// plan: the numbers by which the planner chooses. Each was measured or is derived, as its comment says; what depends on
// the card is derived from its properties, or is a row of `cards`. What kernels take is in rates.hpp.
#pragma once
#include <array>
#include <cstdint>

#include "contract/mask.h"
#include "src/plan/device.hpp"

namespace froghopper::tuning {

constexpr int64_t mib = 1 << 20;

// ---- What the cards differ in beyond their properties ----

struct Card {
  int memory_gbps_below;  // the first row that a device's memory fits is its own
  // Q iterations that a kv tile has less than the one before it, from which on every other section of a deterministic
  // backward pass goes the other way: an add to dQ and its signal hide behind so many. docs/experiments/0016.
  int64_t serpentine_from;
};
constexpr std::array cards = {Card{4000, 16},                           // h100
                              Card{no_bound<int>, no_bound<int64_t>}};  // h200: not measured, its memory is faster
constexpr const Card& of(const Device& device) {
  for (const Card& card : cards)
    if (device.memory_gbps < card.memory_gbps_below) return card;
  return cards.back();
}

// ---- Tiles of the forward pass ----

// Work items an SM from which on the tiles that are fastest with many items are taken; of fewer the model of time
// says which tiles are quickest. docs/experiments/0003.
constexpr int rounds_that_count = 6;
// The model errs by up to 7 % for windows, so tiles of fewer rows must be clearly quicker there.
// docs/experiments/0005.
constexpr double clearly_quicker = 0.95;

// The product of padded rows and padded keys of tiles of 192 rows, which are faster, may be so many percent of that of
// tiles of 128 rows; more where rows of q, k and v do not begin at a whole sector of memory and so come slower, since
// 192 rows of q read k and v less often. Below so many keys it was not measured. docs/experiments/0004.
constexpr int64_t padding_percent = 105, padding_percent_between_sectors = 125, padding_keys_least = 256;
constexpr int64_t sector_bytes = 32;
// At head dim 64 without a mask, tiles of 192 rows must pad to less than this percentage of the rows that tiles of 256
// pad to. The same page.
constexpr int64_t four_m_tiles_percent = 85;

// Of fewer keys much of a large tile is padding, or masked away. docs/4-planning.md, "Which kernel".
constexpr int64_t few_keys = 2048;
// Of so few causal keys much is masked away in tiles of 128 keys, so tiles of 64 are taken.
constexpr int64_t mostly_masked_keys = 512;
// A window of so few keys has its ends in few tiles of 128 rows, at head dim 256 in few of 64 rows; from so many keys
// on four M tiles at head dim 64 pay off with a window. docs/experiments/0005.
constexpr int64_t narrow_window_128 = 512, narrow_window_256 = 256, window_of_four_m_tiles = 1024;

// 8-bit q: tiles of 192 keys where there are so many, docs/experiments/0025; tiles of 192 rows that pad to so many
// percent of those of 128 at most, docs/experiments/0027.
constexpr int64_t fp8_long_keys = 4096, fp8_padding_percent = 115;

// TMA boxes of fewer rows of a page take longer to issue than two stages hide, and larger tiles read pages less
// often: a tile of 192 rows may then cost an SM a quarter more rows. docs/experiments/0042.
constexpr int page_box_enough = 64;
constexpr double page_rows_most = 1.25;
// The 128-byte swizzle repeats after 8 rows. Smaller boxes would do, but take as long as larger ones.
constexpr int page_box_least = 8;

// ---- Split-KV, dequantised K and V ----

// Of the workspace: what parts may take; what a hint may ask for; what batch-invariant PackGQA tiles may take, which
// have room for all parts of seq_kv keys (else there is no PackGQA: the bits are the same); and what dequantised K and
// V may take (else they are dequantised tile by tile).
constexpr double parts_bytes_most = 256 << 20, hinted_bytes_most = 0x1p40, batch_invariant_bytes_most = 1 << 30,
                 dequantised_bytes_most = 1 << 30;
constexpr int64_t parts_tried = 128;  // about one for each SM of the cards
// Of the time without parts, or with tiles that were tried before.
constexpr double worth_it = 0.98;
// By the rough model, of the best time so far: parts that take longer are not handed out item by item.
constexpr double hopeless = 1.25;
constexpr int64_t parts_apart = 3;  // unequal items: so many parts fewer or more than the rough model's are tried
// Unequal items are fetched one by one, the heaviest first: what is left over at the end is a part of one.
constexpr double left_over = 0.2;
constexpr int64_t tiles_sampled = 64;  // of many q tiles a sample is enough
// The least kv tiles of a part: larger tiles read keys less often and pay where parts are long.
constexpr int64_t part_tiles_of_many_rows = 8, part_tiles_of_few_rows = 1;
// Where lengths are on the device, the only long sequence may be one: no part is longer than this.
constexpr int64_t keys_of_ragged_part = 4096;
// Up to so many keys pages are read in fixed parts where each CTA has one: what even splits take in addition, a record
// that combine reads, is 3 to 9 % of such a call. Longer bounds are often much above the lengths, since a graph is
// captured with the longest, and then fixed parts would leave most SMs without work. docs/experiments/0051.
constexpr int64_t keys_of_fixed_parts = 8192;
// Of the CTAs of an even split so many are enough if each then has a whole tile. With 32 of 33, four queries on 8k keys
// take 1.04 times less, eight 1.07; with 30 of 33 and cut tiles a call takes 1.03 times more.
constexpr int even_ctas_percent = 96;
// A short window's kernels wait for memory too, which the model leaves out: 255 keys at head dim 256 had 0.95 and 0.99
// of the speed on an H100 when they were dequantised before.
constexpr int64_t short_window_of_dequantised = 1024;

// ---- Order of work items ----

// K and V of a section stay in L2 while its items run, with the Q and O that stream through: 32 MiB of the H200's
// 60, 27 of the H100's 50. Sequences of up to so many rows have fewer q tiles to use a section again; half of it
// wastes less at the section's end. docs/experiments/0006.
constexpr int64_t section_of_l2(const Device& device) { return device.l2_bytes * 8 / 15; }
constexpr int64_t short_rows = 4096;
// The part of every pair's q tiles, the lightest, that is held back to fill the gaps at the end: in percent, from the
// same measurement. Of few tiles none: one of three is a third of the keys that a section would have used again.
constexpr int tail_percent(int64_t q_tiles) { return q_tiles <= 4 ? 0 : q_tiles <= 16 ? 30 : 50; }
// Items an SM: with more of them the tile fetch is eager where all are equal, or of a few tiles of so many keys. On an
// H200 at 512 to 16k keys, a deferred fetch is up to 1.5 times as fast where items are few, and up to 1.08 times where
// a mask makes them unequal; an eager one is 1 to 2 % faster where they are many.
constexpr int items_fetched_eagerly = 8, eager_tile_kv = 128;
constexpr int items_in_one_section = 4;  // an SM: of so few a section's heaviest would come too late
constexpr int64_t varlen_rounds = 2;  // the heaviest item is a quarter of a CTA's share where sequences are so short
// Up to so many keys an item is shorter than a launch's first ticket, 2 us. On an H200, without tickets items of 64
// to 512 keys are 1.00 to 1.17 times as fast, of 4096 and more 0.84 to 1.00; nothing explains the latter.
constexpr int64_t keys_without_tickets = 512;

// ---- Backward pass ----

// CTAs that add to dQ in order pay with so few kv tiles of a pair (fewer under a causal mask at head dim 64) and sums
// of 16 MiB and more: the first CTA writes, so nothing is cleared and read. docs/experiments/0012.
constexpr int64_t deterministic_kv_tiles = 4, deterministic_kv_tiles_causal_64 = 2,
                  deterministic_floats_least = 16 * mib / 4;
// The lightest kv tiles come first where each has so few Q iterations less than the one before: with more they do not
// wait for an add, on paper. docs/experiments/0014.
constexpr int64_t light_first_iterations = 2;
// Heads of short packed sequences come together: so many query heads a key head, mean keys, and times the mean that
// the longest may have. Long ones lose. docs/experiments/0017.
constexpr int64_t packed_short_heads = 8, packed_short_keys = 2048, packed_short_spread = 16;
// Pairs that fill all CTAs: so many of them, and a number that is so near to a whole one, so that CTAs begin one
// after the other and end together; and short pairs of which so many in flight wait no more than many do.
// docs/experiments/0016.
constexpr int64_t serpentine_pairs_most = 2;
constexpr double serpentine_off_most = 0.15, short_pairs_in_flight = 4;
// Bytes of pairs side by side: as many as fit a share of L2, of deterministic ones as many as wait least for each other
// and fit L2, half as many of so few keys. docs/experiments/0013, 0014.
constexpr int64_t pairs_bytes = 16 * mib, deterministic_pairs_bytes = 32 * mib, deterministic_short_keys = 2048;
// Rounds of kv tiles in the one section at the end; one of them up to so many keys. docs/experiments/0015.
constexpr int64_t rounds_at_the_end = 2, one_round_keys = 1024;

}  // namespace froghopper::tuning
